"""`Admission.admit`: a request is checked, prepared, accepted in one transaction and submitted to the engine.

Runs in a handler's thread and does not wait for tokens. A request is refused before its row is committed;
after the commit the response reaches a terminal status in any case.
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
from server.admission.chat_choices import input_of_choice, run_of_choice, seed_of, shares_prompt
from server.admission.generation_config import with_generation_config
from server.admission.idempotency import AcceptedResponse, IdempotencyKey, find_previous_attempt
from server.caller import Caller
from server.compaction.inline import prepare_with_compaction
from server.configuration.settings import Config
from server.crashpoints import crashpoint
from server.delivery.frames import (
    FramePage,
    frames,
)
from server.delivery.hub import Abandonment, Channel, Hub, Published
from server.errors import ApiError, Conflict, ConversationLocked, Overloaded, StorageFull
from server.generation.run import Run
from server.hosted_tools.mcp_discovery import discover_tools
from server.input_resolution import resolve_input
from server.input_resolution.history import HistoryReads
from server.input_resolution.prompt_templates import read_templated_input
from server.input_resolution.resolve_input import ResolvedInput
from server.limits.request_cost import check_priority, check_prompt_logprobs, limit_logprobs
from server.limits.storage_quota import StorageQuota
from server.prompting.engine_refusals import refusal
from server.prompting.engine_request import check_runnable, prepare
from server.prompting.loaded_model import LoadedModel
from server.prompting.next_turn import TurnBuilder
from server.prompting.resolved_request import ResolvedRequest
from server.prompting.unsupported_parameters import validate_request
from server.protocol.ids import choice_id, new_uuid
from server.protocol.responses.events import Event
from server.protocol.responses.input import InputItem
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.recording.recorder import Recorder
from server.store.database import Connection, Database
from server.store.disk_space import Disk
from server.tool_loop import ToolLoop

MAX_CONVERSATION_RETRIES = 5
"""Attempts at a response in a conversation that others change between the read and the accept transaction."""


class Admission:
    """Accepts responses until `close`."""

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
        self._on_queued = on_queued
        self._abandonment = unread
        self._tool_loop = tool_loop
        self._writer = ResponseWriter(served, replica, config)
        self.history = HistoryReads()
        self.storage = StorageQuota.from_config(config, database)
        self._closed = threading.Event()

    @property
    def open(self) -> bool:
        return not self._closed.is_set()

    def close(self) -> None:
        """Refuse every later request."""
        self._closed.set()

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
        if self._closed.is_set():
            raise Overloaded("The server is shutting down.")
        find_previous = partial(
            find_previous_attempt, self._database, self._hub, caller, idempotency_key, len(requests)
        )
        if previous := find_previous():
            return previous
        if self._disk.shortage() is not None:
            raise StorageFull
        requests = [with_generation_config(request, "max_output_tokens") for request in requests]
        for request in requests:
            validate_request(request, self._served)
            check_priority(caller, request)
            if request.store is not False or request.background:
                self.storage.check(caller)
        if not requests[0].background:
            self._recorder.capacity.check(caller.tenant, caller.key_id, len(requests))
        if input_items is None:
            request, input_items = read_templated_input(self._database, caller.tenant, *requests)
            requests = [request]
        try:
            return self._start_prepared(
                partial(
                    self._prepare_all, caller, requests, idempotency_key, input_items, prior_items, generate
                )
            )
        except (KeyTaken, ConversationLocked) as refused:
            if previous := find_previous():
                return previous
            if isinstance(refused, ConversationLocked):
                raise
            raise Conflict("Another request used this Idempotency-Key; try again.") from None

    def _start_prepared(self, prepare_all: Callable[[], list[NewRun]]) -> list[AcceptedResponse]:
        """Prepare and start, again if the conversation has changed in between."""
        for _ in range(MAX_CONVERSATION_RETRIES):
            new = prepare_all()
            with suppress(ConversationChanged):
                return self._start(new)
        raise ConversationLocked

    def _prepare_all(
        self,
        caller: Caller,
        requests: Sequence[CreateResponse],
        idempotency_key: IdempotencyKey | None,
        input_items: Sequence[InputItem],
        prior_items: Sequence[Item] | None,
        generate: bool,
    ) -> list[NewRun]:
        """The runs of one completion's choices, which all have the first one's input."""
        first_id = new_uuid()
        first = self._prepare(
            caller, requests[0], first_id, idempotency_key, input_items, prior_items, generate, len(requests)
        )
        prepared = [first]
        for index, request in enumerate(requests[1:], 1):
            response = choice_id(first_id, index)
            resolved_input = input_of_choice(response, first.resolved_input)
            prepared.append(
                run_of_choice(request, response, resolved_input, prepared[-1])
                if shares_prompt(request, requests[index - 1])
                else self._prepare_with(
                    caller, request, response, None, resolved_input, generate, len(requests)
                )
            )
        check_prompt_logprobs([new.prepared.engine_request for new in prepared])
        return prepared

    def _prepare(
        self,
        caller: Caller,
        request: CreateResponse,
        response: UUID,
        idempotency_key: IdempotencyKey | None,
        input_items: Sequence[InputItem],
        prior_items: Sequence[Item] | None,
        generate: bool,
        choices: int,
    ) -> NewRun:
        def resolve(connection: Connection) -> ResolvedInput:
            reads.start_over()
            if request.background:
                self._writer.queue.check(connection, caller)
            return resolve_input.resolve_input(
                connection,
                caller.tenant,
                request,
                input_items,
                response,
                self._served.seal,
                prior_items,
                reserve=reads.reserve,
            )

        with self.history.for_request(caller.tenant) as reads:
            resolved_input = self._database.read(resolve)
            return self._prepare_with(
                caller, request, response, idempotency_key, resolved_input, generate, choices
            )

    def _prepare_with(
        self,
        caller: Caller,
        request: CreateResponse,
        response: UUID,
        idempotency_key: IdempotencyKey | None,
        resolved_input: ResolvedInput,
        generate: bool,
        choices: int,
    ) -> NewRun:
        items = resolved_input.items
        request, tools, credentials = discover_tools(self._tool_loop.servers, caller, request, items)
        resolved = ResolvedRequest(
            tenant=caller.tenant,
            request=request,
            tools=tools,
            items=items,
            response=response,
            seed=seed_of(request),
        )
        if generate and request.context_management:
            prepared = prepare_with_compaction(self._served, resolved, request.context_management)
        else:
            prepared = prepare(self._served, resolved)
        if not generate:
            prepared = prepared.without_output()
        prepared = replace(prepared, engine_request=limit_logprobs(prepared.engine_request, request, choices))
        check_runnable(self._served.engine, prepared, request)
        return NewRun(
            caller=caller,
            resolved=resolved,
            resolved_input=resolved_input,
            prepared=prepared,
            turns=TurnBuilder(
                served=self._served,
                resolved=resolved,
                credentials=credentials,
                model_writes_summary=prepared.model_writes_summary,
            ),
            idempotency_key=idempotency_key,
        )

    def _start(self, prepared: Sequence[NewRun]) -> list[AcceptedResponse]:
        if prepared[0].prepared.echo.background:
            channels = [self._hub.watch(new.caller.tenant, new.response) for new in prepared]
            accepted = self._accept(prepared)
            self._on_queued()
            return [self._watch(*one, channel) for one, channel in zip(accepted, channels, strict=True)]
        refused: list[ApiError] = []
        started = [
            self._submit(run, new, first_events, refused)
            for new, (run, first_events) in zip(prepared, self._accept_here(prepared), strict=True)
        ]
        if refused:
            for one in started:
                self._tool_loop.cancel(one.id)
            raise refused[0]
        return started

    def _watch(self, run: Run, first_events: Sequence[Event], channel: Channel) -> AcceptedResponse:
        self._hub.begin_at(channel, len(first_events))
        return AcceptedResponse(
            run.facts.id, channel, begun=FramePage(frames(run.facts.id, first_events), ended=False)
        )

    def _accept_here(self, prepared: Sequence[NewRun]) -> list[StoredStart]:
        """Accept foreground responses, which this replica runs, if it has capacity for all of them.

        They are reserved before the commit: a stored response of this replica that is not counted here is
        taken for a lost one.
        """
        caller, ids = prepared[0].caller, [new.response for new in prepared]
        self._recorder.capacity.reserve(caller.tenant, caller.key_id, ids)
        try:
            if prepared[0].prepared.echo.has_row:
                return self._accept(prepared)
            now = self._database.retry(lambda connection: self._writer.accept_unstored(connection, prepared))
            runs = [self._writer.make_run(new, now) for new in prepared]
            return [(run, run.accept() + run.start()) for run in runs]
        except BaseException:
            for response in ids:
                self._recorder.capacity.discard(response)
            raise

    def _accept(self, prepared: Sequence[NewRun]) -> list[StoredStart]:
        """Commit the responses with their input and first events."""
        attempts = itertools.count()

        def write(connection: Connection) -> list[StoredStart]:
            again = next(attempts) > 0
            return [self._writer.write(connection, new, again=again) for new in prepared]

        accepted = self._database.retry(write)
        crashpoint("accept.committed")
        return accepted

    def _submit(
        self, run: Run, new: NewRun, first_events: Sequence[Event], refused: list[ApiError]
    ) -> AcceptedResponse:
        """Give an accepted response to the recorder and the engine.

        The engine has room for reserved responses. It may still refuse, as one that has just died does; then
        the response fails and the error is appended to `refused`.
        """
        response = run.facts.id
        if new.turns.may_have_next_turn:
            self._tool_loop.register(new.turns)
        channel = self._hub.open(
            response,
            stored=run.stored,
            grace=self._config.grace_seconds,
            on_abandoned=partial(self._abandonment.add if run.stored else self._tool_loop.cancel, response),
        )
        self._hub.publish([Published(response, 0, frames(response, first_events), None)])
        waits_for_calls = run.next_step_is_tools  # read before the recorder's thread owns the run
        self._recorder.start_run(run)
        crashpoint("accept.begun")
        if not waits_for_calls:
            try:
                self._served.engine.submit(new.prepared.engine_request)
            except RequestRefused as error:
                self._recorder.fail_run(response, "The server could not take this response; try again.")
                refused.append(refusal(error, new.resolved.request))
        crashpoint("accept.submitted")
        return AcceptedResponse(response, channel, new.resolved_input.items)
