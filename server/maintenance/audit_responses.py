"""The invariants of every stored response, whatever happened to the servers that generated it. Pure.

A check takes one stored response and returns violations: the invariant's name and a sentence. Invariants
that only a client, an engine or a process can observe are not here.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from server.delivery.image_urls import name_images
from server.maintenance.audit_event_log import SLACK, Finding, check_log
from server.protocol import ids
from server.protocol.decode import decode_as
from server.protocol.input_images import content_of, parse_content
from server.protocol.responses.input import has_lasting_id
from server.protocol.responses.items import Item, Message, decode_item, images_of
from server.protocol.responses.response import TERMINAL_STATUSES, Echo
from server.store.audit_snapshot import (
    AuditedItem,
    AuditedResponse,
    ConversationImages,
    PageTime,
    Search,
    Stray,
    UnsoundImage,
)
from server.store.content.stored_items import INPUT, OUTPUT

INVARIANTS = {
    "I1": "every response ends, unless a server runs it or it waits for one",
    "I2": "its events are numbered without gap or double, and lie in one place",
    "I3": "it has one terminal event, the last, which carries what a reader of the response gets",
    "I4": "reading from any event on gives the rest of the stream",
    "I6": "deltas, done events and items tell the same, and usage is told alike",
    "I7": "every end is metered, and every idempotency key leads to a response that was there",
    "I8": "no two idempotency keys lead to one response",
    "I9": "its history and its items are its own tenant's and its own",
    "I11": "its status and its columns agree",
    "I12": "attempts at it never go back",
    "I14": "its times are in order",
    "I16": "nothing is kept of a deleted response but what a later one needs",
    "I17": "every picture that an item names is there and unchanged, and goes with the last such item",
}
"""The missing numbers are invariants that the database alone cannot show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLimits:
    """The times for which unfinished responses and keys may stay unattended before they are violations."""

    grace_seconds: float = 30.0
    """The time after its replica's death, or, if that is later, after the first living replica started."""
    waiting_seconds: float = 3600.0
    """The time of a started response that waits to be claimed again, which a busy server may put off."""
    key_seconds: float = 3600.0
    """The time of an idempotency key without a stored response: it may be running with `store: false`."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant. `response_id` may be that of a missing response."""

    invariant: str
    tenant: str
    response_id: UUID | None
    """None if it concerns no response."""
    sentence: str


def check(response: AuditedResponse, moment: PageTime, limits: AuditLimits) -> list[Violation]:
    findings: list[Finding] = [
        *_check_end(response, moment, limits),
        *check_log(response, moment.now),
        *_check_metering(response),
        *_check_previous(response),
        *_check_items(response),
        *check_uses([(item.id, item.payload) for item in response.items], response.image_uses),
        *_check_columns(response),
        *_check_times(response, moment),
        *_check_deleted(response, moment),
    ]
    stored = response.stored
    return [Violation(name, stored.tenant, stored.id, sentence) for name, sentence in findings]


_STRAYS: Final[Mapping[Search, Finding]] = {
    "shared keys": ("I8", "{rows} idempotency keys lead to this response."),
    "lost keys": ("I7", "an idempotency key leads to it, but it was neither stored nor metered."),
}
_WITHOUT_RESPONSE: Final = ("I16", "{search} has {rows} of its rows, but there is no such response.")


def check_stray(stray: Stray) -> Violation:
    name, sentence = _STRAYS.get(stray.search, _WITHOUT_RESPONSE)
    return Violation(name, stray.tenant, stray.response_id, sentence.format(**stray._asdict()))


def is_unfinished(response: AuditedResponse) -> bool:
    return response.stored.status not in TERMINAL_STATUSES


def _check_end(response: AuditedResponse, moment: PageTime, limits: AuditLimits) -> Iterator[Finding]:
    """Checks for an overdue end. Without a living server nothing is overdue: the next one claims it."""
    stored = response.stored
    if not is_unfinished(response):
        return
    if stored.background and stored.asked is None:
        yield "I1", "it runs in the background, but what it was asked is not stored to begin it again."
    if moment.served_since is None:
        return
    grace = timedelta(seconds=limits.grace_seconds)
    if stored.replica_id is not None:
        heard = stored.heartbeat_at or stored.created_at
        state = stored.replica_state or "unknown"
        if state == "alive" and heard >= moment.now - grace:
            return
        if moment.now - max(heard, moment.served_since) > grace:
            yield "I1", f"it is {stored.status}, but its replica is {state} and was last heard of at {heard}."
    elif stored.status == "in_progress":
        changed = max(_last_change(response), moment.served_since)
        if moment.now - changed > timedelta(seconds=limits.waiting_seconds):
            yield "I1", f"it is in_progress, but no replica has it and nothing happened since {changed}."


def _last_change(response: AuditedResponse) -> datetime:
    stored = response.stored
    times = [stored.created_at, stored.queued_at, stored.started_at]
    if response.hot:
        times.append(datetime.fromtimestamp(response.hot[-1].at, stored.created_at.tzinfo))
    return max(time for time in times if time is not None)


def _check_metering(response: AuditedResponse) -> Iterator[Finding]:
    stored, line = response.stored, response.ledger_entry
    if is_unfinished(response):
        if line is not None:
            yield "I7", f"it is {stored.status}, but its end is in the ledger."
        return
    if line is None:
        yield "I7", f"it is {stored.status}, but there is no line of it in the ledger."
        return
    if not line.stored:
        yield "I7", "the ledger says that it is not stored."
    if line.key_id != response.stored.key_id and response.stored.key_id is not None:
        yield "I7", "the ledger has another API key than its row."
    names = ("status", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "finished_at")
    counted = {name: (getattr(line, name), getattr(stored, name)) for name in names}
    counted["created_at"] = (line.started_at, stored.created_at)
    for name, (in_ledger, in_row) in counted.items():
        if in_ledger != in_row:
            yield "I6", f"the ledger has {name} {in_ledger}, its row {in_row}."


def _check_previous(response: AuditedResponse) -> Iterator[Finding]:
    stored = response.stored
    echoed = _echoed_previous(stored.request)
    if echoed is not None and echoed != stored.previous_id:
        yield "I9", "its request names another previous response than its row."
    if stored.previous_id is None:
        return
    name = ids.response_id(stored.previous_id)
    if not stored.previous_exists:
        yield "I9", f"it goes on from {name}, which its tenant does not have."
    elif stored.previous_finished_at is None or stored.previous_finished_at > stored.created_at + SLACK:
        yield "I9", f"it goes on from {name}, which had not ended then."


def _echoed_previous(request: str) -> UUID | None:
    try:
        echoed = decode_as(request, Echo).previous_response_id
    except msgspec.MsgspecError:
        return None  # reported by the check of its last event, which needs the same echo
    return ids.parse_response_id(echoed) if echoed is not None else None


def _check_items(response: AuditedResponse) -> Iterator[Finding]:
    for side, name in ((INPUT, "input"), (OUTPUT, "output")):
        own = [item for item in response.items if item.side == side]
        if [item.idx for item in own] != list(range(len(own))):
            yield "I9", f"its {name} items are not numbered from 0 without a gap."
        for item in own:
            yield from _check_item(response.stored.id, item, f"{name} item {item.idx}")
    if is_unfinished(response) and any(item.side == OUTPUT for item in response.items):
        yield "I11", f"it is {response.stored.status}, but has output items."


def _check_item(response: UUID, item: AuditedItem, name: str) -> Iterator[Finding]:
    try:
        payload = decode_item(item.payload)
    except msgspec.MsgspecError as error:
        yield "I6", f"its {name} cannot be read: {error}"
        return
    if not _has_own_id(response, item) and not _has_sent_id(response, item, payload):
        yield "I9", f"its {name} has the id of another place, {item.id}."
    role = payload.role if isinstance(payload, Message) else None
    if (payload.id, payload.status, role) != (item.id, item.status, item.role):
        yield "I6", f"its {name} has columns that say otherwise than its JSON."


def _has_own_id(response: UUID, item: AuditedItem) -> bool:
    prefix = item.id.partition("_")[0]
    own = ids.item_id(prefix, response, "i" if item.side == INPUT else "o", item.idx)
    return ids.split_id_tag(item.id)[0] == own


def _has_sent_id(response: UUID, item: AuditedItem, payload: Item) -> bool:
    """Whether the item may have come with its id, which is that of no other item of this response."""
    own = ids.response_of_item(item.id) == response
    return item.side == INPUT and item.id == payload.id and has_lasting_id(payload) and not own


def _check_columns(response: AuditedResponse) -> Iterator[Finding]:
    stored, status = response.stored, response.stored.status
    counts = (stored.input_tokens, stored.cached_tokens, stored.output_tokens, stored.reasoning_tokens)
    if is_unfinished(response):
        if stored.finished_at is not None:
            yield "I11", f"it is {status}, but has finished_at."
        if any(value is not None for value in (*counts, stored.error_code, stored.incomplete_reason)):
            yield "I11", f"it is {status}, but has what only an ended response has."
        if (status == "in_progress") != (stored.started_at is not None):
            yield "I11", f"it is {status}, but has {'a' if stored.started_at else 'no'} started_at."
    else:
        if stored.finished_at is None:
            yield "I11", f"it is {status}, but has no finished_at."
        if any(count is None for count in counts):
            yield "I11", f"it is {status}, but its tokens are not counted."
        if (status == "failed") != (stored.error_code is not None):
            yield "I11", f"it is {status}, and its error is {stored.error_code}."
        if (status == "incomplete") != (stored.incomplete_reason is not None):
            yield "I11", f"it is {status}, and its incomplete_reason is {stored.incomplete_reason}."
        if status in ("completed", "incomplete") and stored.started_at is None:
            yield "I11", f"it is {status}, but never began."
    if stored.deaths > stored.attempt:
        yield "I12", f"it had {stored.attempt} attempts, but {stored.deaths} of them died."


def _check_times(response: AuditedResponse, moment: PageTime) -> Iterator[Finding]:
    stored = response.stored
    latest = stored.finished_at or moment.now
    for name in ("queued_at", "started_at", "first_token_at", "finished_at"):
        time = getattr(stored, name)
        if time is not None and time < stored.created_at - SLACK:
            yield "I14", f"its {name} is before its created_at."
        if time is not None and time > latest + SLACK:
            yield "I14", f"its {name} is after its finished_at."
    if max(stored.created_at, latest) > moment.now + SLACK:
        yield "I14", "its times are in the future."


def _check_deleted(response: AuditedResponse, moment: PageTime) -> Iterator[Finding]:
    """An expired response may wait for the next purge, without its stream."""
    if response.stored.deleted_at is None or is_unfinished(response):
        return
    expires = response.stored.expires_at
    if response.folded is not None or response.hot:
        yield "I16", "it is deleted, but its events are kept."
    if not response.stored.has_next and (expires is None or expires > moment.now):
        yield "I16", "it is deleted and no response goes on from it, but it is kept."


_PROBLEMS = {
    "damaged": "has other bytes than its digest and size say",
    "unused": "is kept, but no item names it",
}


def check_uses(items: Iterable[tuple[str, str]], uses: Collection[tuple[str, bytes]]) -> Iterator[Finding]:
    """The violations by items, as id and JSON, beside the uses that are stored for them."""
    named = {(item_id, digest) for item_id, payload in items for digest in _named(payload)}
    for item_id, digest in sorted(named - set(uses)):
        yield "I17", f"its item {item_id} names {content_of(digest)}, which is not kept for it."
    for item_id, digest in sorted(set(uses) - named):
        yield "I17", f"{content_of(digest)} is kept for its item {item_id}, which does not name it."


def check_conversation(conversation: ConversationImages) -> list[Finding]:
    name = ids.conversation_id(conversation.id)
    return [
        (invariant, f"of {name}: {sentence}")
        for invariant, sentence in check_uses(conversation.items, conversation.uses)
    ]


def check_image(image: UnsoundImage) -> Finding:
    return "I17", f"the picture {content_of(image.digest)} {_PROBLEMS[image.problem]}."


def _named(payload: str) -> Iterator[bytes]:
    """The stored pictures that an item names; none of a damaged item, which is found elsewhere."""
    if not name_images([payload]):
        return
    try:
        item = decode_item(payload)
    except msgspec.MsgspecError:
        return
    for part in images_of(item):
        digest = parse_content(part.content)
        if digest is not None:
            yield digest
