"""`Admission.admit`: a request is checked, prepared, accepted in one transaction and begun.

Runs in a handler's thread and does not wait for tokens. A request is refused before its row is committed;
after the commit the response reaches a terminal status in any case: the recorder and the engine get it here,
or it ends.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from uuid import UUID

from engine.request import RequestRefused
from server.admission.accept import Acceptance, AcceptedResponse, AcceptedRun, ConversationChanged
from server.admission.idempotency import KeyClaims, KeyTaken, find_previous_attempt
from server.admission.prepare_runs import IdempotencyKey, NewRun, ParsedCreate, RunPreparation
from server.admission.request_validation import (
    check_model_of_key,
    check_priority,
    refuse_empty,
    validate_request,
    with_modern_parameters,
)
from server.caller import Caller
from server.configuration.settings import Config
from server.crashpoints import ARMED, crashpoint
from server.delivery.frames import FramePage
from server.delivery.hub import Abandonment, Channel, Hub
from server.errors import Conflict, ConversationLocked, Overloaded, StorageFull
from server.hosted_tools.tool_loop import ToolLoop
from server.limits.budgets import BudgetReservation, Budgets, Demand
from server.limits.disk_space import Disk
from server.limits.rate_limits import RateLimits, RateReservation, reserved_tokens
from server.limits.tenant_limits import HistoryReads, QueueLimits, StorageQuota
from server.logs.context import current_origin, note_responses
from server.prompting.engine_request import refusal
from server.prompting.served_model import LoadedModel
from server.prompting.turns import first_decoding_spec
from server.protocol.responses.events import frames
from server.protocol.responses.input import InputItem
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.recording.recorder import Recorder
from server.request_input.resolve_input import read_request_input
from server.request_input.template_input import read_templated_input
from server.store.administration.rate_buckets import Unused
from server.store.database import Database

MAX_CONVERSATION_RETRIES = 5
"""Attempts at a response in a conversation that others change between the read and the accept transaction."""
NOT_TAKEN = "The server could not take this response; try again."


class Gate:
    """Counts the requests that are being accepted, and refuses every one after `close`. Thread-safe."""

    def __init__(self) -> None:
        self._closed = False
        self._inside = 0
        self._changed = threading.Condition()

    def close(self) -> None:
        with self._changed:
            self._closed = True

    def wait_empty(self, seconds: float) -> None:
        """After `close`: waits until the requests that came before it run, or are refused."""
        with self._changed:
            self._changed.wait_for(lambda: self._inside == 0, max(0.0, seconds))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Surrounds the acceptance of a request. Raises Overloaded after `close`."""
        with self._changed:
            if self._closed:
                raise Overloaded("The server is shutting down.")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()


class Admission:
    """Accepts responses while its gate is open. Any thread."""

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
        abandonment: Abandonment,
        rates: RateLimits | None = None,
        budgets: Budgets | None = None,
        on_accepted: Callable[[int], object] = lambda _choices: None,
    ) -> None:
        """`on_accepted` gets, for each accepted request, how many answers it asks for."""
        self._served = served
        self._database = database
        self._recorder = recorder
        self._hub = hub
        self._disk = disk
        self._grace_seconds = config.grace_seconds
        self._tool_loop = tool_loop
        self._abandonment = abandonment
        self._on_queued = on_queued
        self._on_accepted = on_accepted
        queue = QueueLimits(config.max_queued, config.max_queued_of_tenant)
        self._acceptance = Acceptance(database, replica, config.retention_days, queue)
        self.history = HistoryReads()
        self.preparation = RunPreparation(served, database, tool_loop.servers, self.history, queue)
        self.storage = StorageQuota(database, config.max_stored_bytes_of_tenant)
        self.rates = RateLimits(database) if rates is None else rates
        self.key_claims = KeyClaims(database, replica)
        self.budgets = Budgets(database, replica) if budgets is None else budgets
        self.gate = Gate()

    def admit(
        self,
        caller: Caller,
        requests: Sequence[CreateResponse],
        idempotency_key: IdempotencyKey | None = None,
        input_items: Sequence[InputItem] | None = None,
        *,
        prior_items: Sequence[Item] | None = None,
        generate: bool = True,
    ) -> list[AcceptedResponse]:
        """Creates a response, or one for each choice of a completion, or finds those that an earlier attempt
        with the idempotency key created.

        The ids of choices are derived from the first one's, which the idempotency key is stored with.
        `input_items` is the request's input where that came in another form; without it there is one request,
        whose `input` is read. `prior_items` is the history up to the end of the previous response where that
        is not stored. With `generate` false the response completes without output when its prompt is
        prefilled.

        Raises ApiError or NotReady, and then nothing is stored.
        """
        if input_items is None and generate:
            refuse_empty(requests[0])
        with self.gate.entered():
            earlier = self._find_previous(caller, requests, idempotency_key)
            if earlier is not None:
                return earlier
            create = self._parse(
                caller, requests, idempotency_key, input_items, prior_items, generate=generate
            )
            try:
                return self._create(create)
            except (KeyTaken, ConversationLocked) as refused:
                earlier = self._find_previous(caller, requests, idempotency_key)
                if earlier is not None:
                    return earlier
                if isinstance(refused, ConversationLocked):
                    raise
                raise Conflict("Another request used this Idempotency-Key; try again.") from None

    def _find_previous(
        self, caller: Caller, requests: Sequence[CreateResponse], key: IdempotencyKey | None
    ) -> list[AcceptedResponse] | None:
        """The responses of an earlier attempt. For the caller's limits it is another request: its models must
        be the key's, and it is counted.
        """
        if key is None:
            return None
        for request in requests:
            check_model_of_key(caller, request.model)
        responses = find_previous_attempt(
            self._database, self._hub, caller, key, len(requests), not_begun=self.key_claims
        )
        if responses is None:
            return None
        if caller.has_limits:
            self.rates.take(caller)
        note_responses([response for response, _ in responses])
        return [AcceptedResponse(response, channel) for response, channel in responses]

    def _parse(
        self,
        caller: Caller,
        requests: Sequence[CreateResponse],
        idempotency_key: IdempotencyKey | None,
        input_items: Sequence[InputItem] | None,
        prior_items: Sequence[Item] | None,
        *,
        generate: bool,
    ) -> ParsedCreate:
        """The requests as they will run. Raises ApiError, also at the caller's limits."""
        if self._disk.shortage() is not None:
            raise StorageFull
        choices = [with_modern_parameters(request) for request in requests]
        for request in choices:
            validate_request(caller, request, self._served)
            check_priority(caller, request)
            if request.store is not False or request.background:
                self.storage.check(caller)
        if not choices[0].background:
            self._recorder.capacity.check(caller, len(choices))
        if input_items is None:
            (request,) = choices
            if request.prompt is None:
                request, input_items = read_request_input(request)
            else:
                request, input_items = read_templated_input(self._database, caller.tenant, request)
            choices = [request]
        return ParsedCreate(
            caller=caller,
            choices=choices,
            input_items=input_items,
            prior_items=prior_items,
            idempotency_key=idempotency_key,
            origin=current_origin(),
            generate=generate,
        )

    def _create(self, create: ParsedCreate) -> list[AcceptedResponse]:
        """Prepares, accepts and begins responses; if it raises, what was taken of limits is given back."""
        rates, budget = None, None
        with ExitStack() as reserved:
            if create.caller.has_limits:
                rates = reserved.enter_context(self.rates.reserving(create.caller))
                budget = reserved.enter_context(self.budgets.reserving(create.caller))
            for _ in range(MAX_CONVERSATION_RETRIES):
                runs = self._prepare(create, rates, budget)
                try:
                    with self._reserved(runs) as channels:
                        accept = self._acceptance.accept if runs[0].stored else self._claim
                        accepted = accept(runs)
                except ConversationChanged:
                    continue
                if rates is not None:
                    rates.accepted()
                return self._begin(runs, accepted, channels)
            raise ConversationLocked

    def _prepare(
        self, create: ParsedCreate, rates: RateReservation | None, budget: BudgetReservation | None
    ) -> Sequence[NewRun]:
        """The runs, within the caller's rates and budgets. Raises ApiError or NotReady."""
        runs: Sequence[NewRun] = self.preparation.prepare_runs(create)
        if budget is not None:
            runs = self._within_budget(budget, runs)
        if rates is not None:
            rates.take_tokens(sum(_tokens_of(new) for new in runs))
        return runs

    def _within_budget(self, reservation: BudgetReservation, runs: Sequence[NewRun]) -> Sequence[NewRun]:
        """The runs with as much output as the caller's budgets reserve for them. Raises BudgetExceeded."""
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
        granted = self.budgets.reserve(runs[0].caller, reservation, demands)
        if granted is None:
            return runs
        return [
            self.preparation.with_output_limit(new, tokens) if new.prepared.wants_output else new
            for new, tokens in zip(runs, granted, strict=True)
        ]

    @contextmanager
    def _reserved(self, runs: Sequence[NewRun]) -> Iterator[list[Channel]]:
        """Room for the responses while they are accepted; it stays theirs unless the block raises.

        Of foreground responses, which this replica runs, it is capacity, reserved before the commit: a stored
        response of this replica that is not counted here is taken for a lost one. Responses for the queue get
        the channels through which they are read here.
        """
        caller, ids = runs[0].caller, [new.response for new in runs]
        if runs[0].prepared.echo.background:
            yield [self._hub.watch(caller.tenant, response) for response in ids]
            return
        images = {
            image.digest: len(image.data) for new in runs for image in new.prepared.engine_request.images
        }
        self._recorder.capacity.reserve(caller, ids, sum(images.values()), runs[0].retained_input_bytes)
        try:
            yield []
        except BaseException:
            for response in ids:
                self._recorder.capacity.discard(response)
                self._hub.discard(response)
            raise

    def _claim(self, runs: Sequence[NewRun]) -> list[AcceptedRun]:
        """Accepts responses that are not stored: at most the idempotency key and the approvals are.

        Raises KeyTaken, and Conflict for an approval that is being spent.
        """
        accepted = self._acceptance.begin(runs)  # may ask the database, and nothing may fail after the claim
        if runs[0].idempotency_key:
            for new in runs:  # for a request that is sent again as soon as the key is claimed
                self._hub.prepare(new.response)
        if runs[0].idempotency_key or runs[0].approvals:
            self.key_claims.claim(runs[0])
        return accepted

    def _begin(
        self, runs: Sequence[NewRun], accepted: Sequence[AcceptedRun], channels: Sequence[Channel]
    ) -> list[AcceptedResponse]:
        """Begin the responses of one request.

        If one cannot begin, all end, and what was raised for the first such one is raised: ApiError where the
        engine refuses it, as one that has just died does.
        """
        note_responses([new.response for new in runs])
        if channels:
            self._on_queued()
            self._on_accepted(len(runs))
            return [self._queued(run, channel) for run, channel in zip(accepted, channels, strict=True)]
        begun: list[AcceptedResponse] = []
        failures: list[Exception] = []
        for new, run in zip(runs, accepted, strict=True):
            try:
                begun.append(self._submit(new, run))
            except Exception as failure:  # noqa: BLE001 - it is raised when the others have begun, and can end
                failures.append(failure)
        if failures:
            for new in runs:
                self._tool_loop.cancel(new.response)
            raise failures[0]
        self._on_accepted(len(runs))
        return begun

    def _queued(self, run: AcceptedRun, channel: Channel) -> AcceptedResponse:
        self._hub.begin_at(channel, len(run.events))
        page = FramePage(frames(run.facts.id, run.events, run.facts.attempt), ended=False)
        return AcceptedResponse(run.facts.id, channel, begun=page)

    def _submit(self, new: NewRun, run: AcceptedRun) -> AcceptedResponse:
        """Gives the run to the recorder, and its first turn to the engine, if no approved calls precede."""
        try:
            channel = self._open(new, run)
            decoding = partial(first_decoding_spec, self._served, new.resolved, new.prepared)
            self._recorder.build_run(run.facts, decoding, announces=new.announces)
        except Exception:
            self._leave(new)
            raise
        if ARMED:
            crashpoint("accept.begun")
        if not new.waits_for_calls:
            try:
                self._served.engine.submit(new.checked)
            except Exception as error:
                self._recorder.fail_run(new.response, NOT_TAKEN)
                if isinstance(error, RequestRefused):
                    raise refusal(error, new.resolved.request) from error
                raise
        if ARMED:
            crashpoint("accept.submitted")
        return AcceptedResponse(
            new.response, channel, new.resolved_input.items, new.resolved_input.read_bytes
        )

    def _open(self, new: NewRun, run: AcceptedRun) -> Channel:
        response = new.response
        if new.turns.may_have_next_turn:
            self._tool_loop.register(new.turns)
        on_abandoned: Callable[[UUID], None] = self._abandonment.add
        if not new.stored:
            on_abandoned = partial(self._tool_loop.cancel, reason="client_disconnect")
        return self._hub.open(
            response,
            stored=new.stored,
            grace=self._grace_seconds,
            on_abandoned=partial(on_abandoned, response),
            first_frames=frames(response, run.events, run.facts.attempt if new.stored else None),
        )

    def _leave(self, new: NewRun) -> None:
        """Leaves a response whose run the recorder does not have. The heartbeat releases a stored one, since
        this replica owns it and `capacity` does not count it.
        """
        response = new.response
        self._tool_loop.unregister(response)
        if new.stored:
            self._hub.release(new.caller.tenant, response)
        else:
            self._hub.discard(response)
            self.key_claims.give_up(new)
            if new.caller.has_limits:  # no end will settle them
                self.rates.return_now(new.caller, Unused(tokens=_tokens_of(new)))
        self._recorder.capacity.discard(response)


def _tokens_of(new: NewRun) -> int:
    """The tokens that the response may use: those of its prompt, and of its output at most."""
    prepared = new.prepared
    return reserved_tokens(
        len(prepared.prompt.token_ids), prepared.echo.max_output_tokens, wants_output=prepared.wants_output
    )
