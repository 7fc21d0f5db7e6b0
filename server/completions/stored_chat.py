"""Stored chat completions: read, listed, changed and deleted by the responses that are their choices.

A completion is there once all of its choices have ended as answers; a choice that was deleted as the response
that it is belongs to it no more.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec

from server.completions.chat_request import chat_choice, chat_format, chat_tool
from server.completions.chat_response import chat_completion, format_of
from server.delivery.stored_responses import as_response, with_last_event
from server.errors import InvalidRequest, NotFound
from server.generation.token_dump import may_have_stop_reason, wants_token_dump
from server.protocol import ids
from server.protocol.completions.chat import StoredCompletion
from server.protocol.completions.chat_messages import stored_messages
from server.protocol.completions.shared_parameters import MAX_CHOICES, ChoiceRequest
from server.protocol.list_pages import MAX_BYTES, Page, make_page, within_page_bytes
from server.protocol.responses.items import decode_item
from server.protocol.responses.request import Metadata
from server.protocol.responses.response import Echo
from server.protocol.typed import decode_as
from server.store.content import chat_choices, deletion, list_pages, responses
from server.store.content.list_pages import ANSWERED_STATUSES, Filters, PageCursor
from server.store.content.responses import StoredResponse
from server.store.database import Connection, Database

log = logging.getLogger("holdfast.chat")


def find(database: Database, tenant: str, first: UUID) -> StoredCompletion:
    """Raises NotFound."""

    def work(connection: Connection) -> StoredCompletion:
        return _stored_completion(
            _require_answered(chat_choices.get(connection, tenant, _candidates(first)), first),
            connection,
            tenant,
        )

    return database.read(work)


def update(database: Database, tenant: str, first: UUID, metadata: Metadata | None) -> StoredCompletion:
    """Replaces the metadata. Raises NotFound."""

    def work(connection: Connection) -> StoredCompletion:
        for stored in _require_answered(
            chat_choices.lock_for_update(connection, tenant, _candidates(first)), first
        ):
            echo = decode_as(stored.request, Echo)
            changed = msgspec.structs.replace(echo, metadata=metadata or {})
            told = [msgspec.json.encode(value).decode() for value in (changed, changed.metadata)]
            chat_choices.update_metadata(connection, stored, *told)
        return _stored_completion(
            chat_choices.get(connection, tenant, _candidates(first)), connection, tenant
        )

    return database.retry(work)


def delete(connection: Connection, tenant: str, first: UUID) -> list[UUID]:
    """Makes its choices absent, however far they are; those that still run, to be ended. Raises NotFound."""
    found = chat_choices.get(connection, tenant, _candidates(first))
    if not found or found[0].id != first:
        raise unknown(first)
    return [stored.id for stored in found if deletion.delete(connection, tenant, stored.id)]


def list_completions(
    database: Database, tenant: str, filters: Filters, after: str | None, limit: int, *, newest_first: bool
) -> Page[msgspec.Raw]:
    """A page of the completions that are there. Raises InvalidRequest for a bad cursor.

    One that cannot be decoded is left out, and logged: it does not keep the others from being listed.
    """

    def work(connection: Connection) -> tuple[list[bytes], bool]:
        cursor = _cursor(connection, tenant, after) if after is not None else None
        found: list[bytes] = []
        size = 0
        while True:
            first, more = list_pages.bounded_page(
                connection, tenant, filters, cursor, limit + 1, MAX_BYTES, newest_first=newest_first
            )
            for one in _encode_answered(connection, tenant, first):
                if len(found) == limit or size >= MAX_BYTES:
                    return found, True
                found.append(one)
                size += len(found[-1])
            if not more:
                return found, False
            cursor = PageCursor(first[-1].created_at, first[-1].id)

    found, more = database.read(work)
    return make_page(found, limit, more=more)


def list_messages(
    database: Database, tenant: str, first: UUID, after: str | None, limit: int, *, newest_first: bool
) -> Page[msgspec.Raw]:
    """A page of what a completion was given. Raises NotFound, or InvalidRequest for a bad cursor."""

    def work(connection: Connection) -> list[str]:
        _require_answered(chat_choices.get(connection, tenant, _candidates(first)), first)
        return responses.input_items(connection, tenant, first)

    messages = stored_messages(map(decode_item, database.read(work)), ids.completion_id(first))
    messages = messages[::-1] if newest_first else messages
    begin = 0
    if after is not None:
        named = [message.id for message in messages]
        if after not in named:
            raise _bad_cursor(after, "a message of this completion")
        begin = named.index(after) + 1
    rest = messages[begin:]
    told = list(within_page_bytes(msgspec.json.encode(message) for message in rest[:limit]))
    return make_page(told, limit, more=len(rest) > len(told))


def unknown(first: UUID) -> NotFound:
    return NotFound(f"Chat completion with id '{ids.completion_id(first)}' not found.")


def _candidates(first: UUID) -> list[UUID]:
    return [ids.choice_id(first, place) for place in range(MAX_CHOICES)]


def _require_answered(found: Sequence[StoredResponse], first: UUID) -> Sequence[StoredResponse]:
    """The choices of a completion that is there. Raises NotFound."""
    if not found or found[0].id != first or any(stored.status not in ANSWERED_STATUSES for stored in found):
        raise unknown(first)
    return found


def _encode_answered(connection: Connection, tenant: str, first: Sequence[StoredResponse]) -> Iterator[bytes]:
    """The JSON of those completions with these first choices that are there and can be decoded, in order."""
    for stored in first:
        group = chat_choices.get(connection, tenant, _candidates(stored.id))
        if not group or any(one.status not in ANSWERED_STATUSES for one in group):
            continue
        try:
            yield msgspec.json.encode(_stored_completion(group, connection, tenant))
        except (ValueError, KeyError, TypeError):  # msgspec's errors among them
            log.exception("completion %s cannot be decoded and is not listed", stored.id)


def _cursor(connection: Connection, tenant: str, after: str) -> PageCursor:
    first = ids.parse_completion_id(after)
    cursor = list_pages.find_cursor(connection, tenant, first) if first is not None else None
    if cursor is None:
        raise _bad_cursor(after, "a chat completion")
    return cursor


def _bad_cursor(after: str, kind: str) -> InvalidRequest:
    return InvalidRequest(f"after must be the id of {kind}, not '{after[:100]}'.", param="after")


def _stored_completion(
    found: Sequence[StoredResponse], connection: Connection, tenant: str
) -> StoredCompletion:
    outputs = list_pages.outputs(connection, tenant, [stored.id for stored in found])
    finals = [_final_response(connection, stored, outputs[stored.id]) for stored in found]
    first, final = found[0], finals[0]
    places = [stored.choice or 0 for stored in found]
    asked = decode_as(first.asked or "", ChoiceRequest)
    goes_on = asked.echo or asked.add_generation_prompt is False
    given = responses.input_items(connection, tenant, first.id) if goes_on else []
    telling = format_of(asked, first.id, [decode_item(item) for item in given])
    told = chat_completion(replace(telling, metadata=final["metadata"]), finals, places)
    return StoredCompletion(**msgspec.structs.asdict(told), **_request_fields(first, final))


def _final_response(connection: Connection, stored: StoredResponse, output: Sequence[str]) -> dict[str, Any]:
    whole = as_response(stored, output)
    if wants_token_dump(stored.asked) or may_have_stop_reason(stored.asked):
        whole = with_last_event(connection, stored, whole)
    final: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))
    return final


def _request_fields(first: StoredResponse, final: Mapping[str, Any]) -> dict[str, Any]:
    """What of the request a kept completion tells."""
    told = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    return {
        **{name: final[name] for name in told},
        "input_user": final["user"],
        "seed": first.seed,
        "tools": [chat_tool(tool) for tool in final["tools"]] or None,
        "tool_choice": chat_choice(final["tool_choice"]),
        "response_format": chat_format(final["text"]["format"]),
    }
