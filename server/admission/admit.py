"""Accepting a response: checked, written down in one transaction, handed to the engine or to the queue.

Runs in a handler's thread and waits for no token. Everything that can be wrong with a request is found before
the row exists; once it does, the response reaches a terminal status.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import UUID

from engine.request import RequestRefused
from server.admission.accept import ConversationChanged, KeyTaken, NewRun, ResponseWriter, StoredStart
from server.admission.chat_choices import another_choice, context_of, has_prompt_of, seed_of
from server.admission.generation_config import with_generation_config
from server.admission.idempotency import AcceptedResponse, IdempotencyKey, find_previous_attempt
from server.caller import Caller
from server.compaction.inline import prepare_first
from server.configuration.settings import Config
from server.crashpoints import crashpoint
from server.delivery.abandonment import Abandonment
from server.delivery.event_frames import FramePage, frames
from server.delivery.hub import Channel, Hub, Published
from server.errors import ApiError, Conflict, ConversationLocked, Overloaded, StorageFull
from server.generation.run import Run
from server.hosted_tools.discovery import list_tools
from server.input_resolution import resolve_input
from server.input_resolution.history import HistoryReads, TenantReads
from server.input_resolution.prompt_templates import read_request
from server.input_resolution.resolve_input import ResolvedInput
from server.limits.request_cost import refuse_prompt_logprobs, refuse_urgent, share_logprobs
from server.limits.storage_quota import StorageQuota
from server.prompting.engine_refusals import refusal
from server.prompting.engine_request import check, prepare
from server.prompting.loaded_model import LoadedModel
from server.prompting.next_turn import TurnBuilder
from server.prompting.unsupported_parameters import refuse_unserved
from server.protocol.ids import choice_id, new_uuid
from server.protocol.responses.events import Event
from server.protocol.responses.input import Given
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.recording.recorder import Recorder
from server.store.database import Connection, Database
from server.store.disk_space import Disk
from server.tool_loop import ToolLoop

MOST_CHANGES = 5
"""How often a conversation may change between reading it and going on with it."""


class Admission:
    """The way in. `close` stops it for good."""

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
    ) -> None:
        self._served = served
        self._database = database
        self._recorder = recorder
        self._hub = hub
        self._disk = disk
        self._config = config
        self._on_queued, self._unread = on_queued, unread
        self._tool_loop = tool_loop
        self._acceptance = ResponseWriter(served, replica, config)
        self.history = HistoryReads()
        self.storage = StorageQuota.of(config, database)
        self._closed = threading.Event()

    @property
    def open(self) -> bool:
        return not self._closed.is_set()

    def close(self) -> None:
        """Refuses whatever comes from now on."""
        self._closed.set()

    def admit(
        self,
        caller: Caller,
        request: CreateResponse,
        repeatable: IdempotencyKey | None = None,
        given: Sequence[Given] | None = None,
        *,
        held: Sequence[Item] | None = None,
        generate: bool = True,
    ) -> AcceptedResponse:
        """Begins a response, or finds the one that this request began when it was sent before.

        `given` stands for the request's input where that came in another form. `held` is everything up to the
        end of the previous response, where that is not in the store. One that does not `generate` completes
        without output once the model has read its prompt.

        Raises ApiError or DecodeFailure, or NotReady, and then nothing has happened.
        """
        (admitted,) = self.admit_all(caller, [request], repeatable, given, held=held, generate=generate)
        return admitted

    def admit_all(
        self,
        caller: Caller,
        requests: Sequence[CreateResponse],
        repeatable: IdempotencyKey | None,
        given: Sequence[Given] | None,
        *,
        held: Sequence[Item] | None = None,
        generate: bool = True,
    ) -> list[AcceptedResponse]:
        """Begins the responses that one request of a client asks for, all of them in one transaction.

        Their ids follow from the first one's, which is what an idempotency key leads to. Only one that is
        alone may have its input within it.
        """
        if self._closed.is_set():
            raise Overloaded("The server is shutting down.")
        find_before = partial(
            find_previous_attempt, self._database, self._hub, caller, repeatable, len(requests)
        )
        if before := find_before():
            return before
        if self._disk.shortage() is not None:
            raise StorageFull
        requests = [with_generation_config(request, "max_output_tokens") for request in requests]
        for request in requests:
            refuse_unserved(request, self._served)
            refuse_urgent(caller, request)
            if request.store is not False or request.background:
                self.storage.check(caller)
        if not requests[0].background:
            self._recorder.capacity.check(caller.tenant, caller.key_id, len(requests))
        if given is None:
            alone, given = read_request(self._database, caller.tenant, *requests)
            requests = [alone]
        try:
            return self._begin_prepared(
                partial(self._prepare_all, caller, requests, repeatable, given, held, generate)
            )
        except (KeyTaken, ConversationLocked) as refused:
            if before := find_before():
                return before
            if isinstance(refused, ConversationLocked):
                raise
            raise Conflict("Another request used this Idempotency-Key; try again.") from None

    def _begin_prepared(self, prepare: Callable[[], list[NewRun]]) -> list[AcceptedResponse]:
        """Prepares anew where the conversation has changed since it was read."""
        for _ in range(MOST_CHANGES):
            prepared = prepare()
            with suppress(ConversationChanged):
                return self._begin(prepared)
        raise ConversationLocked

    def _prepare_all(
        self,
        caller: Caller,
        requests: Sequence[CreateResponse],
        repeatable: IdempotencyKey | None,
        given: Sequence[Given],
        held: Sequence[Item] | None,
        generate: bool,
    ) -> list[NewRun]:
        """Those behind the first are choices of the same completion."""
        first = new_uuid()
        begun = self._prepare(caller, requests[0], first, repeatable, given, held, generate, len(requests))
        prepared = [begun]
        for index, request in enumerate(requests[1:], 1):
            response = choice_id(first, index)
            found = context_of(response, begun.found)
            prepared.append(
                another_choice(request, response, found, prepared[-1])
                if has_prompt_of(request, requests[index - 1])
                else self._prepare_with(caller, request, response, None, found, generate, len(requests))
            )
        refuse_prompt_logprobs([new.prepared.engine_request for new in prepared])
        return prepared

    def _prepare(
        self,
        caller: Caller,
        request: CreateResponse,
        response: UUID,
        repeatable: IdempotencyKey | None,
        given: Sequence[Given],
        held: Sequence[Item] | None,
        generate: bool,
        choices: int,
    ) -> NewRun:
        with self.history.of(caller.tenant) as reads:
            found = self._gather(caller, request, response, given, held, reads)
            return self._prepare_with(caller, request, response, repeatable, found, generate, choices)

    def _gather(
        self,
        caller: Caller,
        request: CreateResponse,
        response: UUID,
        given: Sequence[Given],
        held: Sequence[Item] | None,
        reads: TenantReads,
    ) -> ResolvedInput:
        def gather(connection: Connection) -> ResolvedInput:
            reads.start_over()
            if request.background:
                self._acceptance.queue.check(connection, caller)
            return resolve_input.resolve_input(
                connection,
                caller.tenant,
                request,
                given,
                response,
                self._served.seal,
                held,
                reserve=reads.reserve,
            )

        return self._database.read(gather)

    def _prepare_with(
        self,
        caller: Caller,
        request: CreateResponse,
        response: UUID,
        repeatable: IdempotencyKey | None,
        found: ResolvedInput,
        generate: bool,
        choices: int,
    ) -> NewRun:
        wanted, access = list_tools(self._tool_loop.servers, caller, request, found.items)
        seed = seed_of(wanted)
        begin = prepare_first if generate else prepare
        prepared = begin(self._served, caller.tenant, wanted, found.items, response, seed)
        if not generate:
            prepared = prepared.read_only()
        prepared = replace(prepared, engine_request=share_logprobs(prepared.engine_request, wanted, choices))
        check(self._served.engine, prepared, wanted)
        return NewRun(
            caller=caller,
            request=wanted,
            response=response,
            prepared=prepared,
            found=found,
            turns=TurnBuilder(
                served=self._served,
                tenant=caller.tenant,
                request=wanted,
                items=found.items,
                response=response,
                seed=seed,
                access=access,
                sums_up=prepared.sums_up,
            ),
            repeatable=repeatable,
        )

    def _begin(self, prepared: Sequence[NewRun]) -> list[AcceptedResponse]:
        echo = prepared[0].prepared.echo
        if echo.background:
            channels = [self._hub.watch(new.caller.tenant, new.response) for new in prepared]
            begun = self._accept(prepared)
            self._on_queued()
            return [self._watch(*one, channel) for one, channel in zip(begun, channels, strict=True)]
        begun = self._begin_reserved(prepared)
        refused: list[ApiError] = []
        admitted = [
            self._hand_over(run, new, first, refused)
            for new, (run, first) in zip(prepared, begun, strict=True)
        ]
        if refused:
            for one in admitted:
                self._tool_loop.cancel(one.id)
            raise refused[0]
        return admitted

    def _watch(self, run: Run, begun: Sequence[Event], channel: Channel) -> AcceptedResponse:
        self._hub.begin_at(channel, len(begun))
        return AcceptedResponse(
            run.facts.id, channel, begun=FramePage(frames(run.facts.id, begun), ended=False)
        )

    def _begin_reserved(self, prepared: Sequence[NewRun]) -> list[StoredStart]:
        """Begins responses that run here, once there is room for all of them.

        They are counted as this replica's from before they are written: whoever looks after lost responses
        must know that these are none.
        """
        caller, ids = prepared[0].caller, [new.response for new in prepared]
        self._recorder.capacity.reserve(caller.tenant, caller.key_id, ids)
        try:
            if prepared[0].prepared.echo.has_row:
                return self._accept(prepared)
            now = self._database.retry(
                lambda connection: self._acceptance.begin_unstored(connection, prepared)
            )
            runs = [self._acceptance.make_run(new, now) for new in prepared]
            return [(run, run.accept() + run.start()) for run in runs]
        except BaseException:
            for response in ids:
                self._recorder.release(response)
            raise

    def _accept(self, prepared: Sequence[NewRun]) -> list[StoredStart]:
        """Writes the responses, their input and their first events."""
        tries = itertools.count()

        def write(connection: Connection) -> list[StoredStart]:
            again = next(tries) > 0
            return [self._acceptance.write(connection, new, again=again) for new in prepared]

        begun = self._database.retry(write)
        crashpoint("accept.committed")
        return begun

    def _hand_over(
        self, run: Run, new: NewRun, begun: Sequence[Event], refused: list[ApiError]
    ) -> AcceptedResponse:
        """Gives the response to the engine.

        The engine has room for what is reserved. Should it refuse all the same, as one that has just died
        does, the response fails and the error is added to `refused`, to be answered.
        """
        response = run.facts.id
        if new.turns.may_follow:
            self._tool_loop.register(new.turns)
        channel = self._hub.open(
            response,
            stored=run.stored,
            grace=self._config.grace_seconds,
            on_abandoned=partial(self._unread.add if run.stored else self._tool_loop.cancel, response),
        )
        self._hub.publish([Published(response, 0, frames(response, begun), None)])
        at_calls = run.next_step_is_tools  # asked before another thread has it
        self._recorder.start_run(run)
        crashpoint("accept.begun")
        if not at_calls:
            try:
                self._served.engine.submit(new.prepared.engine_request)
            except RequestRefused as error:
                self._recorder.fail_run(response, "The server could not take this response; try again.")
                refused.append(refusal(error, new.request))
        crashpoint("accept.submitted")
        return AcceptedResponse(response, channel, [*new.found.history, *new.found.new])
