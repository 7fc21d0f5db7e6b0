"""Requests that are sent again with an idempotency key: what the first one began is found."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from server.caller import Caller
from server.delivery.event_frames import FramePage
from server.delivery.hub import Channel, Hub
from server.errors import Conflict, InvalidRequest
from server.protocol.ids import choice_id
from server.protocol.responses.items import Item
from server.store.content import idempotency_keys, responses
from server.store.content.responses import StoredResponse
from server.store.database import Connection, Database


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A request that carries an idempotency key."""

    key: str
    digest: bytes
    """Of the whole request: the same key must come with the same."""


@dataclass(frozen=True, slots=True)
class AcceptedResponse:
    """A response that exists from now on, or did already."""

    id: UUID
    channel: Channel
    """Where its frames come out."""
    items: Sequence[Item] = ()
    """What the model reads, of a response that begins here."""
    begun: FramePage | None = None
    """Its first frames, of one that waits for its turn."""


def find_previous_attempt(
    database: Database, hub: Hub, caller: Caller, repeatable: IdempotencyKey | None, count: int
) -> list[AcceptedResponse] | None:
    """The responses, so many, that the same request has begun; None if it comes for the first time or may
    not be repeated.

    Raises InvalidRequest if the key came with another request, Conflict if what it began is gone.
    """
    if repeatable is None:
        return None

    def look(connection: Connection) -> tuple[idempotency_keys.FirstUse | None, StoredResponse | None]:
        first = idempotency_keys.find(connection, caller.tenant, repeatable.key)
        kept = responses.get(connection, caller.tenant, first.response_id) if first else None
        return first, kept

    first, kept = database.autocommit(look)
    if first is None:
        return None
    if first.digest != repeatable.digest:
        raise InvalidRequest(
            "This Idempotency-Key was used for another request; use a new one for each request.",
            param="Idempotency-Key",
            code="idempotency_key_reused",
        )
    made = [choice_id(first.response_id, index) for index in range(count)]
    if kept:
        ends_unread = not kept.background
        return [AcceptedResponse(one, hub.watch(caller.tenant, one, ends_unread=ends_unread)) for one in made]
    running = [(response, hub.running(response)) for response in made]
    found = [AcceptedResponse(response, channel) for response, channel in running if channel is not None]
    if len(found) < count:
        lost = partial(
            idempotency_keys.release_lost,
            tenant=caller.tenant,
            key=repeatable.key,
            response=first.response_id,
        )
        if database.retry(lost):
            return None
        raise Conflict(
            "This request was made before; its response was not stored, or has been deleted.",
            param="Idempotency-Key",
        )
    return found
