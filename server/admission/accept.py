"""The accept transaction: a response's row, input items, first events and idempotency key."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from server.admission.idempotency import IdempotencyKey
from server.caller import Caller
from server.configuration.settings import Config
from server.crashpoints import crashpoint
from server.generation.run import Run, RunFacts
from server.input_resolution import resolve_input
from server.input_resolution.conversations import lock_conversation
from server.input_resolution.history import stored_item
from server.input_resolution.resolve_input import ResolvedInput
from server.limits.background_queue import QueueLimits
from server.prompting.engine_request import Prepared, first_decoding_spec
from server.prompting.loaded_model import LoadedModel
from server.prompting.next_turn import TurnBuilder
from server.prompting.resolved_request import ResolvedRequest
from server.protocol.completions.requests import ChoiceRequest
from server.protocol.responses.events import Event
from server.recording.persist import lifetime
from server.store import log_append
from server.store.content import idempotency_keys, responses, stored_items
from server.store.content.responses import NewResponse
from server.store.database import Connection, clock


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A response that is prepared and not accepted yet."""

    caller: Caller
    resolved: ResolvedRequest
    resolved_input: ResolvedInput
    prepared: Prepared
    turns: TurnBuilder
    idempotency_key: IdempotencyKey | None

    @property
    def response(self) -> UUID:
        return self.resolved.response


StoredStart = tuple[Run, list[Event]]
"""A run and its first events, which are committed with the response's row."""


class KeyTaken(Exception):
    """Another request claimed the same idempotency key in the meantime."""


class ConversationChanged(Exception):
    """Items were added to the conversation after the prompt was made from it."""


class ResponseWriter:
    """The statements of the accept transaction. Any thread."""

    def __init__(self, served: LoadedModel, replica: UUID, config: Config) -> None:
        self._served = served
        self._replica = replica
        self._retention_days = config.retention_days
        self.queue = QueueLimits.from_config(config)

    def accept_unstored(self, connection: Connection, new: Sequence[NewRun]) -> datetime:
        """Claim the idempotency key of `store: false` responses; returns their time. Raises KeyTaken."""
        self._claim_key(connection, new[0])
        return clock(connection)

    def write(self, connection: Connection, new: NewRun, *, again: bool) -> StoredStart:
        """Write one response. `again` marks a retry: an earlier commit that was not confirmed is looked up.

        Raises KeyTaken, ConversationChanged and ApiError.
        """
        tenant = new.caller.tenant
        stored = responses.get(connection, tenant, new.response) if again else None
        created_at = stored.created_at if stored else self._insert(connection, new)
        run = self.make_run(new, created_at)
        first_events = run.accept() if run.facts.echo.background else run.accept() + run.start()
        if stored is None:
            input_items = [stored_item(item) for item in new.resolved_input.new]
            stored_items.insert_items(connection, tenant, new.response, stored_items.INPUT, input_items)
            batch = log_append.encode_rows(tenant, new.response, run.facts.attempt, first_events, [])
            log_append.append(connection, batch)
        crashpoint("accept.written")
        return run, first_events

    def _insert(self, connection: Connection, new: NewRun) -> datetime:
        tenant, resolved_input = new.caller.tenant, new.resolved_input
        if new.prepared.echo.background:
            self.queue.check(connection, new.caller)
        self._claim_key(connection, new)
        # The history was read before this transaction; from here on the row lock keeps it.
        if resolved_input.previous_id and not responses.lock_for_share(
            connection, tenant, resolved_input.previous_id
        ):
            raise resolve_input.unknown_previous(new.resolved.request.previous_response_id or "")
        if version := resolved_input.conversation:
            locked = lock_conversation(connection, tenant, version.id)
            if locked.next_position != version.next_position:
                raise ConversationChanged
        row = self._row(new)
        if row.background:
            return responses.insert_queued(connection, row)
        return responses.insert_running(connection, row, self._replica)

    def _claim_key(self, connection: Connection, new: NewRun) -> None:
        key = new.idempotency_key
        if key and not idempotency_keys.claim(
            connection, new.caller.tenant, key.key, key.digest, new.response
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
            wants_output=new.prepared.wants_output,
        )
        return Run(facts, first_decoding_spec(self._served, new.resolved, new.prepared))

    def _row(self, new: NewRun) -> NewResponse:
        request, echo, engine_request = new.resolved.request, new.prepared.echo, new.prepared.engine_request
        conversation = new.resolved_input.conversation
        # The input is stored as items, and instructions are in the echo.
        stored_request = msgspec.structs.replace(request, input="", instructions=None)
        return NewResponse(
            tenant=new.caller.tenant,
            id=new.response,
            previous_id=new.resolved_input.previous_id,
            conversation_id=conversation.id if conversation else None,
            stream=bool(request.stream),
            background=echo.background,
            model=echo.model,
            priority=engine_request.priority,
            seed=engine_request.sampling.seed,
            prompt_hash=new.prepared.prompt_hash,
            key_id=new.caller.key_id,
            request=msgspec.json.encode(echo).decode(),
            asked=msgspec.json.encode(stored_request).decode(),
            metadata=msgspec.json.encode(echo.metadata).decode(),
            choice=request.choice if isinstance(request, ChoiceRequest) else None,
            lifetime=lifetime(request, self._retention_days),
        )
