"""`Admission.admit`: a request is checked, prepared, accepted in one transaction and submitted to the engine.

Runs in a handler's thread and does not wait for tokens. A request is refused before its row is committed;
after the commit the response reaches a terminal status in any case.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from server.admission.accept import (
    AcceptedResponse,
    ConversationChanged,
    KeyTaken,
    ResponseWriter,
    StoredStart,
    find_previous_attempt,
)
from server.admission.key_claims import KeyClaims
from server.admission.prepare_runs import IdempotencyKey, NewRun, ParsedCreate, RunPreparation
from server.admission.request_validation import (
    check_model_of_key,
    check_priority,
    refuse_empty,
    validate_request,
    with_modern_parameters,
)
from server.admission.run_submission import RunSubmission
from server.caller import Caller
from server.configuration.settings import Config
from server.crashpoints import ARMED, crashpoint
from server.delivery.frames import FramePage
from server.delivery.hub import Abandonment, Channel, Hub
from server.errors import Conflict, ConversationLocked, StorageFull
from server.generation.run import Run
from server.hosted_tools.tool_loop import ToolLoop
from server.limits.budgets import BudgetReservation, Budgets, Demand
from server.limits.gate import Gate
from server.limits.rate_limits import RateLimits, Reservation, reserved_tokens
from server.limits.tenant_limits import HistoryReads, QueueLimits, StorageQuota
from server.logs.context import CURRENT, Origin, current_origin
from server.prompting.loaded_model import LoadedModel
from server.protocol.responses.events import Event, frames
from server.protocol.responses.input import InputItem
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.recording.recorder import Recorder
from server.request_input.resolve_input import read_request_input
from server.request_input.template_input import read_templated_input
from server.store.content.item_rows import NewItem, stored_items_of
from server.store.database import Connection, Database
from server.store.database_errors import AlreadyThere
from server.store.disk_space import Disk

MAX_CONVERSATION_RETRIES = 5
"""Attempts at a response in a conversation that others change between the read and the accept transaction."""


class Admission:
    """Accepts responses until its gate is closed."""

    def __init__(
        self,
        served: LoadedModel,
        database: Database,
        replica: UUID,
        recorder: Recorder,
        hub: Hub,
        disk: Disk,
        config: Config,
        *,
        tool_loop: ToolLoop,
        on_queued: Callable[[], None],
        unread: Abandonment,
        rates: RateLimits | None = None,
        budgets: Budgets | None = None,
        on_accepted: Callable[[int], None] = lambda _choices: None,
    ) -> None:
        """`on_accepted` gets, for each accepted request, how many answers it asks for."""
        self._served = served
        self._database = database
        self._recorder = recorder
        self._hub = hub
        self._disk = disk
        self._config = config
        self._on_queued = on_queued
        self._on_accepted = on_accepted
        queue = QueueLimits(config.max_queued, config.max_queued_of_tenant)
        self._writer = ResponseWriter(served, replica, config.retention_days, queue)
        self.history = HistoryReads()
        self._preparation = RunPreparation(served, database, tool_loop.servers, self.history, queue)
        self.storage = StorageQuota(database, config.max_stored_bytes_of_tenant)
        self.rates = RateLimits(database) if rates is None else rates
        self.key_claims = KeyClaims(database, replica)
        self._submission = RunSubmission(
            served,
            recorder,
            hub,
            tool_loop=tool_loop,
            rates=self.rates,
            claims=self.key_claims,
            unread=unread,
            grace_seconds=config.grace_seconds,
        )
        self.budgets = Budgets(database, replica) if budgets is None else budgets
        self.gate = Gate()

    def admit(
        self,
        caller: Caller,
        request: CreateResponse,
        idempotency_key: IdempotencyKey | None = None,
        input_items: Sequence[InputItem] | None = None,
        *,
        prior_items: Sequence[Item] | None = None,
        generate: bool = True,
    ) -> AcceptedResponse:
        """Create a response, or find the one that an earlier attempt with the idempotency key created.

        `input_items` replaces the request's input where that came in another form. `prior_items` is the
        history up to the end of the previous response where that is not stored. With `generate` false the
        response completes without output when its prompt is prefilled.

        Raises ApiError, DecodeFailure or NotReady, and then nothing is stored.
        """
        (accepted,) = self.admit_all(
            caller, [request], idempotency_key, input_items, prior_items=prior_items, generate=generate
        )
        return accepted

    def admit_all(
        self,
        caller: Caller,
        requests: Sequence[CreateResponse],
        idempotency_key: IdempotencyKey | None,
        input_items: Sequence[InputItem] | None,
        *,
        prior_items: Sequence[Item] | None = None,
        generate: bool = True,
    ) -> list[AcceptedResponse]:
        """`admit` for the choices of one completion, in one transaction.

        Their ids are derived from the first one's, which the idempotency key is stored with. Without
        `input_items` there is one request, whose `input` is read.
        """
        context = CURRENT.get()
        origin = current_origin()
        with self.gate.entered():
            accepted = self._admit(
                caller, requests, idempotency_key, input_items, prior_items, origin, generate=generate
            )
        if context is not None:
            context.responses = [one.id for one in accepted]
        return accepted

    def _admit(
        self,
        caller: Caller,
        requests: Sequence[CreateResponse],
        idempotency_key: IdempotencyKey | None,
        input_items: Sequence[InputItem] | None,
        prior_items: Sequence[Item] | None,
        origin: Origin,
        *,
        generate: bool,
    ) -> list[AcceptedResponse]:
        if input_items is None and generate:
            refuse_empty(requests[0])
        previous = self._find_previous(caller, requests, idempotency_key)
        if previous is not None:
            return previous
        if self._disk.shortage() is not None:
            raise StorageFull
        choices = self._validate(caller, requests)
        if input_items is None:
            (request,) = choices
            if request.prompt is None:
                request, input_items = read_request_input(request)
            else:
                request, input_items = read_templated_input(self._database, caller.tenant, request)
            choices = [request]
        create = ParsedCreate(
            caller=caller,
            choices=choices,
            input_items=input_items,
            prior_items=prior_items,
            idempotency_key=idempotency_key,
            origin=origin,
            generate=generate,
        )
        try:
            if caller.has_limits:
                with self.rates.reserving(caller) as rates, self.budgets.reserving(caller) as budget:
                    started = self._prepare_and_start(create, rates, budget)
            else:
                started = self._prepare_and_start(create, Reservation(caller, ()), None)
            self._on_accepted(len(started))
            return started
        except (KeyTaken, ConversationLocked) as refused:
            previous = self._find_previous(caller, requests, idempotency_key)
            if previous is not None:
                return previous
            if isinstance(refused, ConversationLocked):
                raise
            raise Conflict("Another request used this Idempotency-Key; try again.") from None

    def _find_previous(
        self, caller: Caller, requests: Sequence[CreateResponse], key: IdempotencyKey | None
    ) -> list[AcceptedResponse] | None:
        """The responses of an earlier attempt, which is for the caller's key what another request would be:
        of a model that it may use, and counted.
        """
        if key is None:
            return None
        for request in requests:
            check_model_of_key(caller, request.model)
        found = find_previous_attempt(
            self._database, self._hub, caller, key, len(requests), never_began=self.key_claims
        )
        if found is not None and caller.has_limits:
            with self.rates.reserving(caller):
                pass
        return found

    def _prepare_and_start(
        self, create: ParsedCreate, reservation: Reservation, budget: BudgetReservation | None
    ) -> list[AcceptedResponse]:
        for _ in range(MAX_CONVERSATION_RETRIES):
            runs = self._preparation.prepare_runs(create)
            if budget is not None:
                runs = self._within_budget(budget, runs)
            if reservation.token_windows:
                reservation.take_tokens({new.response: _tokens_of(new) for new in runs})
            with suppress(ConversationChanged):
                return self._start(runs, reservation)
        raise ConversationLocked

    def _within_budget(self, reservation: BudgetReservation, runs: Sequence[NewRun]) -> list[NewRun]:
        """The runs with as much output as the caller's budgets reserve for them. Raises BudgetExceeded."""
        caller = runs[0].caller
        demands = [
            Demand(
                response=new.response,
                model=new.prepared.echo.model,
                stored=new.stored,
                prompt_tokens=len(new.prepared.prompt.token_ids),
                output_tokens=new.output_tokens,
                limited=new.resolved.request.max_output_tokens is not None,
            )
            for new in runs
        ]
        granted = self.budgets.reserve(caller, reservation, demands)
        if granted is None:
            return list(runs)
        return [
            self._preparation.with_output_limit(new, most) if new.prepared.wants_output else new
            for new, most in zip(runs, granted, strict=True)
        ]

    def _validate(self, caller: Caller, requests: Sequence[CreateResponse]) -> list[CreateResponse]:
        """The requests as they will run. Raises ApiError or DecodeFailure, also at the caller's limits."""
        choices = [with_modern_parameters(request) for request in requests]
        for request in choices:
            validate_request(caller, request, self._served)
            check_priority(caller, request)
            if request.store is not False or request.background:
                self.storage.check(caller)
        if caller.has_limits:
            self.budgets.check(caller)
        if not choices[0].background:
            self._recorder.capacity.check(caller, len(choices))
        return choices

    def _start(self, prepared: Sequence[NewRun], reservation: Reservation) -> list[AcceptedResponse]:
        if prepared[0].prepared.echo.background:
            channels = [self._hub.watch(new.caller.tenant, new.response) for new in prepared]
            accepted = self._accept(prepared)
            self._on_queued()
            return [self._watch(*one, channel) for one, channel in zip(accepted, channels, strict=True)]
        return self._submission.submit_all(prepared, self._accept_here(prepared, reservation))

    def _watch(self, run: Run, first_events: Sequence[Event], channel: Channel) -> AcceptedResponse:
        self._hub.begin_at(channel, len(first_events))
        begun = FramePage(frames(run.facts.id, first_events, run.facts.attempt), ended=False)
        return AcceptedResponse(run.facts.id, channel, begun=begun)

    def _accept_here(self, prepared: Sequence[NewRun], reservation: Reservation) -> list[StoredStart]:
        """Accept foreground responses, which this replica runs, if it has capacity for all of them.

        They are reserved before the commit: a stored response of this replica that is not counted here is
        taken for a lost one.
        """
        caller, ids = prepared[0].caller, [new.response for new in prepared]
        images = {
            image.digest: len(image.data) for new in prepared for image in new.prepared.engine_request.images
        }
        self._recorder.capacity.reserve(caller, ids, sum(images.values()), prepared[0].retained_input_bytes)
        if reservation.tokens:
            self.rates.keep_until_end(reservation)
        try:
            if prepared[0].stored:
                return self._accept(prepared)
            starts = self._begin(prepared)  # may ask the database, and nothing may fail after the claim
            if prepared[0].idempotency_key:
                for response in ids:  # for a request that is sent again as soon as the key is claimed
                    self._hub.prepare(response)
                self.key_claims.claim(prepared[0])
            return starts
        except BaseException:
            self.rates.drop(ids)
            for response in ids:
                self._recorder.capacity.discard(response)
                self._hub.discard(response)
            raise

    def _begin(self, prepared: Sequence[NewRun]) -> list[StoredStart]:
        created_at = self._database.now()
        return [self._writer.begin(new, created_at) for new in prepared]

    def _accept(self, prepared: Sequence[NewRun]) -> list[StoredStart]:
        """Commit the responses with their input and first events."""
        starts = self._begin(prepared)
        rows = iter(stored_items_of([item for new in prepared for item in new.resolved_input.new]))
        input_items = [list(itertools.islice(rows, len(new.resolved_input.new))) for new in prepared]
        if len(prepared) > 1 or not self._writer.is_one_statement(prepared[0], input_items[0]):
            self._write(prepared, starts, input_items)
        else:
            if ARMED:
                crashpoint("accept.written")  # the statement commits itself
            if not self._writer.write_and_commit(self._database, prepared[0], starts[0], input_items[0]):
                self._write(prepared, starts, input_items, tries=1)
        if ARMED:
            crashpoint("accept.committed")
        return starts

    def _write(
        self,
        prepared: Sequence[NewRun],
        starts: Sequence[StoredStart],
        input_items: Sequence[Sequence[NewItem]],
        *,
        tries: int = 0,
    ) -> None:
        """Write the responses in one transaction, after that many tries that may have committed."""

        def write(connection: Connection) -> None:
            nonlocal tries
            tries += 1
            for new, start, items in zip(prepared, starts, input_items, strict=True):
                self._writer.write(connection, new, start, items, again=tries > 1)
            crashpoint("accept.written")

        try:
            self._database.retry(write)
        except AlreadyThere:  # an earlier try, which was not confirmed, committed after it was looked for
            if tries == 1:
                raise
            self._database.retry(write)


def _tokens_of(new: NewRun) -> int:
    """The tokens that the response may use: those of its prompt, and of its output at most."""
    prepared = new.prepared
    return reserved_tokens(
        len(prepared.prompt.token_ids), prepared.echo.max_output_tokens, wants_output=prepared.wants_output
    )
