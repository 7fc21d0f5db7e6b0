"""Pages of what is stored: a tenant's responses, and what one of them was given."""

import logging
from collections.abc import Sequence
from uuid import UUID

import msgspec

from server.errors import InvalidRequest
from server.runs.read import as_response
from server.runs.states import ENDED
from server.store import listing, responses
from server.store.database import Connection, Database
from server.store.listing import Cursor, Filters
from server.store.responses import StoredResponse
from server.wire import ids
from server.wire.pages import Page, page

log = logging.getLogger("holdfast.lists")


def list_responses(
    database: Database, tenant: str, filters: Filters, after: str | None, limit: int, *, newest_first: bool
) -> Page[msgspec.Raw]:
    """A page of the responses that exist for readers, whole. Raises InvalidRequest for a bad cursor.

    One that cannot be decoded is left out, and logged: it does not keep the others from being listed.
    """

    def work(connection: Connection) -> list[bytes]:
        cursor = _cursor(connection, tenant, after) if after is not None else None
        listed: list[bytes] = []
        while (wanted := limit + 1 - len(listed)) > 0:
            found = listing.page(connection, tenant, filters, cursor, wanted, newest_first=newest_first)
            ended = [stored.id for stored in found if stored.status in ENDED]
            outputs = listing.outputs(connection, tenant, ended)
            listed += (told for stored in found if (told := _told(stored, outputs.get(stored.id, ()))))
            if len(found) < wanted:
                break
            cursor = Cursor(found[-1].created_at, found[-1].id)
        return listed

    return page(database.read(work), limit)


def _told(stored: StoredResponse, output: Sequence[str]) -> bytes | None:
    try:
        return msgspec.json.encode(as_response(stored, output))
    except ValueError:  # msgspec's errors among them
        log.exception("response %s cannot be decoded and is not listed", stored.id)
        return None


def _cursor(connection: Connection, tenant: str, after: str) -> Cursor:
    response = ids.parse_response_id(after)
    cursor = listing.cursor(connection, tenant, response) if response is not None else None
    if cursor is None:
        raise _bad_cursor(after, "a response")
    return cursor


def list_input_items(
    database: Database, tenant: str, response: UUID, after: str | None, limit: int, *, newest_first: bool
) -> Page[msgspec.Raw] | None:
    """A page of a response's own input; None without such a response. Raises InvalidRequest for a bad cursor.

    What came through `previous_response_id` is the input or output of other responses and listed there.
    """

    def work(connection: Connection) -> Sequence[str] | None:
        if responses.get(connection, tenant, response) is None:
            return None
        place = None
        if after is not None:
            place = listing.input_place(connection, tenant, response, after)
            if place is None:
                raise _bad_cursor(after, "an input item of this response")
        return listing.input_page(connection, tenant, response, place, limit + 1, newest_first=newest_first)

    found = database.read(work)
    return None if found is None else page([payload.encode() for payload in found], limit)


def _bad_cursor(after: str, kind: str) -> InvalidRequest:
    return InvalidRequest(f"after must be the id of {kind}, not '{after[:100]}'.", param="after")
