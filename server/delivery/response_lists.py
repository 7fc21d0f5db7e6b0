"""Pages of stored objects: a tenant's responses, and the input items of one response."""

import logging
from collections.abc import Sequence
from uuid import UUID

import msgspec

from server.delivery.stored_responses import as_response, with_turns
from server.errors import InvalidRequest
from server.protocol import ids
from server.protocol.list_pages import MAX_BYTES, Page, make_page
from server.protocol.responses.states import TERMINAL_STATUSES
from server.store.content import response_pages, responses, stored_items
from server.store.content.response_pages import Filters, PageCursor
from server.store.content.responses import StoredResponse
from server.store.content.stored_items import INPUT_LIST, ItemPage
from server.store.database import Connection, Database

log = logging.getLogger("holdfast.lists")


def list_responses(
    database: Database, tenant: str, filters: Filters, after: str | None, limit: int, *, newest_first: bool
) -> Page[msgspec.Raw]:
    """A page of a tenant's responses. Raises InvalidRequest for a bad cursor.

    A response that cannot be decoded is logged and left out, so that the others can be listed.
    """

    def work(connection: Connection) -> tuple[list[bytes], bool]:
        cursor = _cursor(connection, tenant, after) if after is not None else None
        while True:
            rows, more = response_pages.bounded_page(
                connection, tenant, filters, cursor, limit, MAX_BYTES, newest_first=newest_first
            )
            ended = [stored.id for stored in rows if stored.status in TERMINAL_STATUSES]
            outputs = stored_items.outputs_of(connection, tenant, ended)
            listed = [
                whole
                for stored in rows
                if (whole := _encoded(connection, stored, outputs.get(stored.id, ())))
            ]
            if listed or not more:
                return listed, more
            cursor = PageCursor(rows[-1].created_at, rows[-1].id)

    page, more = database.read(work)
    return make_page(page, limit, more=more)


def _encoded(connection: Connection, stored: StoredResponse, output: Sequence[str]) -> bytes | None:
    try:
        response = as_response(stored, output)
        return msgspec.json.encode(with_turns(connection, stored, response, output))
    except ValueError:  # msgspec's errors among them
        log.exception("response %s cannot be decoded and is not listed", stored.id)
        return None


def _cursor(connection: Connection, tenant: str, after: str) -> PageCursor:
    response = ids.parse_response_id(after)
    cursor = response_pages.find_cursor(connection, tenant, response) if response is not None else None
    if cursor is None:
        raise _bad_cursor(after, "a response")
    return cursor


def list_input_items(
    database: Database, tenant: str, response: UUID, after: str | None, limit: int, *, newest_first: bool
) -> Page[msgspec.Raw] | None:
    """A page of a response's own input items; None without such a response. Raises InvalidRequest for a bad
    cursor.

    Items that came through `previous_response_id` are listed with the responses that they belong to.
    """

    def work(connection: Connection) -> ItemPage | None:
        if responses.get(connection, tenant, response) is None:
            return None
        cursor = None
        if after is not None:
            cursor = stored_items.item_position(connection, INPUT_LIST, tenant, response, after)
            if cursor is None:
                raise _bad_cursor(after, "an input item of this response")
        return stored_items.item_page(
            connection,
            INPUT_LIST,
            tenant,
            response,
            cursor,
            limit,
            newest_first=newest_first,
            most_bytes=MAX_BYTES,
        )

    page = database.read(work)
    if page is None:
        return None
    return make_page([payload.encode() for payload in page.payloads], limit, more=page.more)


def _bad_cursor(after: str, kind: str) -> InvalidRequest:
    return InvalidRequest(f"after must be the id of {kind}, not '{after[:100]}'.", param="after")
