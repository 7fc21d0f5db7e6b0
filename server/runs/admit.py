"""Accepting a response: checked, written down in one transaction, handed to the engine or to the queue.

Runs in a handler's thread and waits for no token. Everything that can be wrong with a request is found before
the row exists; once it does, the response reaches a terminal status.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import msgspec

from engine.messages import JobRefused
from server.auth import Caller
from server.config import Config
from server.crashpoints import crashpoint
from server.errors import Conflict, ConversationLocked, Overloaded, StorageFull, UnknownModel
from server.runs import context
from server.runs.condense import first_reading, prepare_first
from server.runs.context import Context
from server.runs.conversations import hold
from server.runs.lifetime import lifetime
from server.runs.listing import list_tools
from server.runs.prepare import Prepared, Served, check, prepare
from server.runs.prompts import read_request
from server.runs.recorder import Recorder
from server.runs.repeats import Admitted, Repeatable, sent_before
from server.runs.run import Run, RunFacts
from server.runs.tool_loop import ToolLoop
from server.runs.turns import Turns
from server.runs.unread import Unread
from server.runs.unsupported import refuse_unsupported
from server.runs.writing import stored_item
from server.store import events, idempotency, ownership, responses
from server.store.database import Connection, Database, clock
from server.store.disk import Disk
from server.store.responses import NewResponse
from server.stream.frames import frames
from server.stream.hub import Channel, Hub, Published
from server.stream.sse import Stored
from server.wire.asked import ChoiceRequest
from server.wire.events import Event
from server.wire.ids import choice_id, new_uuid
from server.wire.input import Given
from server.wire.items import Item
from server.wire.request import CreateResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class _New:
    """A response about to be accepted."""

    caller: Caller
    request: CreateResponse
    response: UUID
    prepared: Prepared
    found: Context
    turns: Turns
    repeatable: Repeatable | None


_Begun = tuple[Run, list[Event]]
"""A run, and the events that exist from the response's acceptance on."""


class _UsedBefore(Exception):
    """Another request with the same key was accepted in the meantime."""


class _Changed(Exception):
    """The conversation is not the one any more that the prompt was made of."""


MOST_CHANGES = 5
"""How often a conversation may change between reading it and going on with it."""


class Admission:
    """The way in. `close` stops it for good."""

    def __init__(
        self,
        served: Served,
        database: Database,
        replica: UUID,
        recorder: Recorder,
        hub: Hub,
        disk: Disk,
        config: Config,
        *,
        tool_loop: ToolLoop,
        on_queued: Callable[[], None],
        unread: Unread,
    ) -> None:
        self._served = served
        self._database = database
        self._replica = replica
        self._recorder = recorder
        self._hub = hub
        self._disk = disk
        self._config = config
        self._on_queued, self._unread = on_queued, unread
        self._tool_loop = tool_loop
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
        repeatable: Repeatable | None = None,
        given: Sequence[Given] | None = None,
        *,
        held: Sequence[Item] | None = None,
        generate: bool = True,
    ) -> Admitted:
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
        repeatable: Repeatable | None,
        given: Sequence[Given] | None,
        *,
        held: Sequence[Item] | None = None,
        generate: bool = True,
    ) -> list[Admitted]:
        """Begins the responses that one request of a client asks for, all of them in one transaction.

        Their ids follow from the first one's, which is what an idempotency key leads to. Only one that is
        alone may have its input within it.
        """
        if self._closed.is_set():
            raise Overloaded("The server is shutting down.")
        find_before = partial(sent_before, self._database, self._hub, caller, repeatable, len(requests))
        if before := find_before():
            return before
        if self._disk.shortage() is not None:
            raise StorageFull
        for request in requests:
            refuse_unsupported(request)
            if request.model not in self._served.names:
                raise UnknownModel(request.model, self._served.names)
        if given is None:
            alone, given = read_request(self._database, caller.tenant, *requests)
            requests = [alone]
        try:
            return self._begin_prepared(
                partial(self._prepare_all, caller, requests, repeatable, given, held, generate)
            )
        except (_UsedBefore, ConversationLocked) as refused:
            if before := find_before():
                return before
            if isinstance(refused, ConversationLocked):
                raise
            raise Conflict("Another request used this Idempotency-Key; try again.") from None

    def _begin_prepared(self, prepare: Callable[[], list[_New]]) -> list[Admitted]:
        """Prepares anew where the conversation has changed since it was read."""
        for _ in range(MOST_CHANGES):
            prepared = prepare()
            with suppress(_Changed):
                return self._begin(prepared)
        raise ConversationLocked

    def _prepare_all(
        self,
        caller: Caller,
        requests: Sequence[CreateResponse],
        repeatable: Repeatable | None,
        given: Sequence[Given],
        held: Sequence[Item] | None,
        generate: bool,
    ) -> list[_New]:
        first = new_uuid()
        return [
            self._prepare(
                caller,
                request,
                choice_id(first, index),
                repeatable if index == 0 else None,
                given,
                held,
                generate,
            )
            for index, request in enumerate(requests)
        ]

    def _prepare(
        self,
        caller: Caller,
        request: CreateResponse,
        response: UUID,
        repeatable: Repeatable | None,
        given: Sequence[Given],
        held: Sequence[Item] | None,
        generate: bool,
    ) -> _New:
        found = self._database.read(
            lambda connection: context.gather(
                connection, caller.tenant, request, given, response, self._served.seal, held
            )
        )
        if request.background:
            self._refuse_too_many_queued()
        request, access = list_tools(self._tool_loop.servers, caller, request, found.items)
        seed = request.seed if request.seed is not None else secrets.randbits(63)
        begin = prepare_first if generate else prepare
        prepared = begin(self._served, caller.tenant, request, found.items, response, seed)
        if not generate:
            prepared = prepared.read_only()
        check(self._served.engine, prepared, request)
        return _New(
            caller=caller,
            request=request,
            response=response,
            prepared=prepared,
            found=found,
            turns=Turns(
                served=self._served,
                tenant=caller.tenant,
                request=request,
                items=found.items,
                response=response,
                seed=seed,
                access=access,
                sums_up=prepared.sums_up,
            ),
            repeatable=repeatable,
        )

    def _refuse_too_many_queued(self) -> None:
        most = self._config.max_queued
        if self._database.ask(lambda connection: ownership.waiting(connection, most)) >= most:
            raise Overloaded("Too many background responses are waiting; try again later.")

    def _begin(self, prepared: Sequence[_New]) -> list[Admitted]:
        echo = prepared[0].prepared.echo
        if not echo.store:
            begun = self._begin_unstored(prepared)
        elif echo.background:
            channels = [self._hub.watch(new.caller.tenant, new.response) for new in prepared]
            begun = self._accept(prepared)
            self._on_queued()
            return [self._watch(*one, channel) for one, channel in zip(begun, channels, strict=True)]
        else:
            begun = self._accept_running(prepared)
        return [self._hand_over(run, new, first) for new, (run, first) in zip(prepared, begun, strict=True)]

    def _watch(self, run: Run, begun: Sequence[Event], channel: Channel) -> Admitted:
        self._hub.begin_at(channel, len(begun))
        return Admitted(run.facts.id, channel, begun=Stored(frames(run.facts.id, begun), ended=False))

    def _begin_unstored(self, prepared: Sequence[_New]) -> list[_Begun]:
        def claim_key(connection: Connection) -> datetime:
            self._claim_key(connection, prepared[0])
            return clock(connection)

        now = self._database.retry(claim_key)
        runs = [self._make_run(new, now) for new in prepared]
        return [(run, run.begin() + run.start()) for run in runs]

    def _accept_running(self, prepared: Sequence[_New]) -> list[_Begun]:
        """Held from their first moment: whoever looks after lost responses must know that these are none."""
        for new in prepared:
            self._recorder.expect(new.response)
        try:
            return self._accept(prepared)
        except BaseException:
            for new in prepared:
                self._recorder.forget(new.response)
            raise

    def _accept(self, prepared: Sequence[_New]) -> list[_Begun]:
        """Writes the responses, their input and their first events."""
        begun = self._database.retry(lambda connection: [self._write(connection, new) for new in prepared])
        crashpoint("accept.committed")
        return begun

    def _write(self, connection: Connection, new: _New) -> _Begun:
        """May be run again: a first try whose commit was not heard of has written it all, or nothing."""
        tenant = new.caller.tenant
        written = responses.get(connection, tenant, new.response)
        created_at = written.created_at if written else self._insert(connection, new)
        run = self._make_run(new, created_at)
        begun = run.begin() if run.facts.echo.background else run.begin() + run.start()
        if written is None:
            responses.insert_items(
                connection,
                tenant,
                new.response,
                responses.INPUT,
                [stored_item(item) for item in new.found.new],
            )
            events.append(connection, events.pack(tenant, new.response, run.facts.attempt, begun, []))
        crashpoint("accept.written")
        return run, begun

    def _insert(self, connection: Connection, new: _New) -> datetime:
        self._claim_key(connection, new)
        # Its history was read a moment ago; from here on it cannot be deleted under its next turn.
        if new.found.previous and not responses.hold(connection, new.caller.tenant, new.found.previous):
            raise context.unknown_previous(new.request.previous_response_id or "")
        if standing := new.found.conversation:
            held = hold(connection, new.caller.tenant, standing.id)
            if held.next_position != standing.next_position:
                raise _Changed
        row = _row(new, lifetime(new.request, self._config.retention_days))
        if row.background:
            return responses.insert_queued(connection, row)
        return responses.insert_running(connection, row, self._replica)

    def _claim_key(self, connection: Connection, new: _New) -> None:
        given = new.repeatable
        if given and not idempotency.claim(
            connection, new.caller.tenant, given.key, given.digest, new.response
        ):
            raise _UsedBefore

    def _make_run(self, new: _New, created_at: datetime) -> Run:
        facts = RunFacts(
            tenant=new.caller.tenant,
            id=new.response,
            key_id=new.caller.key_id,
            echo=new.prepared.echo,
            created_at=created_at,
            attempt=0 if new.prepared.echo.background else 1,
            prompt_tokens=len(new.prepared.prompt.token_ids),
            generates=new.prepared.generates,
        )
        return Run(
            facts, first_reading(self._served, facts.tenant, new.request, new.prepared, new.turns.items)
        )

    def _hand_over(self, run: Run, new: _New, begun: Sequence[Event]) -> Admitted:
        response = run.facts.id
        if new.turns.may_follow:
            self._tool_loop.expect(new.turns)
        channel = self._hub.open(
            response,
            stored=run.stored,
            grace=self._config.grace_seconds,
            on_abandoned=partial(self._unread.left if run.stored else self._tool_loop.cancel, response),
        )
        self._hub.publish([Published(response, 0, frames(response, begun), None)])
        at_calls = run.waits_for_calls  # asked before another thread has it
        self._recorder.begin(run)
        crashpoint("accept.begun")
        if not at_calls:
            try:
                self._served.engine.submit(new.prepared.job)
            except JobRefused:
                self._recorder.fail(response, "The server is overloaded; try again later.")
        crashpoint("accept.submitted")
        return Admitted(response, channel, [*new.found.history, *new.found.new])


def _row(new: _New, kept: timedelta | None) -> NewResponse:
    echo = new.prepared.echo
    asked = msgspec.structs.replace(new.request, input="", instructions=None)
    return NewResponse(
        tenant=new.caller.tenant,
        id=new.response,
        previous_id=new.found.previous,
        conversation_id=new.found.conversation.id if new.found.conversation else None,
        stream=bool(new.request.stream),
        background=echo.background,
        model=echo.model,
        priority=0,
        seed=new.prepared.job.sampling.seed,
        prompt_hash=new.prepared.prompt_hash,
        key_id=new.caller.key_id,
        request=msgspec.json.encode(echo).decode(),
        asked=msgspec.json.encode(asked).decode(),
        metadata=msgspec.json.encode(echo.metadata).decode(),
        choice=new.request.choice if isinstance(new.request, ChoiceRequest) else None,
        lifetime=kept,
    )
