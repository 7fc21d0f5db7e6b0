"""Writes accepted responses down: the row, the input items and the first events, in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from server.admission.idempotency import IdempotencyKey
from server.caller import Caller
from server.compaction.inline import first_reading
from server.configuration.settings import Config
from server.crashpoints import crashpoint
from server.generation.run import Run, RunFacts
from server.input_resolution import resolve_input
from server.input_resolution.conversations import hold
from server.input_resolution.history import stored_item
from server.input_resolution.resolve_input import ResolvedInput
from server.limits.background_queue import QueueLimits
from server.prompting.engine_request import Prepared
from server.prompting.loaded_model import LoadedModel
from server.prompting.next_turn import TurnBuilder
from server.protocol.completions.shared_parameters import ChoiceRequest
from server.protocol.responses.events import Event
from server.protocol.responses.request import CreateResponse
from server.recording.expiry import lifetime
from server.store.content import idempotency_keys, responses
from server.store.content.responses import NewResponse
from server.store.database import Connection, clock
from server.store.log import events


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A response about to be accepted."""

    caller: Caller
    request: CreateResponse
    response: UUID
    prepared: Prepared
    found: ResolvedInput
    turns: TurnBuilder
    repeatable: IdempotencyKey | None


StoredStart = tuple[Run, list[Event]]
"""A run, and the events that exist from the response's acceptance on."""


class KeyTaken(Exception):
    """Another request with the same key was accepted in the meantime."""


class ConversationChanged(Exception):
    """The conversation is not the one any more that the prompt was made of."""


class ResponseWriter:
    """What the accept transaction does. Any thread."""

    def __init__(self, served: LoadedModel, replica: UUID, config: Config) -> None:
        self._served = served
        self._replica = replica
        self._retention_days = config.retention_days
        self.queue = QueueLimits.of(config)

    def begin_unstored(self, connection: Connection, prepared: Sequence[NewRun]) -> datetime:
        """Claims the idempotency key of responses that are not stored; the time. Raises KeyTaken."""
        self._claim_key(connection, prepared[0])
        return clock(connection)

    def write(self, connection: Connection, new: NewRun, *, again: bool) -> StoredStart:
        """`again` says that it was tried before: if that was committed unheard of, all of it is written."""
        tenant = new.caller.tenant
        written = responses.get(connection, tenant, new.response) if again else None
        created_at = written.created_at if written else self._insert(connection, new)
        run = self.make_run(new, created_at)
        begun = run.begin() if run.facts.echo.background else run.begin() + run.start()
        if written is None:
            responses.insert_items(
                connection,
                tenant,
                new.response,
                responses.INPUT,
                [stored_item(item) for item in new.found.new],
            )
            events.append(connection, events.encode_rows(tenant, new.response, run.facts.attempt, begun, []))
        crashpoint("accept.written")
        return run, begun

    def _insert(self, connection: Connection, new: NewRun) -> datetime:
        if new.prepared.echo.background:
            self.queue.check(connection, new.caller)
        self._claim_key(connection, new)
        # Its history was read a moment ago; from here on it cannot be deleted under its next turn.
        if new.found.previous and not responses.lock_for_share(
            connection, new.caller.tenant, new.found.previous
        ):
            raise resolve_input.unknown_previous(new.request.previous_response_id or "")
        if standing := new.found.conversation:
            held = hold(connection, new.caller.tenant, standing.id)
            if held.next_position != standing.next_position:
                raise ConversationChanged
        row = _row(new, lifetime(new.request, self._retention_days))
        if row.background:
            return responses.insert_queued(connection, row)
        return responses.insert_running(connection, row, self._replica)

    def _claim_key(self, connection: Connection, new: NewRun) -> None:
        given = new.repeatable
        if given and not idempotency_keys.claim(
            connection, new.caller.tenant, given.key, given.digest, new.response
        ):
            raise KeyTaken

    def make_run(self, new: NewRun, created_at: datetime) -> Run:
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


def _row(new: NewRun, kept: timedelta | None) -> NewResponse:
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
        priority=new.prepared.engine_request.priority,
        seed=new.prepared.engine_request.sampling.seed,
        prompt_hash=new.prepared.prompt_hash,
        key_id=new.caller.key_id,
        request=msgspec.json.encode(echo).decode(),
        asked=msgspec.json.encode(asked).decode(),
        metadata=msgspec.json.encode(echo.metadata).decode(),
        choice=new.request.choice if isinstance(new.request, ChoiceRequest) else None,
        lifetime=kept,
    )
