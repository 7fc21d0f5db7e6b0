"""Stored chat completions: retrieve, list, update, delete. One exists once all of its choices have ended."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import UUID

import msgspec

from server.completions.chat import chat_choice, chat_completion, chat_format, chat_tool, format_of
from server.completions.chunk_stream import FinalChoice
from server.delivery.image_urls import items_with_image_urls
from server.delivery.stored_responses import as_response, list_encoded, with_last_event
from server.errors import NotFound, bad_cursor
from server.protocol import ids
from server.protocol.completions.chat_messages import items_by_message, stored_message
from server.protocol.completions.objects import StoredCompletion
from server.protocol.completions.requests import MAX_CHOICES, ChoiceRequest
from server.protocol.decode import decode_as
from server.protocol.list_pages import Page, PageRequest, make_page, within_page_bytes
from server.protocol.responses.items import Item, decode_item
from server.protocol.responses.request import Metadata
from server.protocol.responses.response import Echo, Response, may_have_stop_reason, wants_token_dump
from server.store.content import deletion, responses, stored_items
from server.store.content.response_pages import ANSWERED_STATUSES, Filters
from server.store.content.responses import StoredResponse
from server.store.database import Connection, Database

log = logging.getLogger("holdfast.chat")


def find(database: Database, tenant: str, first: UUID) -> StoredCompletion:
    """Raises NotFound."""

    def work(connection: Connection) -> StoredCompletion:
        return _stored_completion(_answered_choices(connection, tenant, first), connection, tenant)

    return database.read(work)


def update(database: Database, tenant: str, first: UUID, metadata: Metadata | None) -> StoredCompletion:
    """Replaces the metadata. Raises NotFound."""

    def work(connection: Connection) -> StoredCompletion:
        for stored in _answered_choices(connection, tenant, first, lock=True):
            echo = decode_as(stored.request, Echo)
            changed = msgspec.structs.replace(echo, metadata=metadata or {})
            encoded = [msgspec.json.encode(value).decode() for value in (changed, changed.metadata)]
            responses.update_choice_metadata(connection, stored, *encoded)
        return _stored_completion(_choices(connection, tenant, first), connection, tenant)

    return database.retry(work)


def delete(connection: Connection, tenant: str, first: UUID) -> list[UUID]:
    """Delete all choices, finished or not; returns those still running, to be cancelled. Raises NotFound."""
    choices = _choices(connection, tenant, first)
    if not choices or choices[0].id != first:
        raise unknown(first)
    return [stored.id for stored in choices if deletion.delete(connection, tenant, stored.id)]


def list_completions(
    database: Database, tenant: str, filters: Filters, page_request: PageRequest
) -> Page[msgspec.Raw]:
    """A page of completions; undecodable ones are logged. Raises InvalidRequest for a bad cursor."""

    def encode(connection: Connection, rows: Sequence[StoredResponse]) -> Iterator[bytes]:
        """Without completions of which choices are unfinished."""
        for stored in rows:
            group = _choices(connection, tenant, stored.id)
            if not group or any(choice.status not in ANSWERED_STATUSES for choice in group):
                continue
            try:
                yield msgspec.json.encode(_stored_completion(group, connection, tenant))
            except (ValueError, KeyError, TypeError):  # msgspec's errors among them
                name = ids.completion_id(stored.id)
                log.exception("%s cannot be decoded and is not listed", name, extra=stored.log_fields)

    parse_id = ids.parse_completion_id
    return list_encoded(database, tenant, filters, page_request, parse_id, "a chat completion", encode)


def list_messages(
    database: Database, tenant: str, first: UUID, page_request: PageRequest
) -> Page[msgspec.Raw]:
    """A page of a completion's input messages. Raises NotFound, or InvalidRequest for a bad cursor."""

    def work(connection: Connection) -> tuple[list[bytes], bool]:
        _answered_choices(connection, tenant, first)
        payloads = stored_items.input_items(connection, tenant, first)
        groups = items_by_message(map(decode_item, payloads))
        named = [(f"{ids.completion_id(first)}-{index}", group) for index, group in enumerate(groups)]
        rest = _after(named[::-1] if page_request.newest_first else named, page_request.after)
        page = within_page_bytes(
            msgspec.json.encode(stored_message(items_with_image_urls(connection, tenant, group), message_id))
            for message_id, group in rest[: page_request.limit]
        )
        encoded = list(page)
        return encoded, len(rest) > len(encoded)

    page, more = database.read(work)
    return make_page(page, page_request.limit, more=more)


def _after(messages: list[tuple[str, list[Item]]], after: str | None) -> list[tuple[str, list[Item]]]:
    """The messages behind the one with that id. Raises InvalidRequest if there is none."""
    if after is None:
        return messages
    message_ids = [message_id for message_id, _ in messages]
    if after not in message_ids:
        raise bad_cursor(after, "a message of this completion")
    return messages[message_ids.index(after) + 1 :]


def unknown(first: UUID) -> NotFound:
    return NotFound(f"Chat completion with id '{ids.completion_id(first)}' not found.")


def _choices(
    connection: Connection, tenant: str, first: UUID, *, lock: bool = False
) -> Sequence[StoredResponse]:
    candidates = [ids.choice_id(first, index) for index in range(MAX_CHOICES)]
    return responses.get_choices(connection, tenant, candidates, lock=lock)


def _answered_choices(
    connection: Connection, tenant: str, first: UUID, *, lock: bool = False
) -> Sequence[StoredResponse]:
    """The choices, all of which have ended as answers. Raises NotFound."""
    choices = _choices(connection, tenant, first, lock=lock)
    answered = all(stored.status in ANSWERED_STATUSES for stored in choices)
    if not choices or choices[0].id != first or not answered:
        raise unknown(first)
    return choices


def _stored_completion(
    choices: Sequence[StoredResponse], connection: Connection, tenant: str
) -> StoredCompletion:
    outputs = stored_items.outputs_of(connection, tenant, [stored.id for stored in choices])
    finals = [_final_response(connection, stored, outputs[stored.id]) for stored in choices]
    first, final = choices[0], finals[0]
    answers = [decode_as(msgspec.json.encode(response), FinalChoice) for response in finals]
    indexes = [stored.choice or 0 for stored in choices]
    request = decode_as(first.asked or "", ChoiceRequest)
    needs_messages = request.echo or request.add_generation_prompt is False
    payloads = stored_items.input_items(connection, tenant, first.id) if needs_messages else []
    shape = format_of(request, first.id, [decode_item(payload) for payload in payloads])
    whole = chat_completion(replace(shape, metadata=final.metadata), answers, indexes)
    return StoredCompletion(
        **msgspec.structs.asdict(whole),
        temperature=final.temperature,
        top_p=final.top_p,
        presence_penalty=final.presence_penalty,
        frequency_penalty=final.frequency_penalty,
        input_user=final.user,
        seed=first.seed,
        tools=[chat_tool(tool) for tool in final.tools] or None,
        tool_choice=chat_choice(final.tool_choice),
        response_format=chat_format(final.text.format),
    )


def _final_response(connection: Connection, stored: StoredResponse, output: Sequence[str]) -> Response:
    whole = as_response(stored, output)
    if wants_token_dump(stored.asked) or may_have_stop_reason(stored.asked):
        return with_last_event(connection, stored, whole)
    return whole
