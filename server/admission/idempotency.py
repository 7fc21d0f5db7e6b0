"""Idempotency-Key: a request that is sent again gets the response that its first attempt created."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from server.caller import Caller
from server.delivery.frames import FramePage
from server.delivery.hub import Channel, Hub
from server.errors import Conflict, InvalidRequest
from server.protocol.ids import choice_id
from server.protocol.responses.items import Item
from server.store.content import idempotency_keys, responses
from server.store.content.responses import StoredResponse
from server.store.database import Connection, Database


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The Idempotency-Key header of a request."""

    key: str
    digest: bytes
    """Of the request's body: the same key with another body is an error."""


@dataclass(frozen=True, slots=True)
class AcceptedResponse:
    """A response that was created, or found by its idempotency key."""

    id: UUID
    channel: Channel
    """Delivers its frames."""
    items: Sequence[Item] = ()
    """The model's input items, of a foreground response created here."""
    begun: FramePage | None = None
    """The first frames of a queued response."""


def find_previous_attempt(
    database: Database, hub: Hub, caller: Caller, key: IdempotencyKey | None, count: int
) -> list[AcceptedResponse] | None:
    """The `count` responses of an earlier attempt; None without a key, or if this is the first attempt.

    Also None if the attempt's responses were lost with a replica: the key is released then. Raises
    InvalidRequest if the key came with another request, Conflict if the responses no longer exist.
    """
    if key is None:
        return None

    def read(connection: Connection) -> tuple[idempotency_keys.FirstUse | None, StoredResponse | None]:
        first_use = idempotency_keys.find(connection, caller.tenant, key.key)
        stored = responses.get(connection, caller.tenant, first_use.response_id) if first_use else None
        return first_use, stored

    first_use, stored = database.autocommit(read)
    if first_use is None:
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
