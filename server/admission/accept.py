"""The accept transaction: a response's row, input items, first events, idempotency key.

A request that is sent again with its Idempotency-Key gets the responses that its first attempt created.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import msgspec

from server.admission.prepare_runs import IdempotencyKey, NewRun
from server.caller import Caller
from server.delivery.frames import FramePage
from server.delivery.hub import Channel, Hub
from server.errors import Conflict, InvalidRequest
from server.generation.run import Run, begin_run
from server.generation.run_facts import RunFacts
from server.limits.tenant_limits import QueueLimits
from server.prompting.loaded_model import LoadedModel
from server.prompting.turns import first_decoding_spec
from server.protocol.completions.requests import ChoiceRequest
from server.protocol.ids import choice_id
from server.protocol.responses.events import Event
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse, Kind
from server.request_input.conversations import lock_conversation
from server.request_input.stored_input import removed_image, unknown_previous
from server.store.content import idempotency_keys, images, response_insert, responses
from server.store.content.idempotency_keys import KeyUse
from server.store.content.images import ImageRemoved
from server.store.content.item_rows import NewItem
from server.store.content.response_insert import NewResponse
from server.store.content.responses import StoredResponse
from server.store.database import Connection, Database
from server.store.database_errors import AlreadyThere

MAX_UNSTORED_LIFETIME = timedelta(days=1)
"""Of a background response with `store: false` whose end is not written in the usual way."""
StoredStart = tuple[Run, list[Event]]
"""A run and its first events, which are committed with the response's row."""


@dataclass(frozen=True, slots=True)
class AcceptedResponse:
    """A response that was created, or found by its idempotency key."""

    id: UUID
    channel: Channel
    """Delivers its frames."""
    items: Sequence[Item] = ()
    """The model's input items, of a foreground response created here."""
    read_bytes: int = 0
    """Bytes of the stored items among them, as JSON."""
    begun: FramePage | None = None
    """The first frames of a queued response."""


class KeyTaken(Exception):
    """Another request claimed the same idempotency key in the meantime."""


class ConversationChanged(Exception):
    """Items were added to the conversation after the prompt was made from it."""


class ResponseWriter:
    """The statements of the accept transaction. Any thread."""

    def __init__(self, served: LoadedModel, replica: UUID, retention_days: int, queue: QueueLimits) -> None:
        self._served = served
        self._replica = replica
        self._retention_days = retention_days
        self._queue = queue

    def begin(self, new: NewRun, created_at: datetime) -> StoredStart:
        """The run, and the events that are committed with its response."""
        spec = first_decoding_spec(self._served, new.resolved, new.prepared)
        return begin_run(self._facts(new, created_at), spec)

    def is_one_statement(self, new: NewRun, input_items: Sequence[NewItem]) -> bool:
        """Whether the response is written by one statement, which needs no transaction around it."""
        more = new.idempotency_key or new.resolved_input.conversation or new.prepared.echo.background
        return not more and not any(item.images for item in input_items)

    def write_and_commit(
        self, database: Database, new: NewRun, start: StoredStart, input_items: Sequence[NewItem]
    ) -> bool:
        """Write a response that `is_one_statement`. False if its previous response is gone, or if it is there
        itself: an earlier try, which was not confirmed, has committed.
        """
        try:
            return response_insert.insert_and_commit(database, *self._content(new, start, input_items))
        except AlreadyThere:
            return False

    def write(
        self,
        connection: Connection,
        new: NewRun,
        start: StoredStart,
        input_items: Sequence[NewItem],
        *,
        again: bool,
    ) -> None:
        """Write one response. `again` marks a retry: an earlier commit that was not confirmed is looked up.

        Raises KeyTaken, ConversationChanged and ApiError.
        """
        tenant = new.caller.tenant
        if again and responses.get(connection, tenant, new.response):
            return
        if new.prepared.echo.background:
            self._queue.check(connection, new.caller)
        claim_key(connection, new)
        if version := new.resolved_input.conversation:
            locked = lock_conversation(connection, tenant, version.id)
            if locked.next_position != version.next_position:
                raise ConversationChanged
        # The history was read before this transaction; from here on the row lock keeps it.
        if not response_insert.insert(connection, *self._content(new, start, input_items)):
            raise unknown_previous(new.resolved.request.previous_response_id or "")
        insert_images(connection, tenant, new.response, input_items)

    def _content(
        self, new: NewRun, start: StoredStart, input_items: Sequence[NewItem]
    ) -> tuple[NewResponse, Sequence[NewItem], Sequence[Event], UUID | None]:
        """The arguments of `response_insert.insert`."""
        run, first_events = start
        replica = None if run.facts.echo.background else self._replica
        return self._row(new, run.facts), input_items, first_events, replica

    def _facts(self, new: NewRun, created_at: datetime) -> RunFacts:
        return RunFacts(
            tenant=new.caller.tenant,
            id=new.response,
            key_id=new.caller.key_id,
            echo=new.prepared.echo,
            created_at=created_at,
            attempt=0 if new.prepared.echo.background else 1,
            prompt_tokens=len(new.prepared.prompt.token_ids),
            wants_output=new.prepared.wants_output,
            origin=new.origin,
            end_user=new.end_user,
            kind=_kind(new),
        )

    def _retention_days_of(self, caller: Caller) -> int:
        """Days until a tenant's responses expire; 0 for never."""
        own = caller.settings.retention_days
        return self._retention_days if own is None else own

    def _row(self, new: NewRun, facts: RunFacts) -> NewResponse:
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
            created_at=facts.created_at,
            lifetime=lifetime(request, self._retention_days_of(new.caller)),
            request_id=new.origin.request_id,
            trace_parent=new.origin.trace_parent,
            user_agent=new.origin.user_agent,
            end_user=new.end_user,
            kind=facts.kind,
            weights=self._served.weights_of(echo.model),
        )


def claim_key(connection: Connection, new: NewRun, replica: UUID | None = None) -> None:
    """Claim the idempotency key, if there is one, for `replica` if there is no row. Raises KeyTaken."""
    if (key := new.idempotency_key) is None:
        return
    use = (new.caller.tenant, key.key, key.digest, new.response)
    if not idempotency_keys.claim(connection, *use, replica):
        raise KeyTaken


def lifetime(request: CreateResponse, retention_days: int) -> timedelta | None:
    """The time from a response's creation until it may be purged; None if it is kept for ever."""
    if request.expires_after is not None:
        return timedelta(seconds=request.expires_after.seconds)
    if request.background and request.store is False:
        return MAX_UNSTORED_LIFETIME
    return timedelta(days=retention_days) if retention_days else None


def _kind(new: NewRun) -> Kind:
    """The API whose request it is."""
    if not isinstance(new.resolved.request, ChoiceRequest):
        return "response"
    return "completion" if new.resolved.request.choice is None else "chat"


def insert_images(connection: Connection, tenant: str, owner: UUID, new: Sequence[NewItem]) -> None:
    """Insert the pictures of a response's new items. Raises NotFound if one was deleted since it was read."""
    uses = [(item.id, image) for item in new for image in item.images]
    if not uses:
        return
    try:
        images.insert(connection, tenant, owner, uses)
    except ImageRemoved:
        raise removed_image() from None


def find_previous_attempt(
    database: Database,
    hub: Hub,
    caller: Caller,
    key: IdempotencyKey,
    count: int,
    *,
    never_began: Container[UUID] = (),
) -> list[AcceptedResponse] | None:
    """The `count` responses of an earlier attempt; None if this is the first attempt.

    Also None if the attempt's responses were lost with a replica, or are among those that `never_began`,
    although the key was claimed for them: the key is free then. Raises InvalidRequest if the key came with
    another request, Conflict if the responses no longer exist.
    """

    def read(connection: Connection) -> tuple[idempotency_keys.FirstUse | None, StoredResponse | None]:
        first_use = idempotency_keys.find(connection, caller.tenant, key.key)
        stored = responses.get(connection, caller.tenant, first_use.response_id) if first_use else None
        return first_use, stored

    first_use, stored = database.autocommit(read)
    if first_use is None:
        return None
    if first_use.response_id in never_began:
        use = KeyUse(caller.tenant, key.key, first_use.response_id)
        database.retry(lambda connection: idempotency_keys.free(connection, [use]))
        return None
    if first_use.digest != key.digest:
        raise InvalidRequest(
            "This Idempotency-Key was used for another request; use a new one for each request.",
            param="Idempotency-Key",
            code="idempotency_key_reused",
        )
    ids = [choice_id(first_use.response_id, index) for index in range(count)]
    if stored:
        ends_unread = not stored.background
        return [AcceptedResponse(one, hub.watch(caller.tenant, one, ends_unread=ends_unread)) for one in ids]
    channels = [(response, hub.running(response)) for response in ids]
    running = [AcceptedResponse(response, channel) for response, channel in channels if channel is not None]
    if len(running) == count:
        return running
    release_lost = partial(
        idempotency_keys.release_lost, tenant=caller.tenant, key=key.key, response=first_use.response_id
    )
    if database.retry(release_lost):
        return None
    raise Conflict(
        "This request was made before; its response was not stored, or has been deleted.",
        param="Idempotency-Key",
    )
