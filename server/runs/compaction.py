"""A long conversation as a short one: what users and developers said, and one sealed item for all the rest.

Messages of users, systems and developers stay as they are, as far as they fit into half of what the model
can read, the newest first; calls that wait for their output stay too. Everything else becomes a transcript,
word for word, if that is short: it costs nothing and gets nothing wrong. A longer one is summed up by the
model itself, in one response that is not stored; if that gives nothing, the transcript is cut in its middle.
Thoughts are left out: they led to what was said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from server.dialects.base import Conversation, PromptError
from server.errors import InvalidRequest, UnknownModel
from server.runs import context
from server.runs.opened import opened
from server.runs.prepare import Served, write_prompt
from server.runs.transcript import cut, transcript
from server.runs.unsupported import refuse_unsupported
from server.store.database import Database
from server.wire import ids
from server.wire.items import (
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    plain_text,
)
from server.wire.request import CreateResponse, ReasoningOptions
from server.wire.response import CompactedResponse, Usage, usage

KEPT_SHARE = 2
"""Kept messages have at most the model's context, divided by this, in tokens."""
SUMMARY_SHARE = 8
"""The same of the sealed text."""
MOST_SUMMARY_TOKENS = 4096
CHARACTERS_OF_TOKEN = 3
"""About; only what needs no exact count is cut by it."""
_INSTRUCTIONS = (
    "You are given the transcript of a conversation between a user and an assistant, which is about to be "
    "forgotten. Write a summary from which the assistant can go on: what the user wants, what was decided "
    "and found out, names, numbers and identifiers word for word, what the tools gave, what is still to do. "
    "Write nothing but the summary."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the model made of the transcript, and what that took."""

    text: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacting:
    """What a conversation is to become."""

    id: UUID
    served: Served
    tenant: str
    request: CreateResponse
    kept: Sequence[Item]
    pending: Sequence[Item]
    """Calls without an output."""
    transcript: str

    @property
    def is_short(self) -> bool:
        """The transcript can be sealed as it is."""
        return len(self.transcript) <= self._most_characters

    def made(self, written: Written | None) -> CompactedResponse:
        """The new input. `written` is there if the transcript was too long."""
        text = (written.text.strip() if written else "") or self.transcript
        place = ids.item_id("cmp", self.id, "o", len(self.kept))
        sealed = self.served.seal.seal("compaction", self.tenant, place, cut(text, self._most_characters))
        items = [*self.kept, Compaction("", "completed", sealed), *self.pending]
        return CompactedResponse(
            id=ids.response_id(self.id),
            created_at=ids.seconds_of(self.id),
            output=[context.own(item, self.id, "o", index) for index, item in enumerate(items)],
            usage=written.usage if written else usage(0, 0, 0, 0),
        )

    def summary_request(self) -> CreateResponse:
        """The request for a summary, with as much of the transcript as the model can read."""
        room = self._context - self._summary_tokens
        characters = self._context * CHARACTERS_OF_TOKEN
        while True:
            asked = self._ask_for_summary(characters)
            items = [item for item in context.read_given(asked)[1] if isinstance(item, Message)]
            tokens = len(write_prompt(self.served, self.tenant, asked, items).token_ids)
            if tokens < room or characters == 0:
                return asked
            characters //= 2

    def _ask_for_summary(self, characters: int) -> CreateResponse:
        instructions = cut(self.request.instructions or "", characters // 4)
        about = f"The assistant's instructions were:\n{instructions}\n\n" if instructions else ""
        told = cut(self.transcript, characters)
        return CreateResponse(
            model=self.request.model,
            instructions=_INSTRUCTIONS,
            input=f"{about}The transcript:\n\n{told}\n\nNow write the summary.",
            store=False,
            temperature=0.0,
            max_output_tokens=self._summary_tokens,
            reasoning=ReasoningOptions(effort="none"),
        )

    @property
    def _context(self) -> int:
        return self.served.engine.capabilities.context_length

    @property
    def _summary_tokens(self) -> int:
        return min(max(self._context // SUMMARY_SHARE, 1), MOST_SUMMARY_TOKENS)

    @property
    def _most_characters(self) -> int:
        return self._summary_tokens * CHARACTERS_OF_TOKEN


def begin(database: Database, served: Served, tenant: str, request: CreateResponse) -> Compacting:
    """Looks up and divides what is to be compacted. Raises ApiError or DecodeFailure."""
    refuse_unsupported(request)
    if request.model not in served.names:
        raise UnknownModel(request.model, served.names)
    made = ids.new_uuid()
    request, given = context.read_given(request)
    found = database.retry(lambda connection: context.gather(connection, tenant, request, given, made))
    if not found.items:
        raise InvalidRequest(
            "There is nothing to compact: give input or previous_response_id.", param="input"
        )
    items = opened(found.items, served.seal, tenant)
    kept = _kept(served, found.items, served.engine.capabilities.context_length // KEPT_SHARE)
    pending = _pending(items)
    told_already = {item.id for item in [*kept, *pending]}
    return Compacting(
        id=made,
        served=served,
        tenant=tenant,
        request=request,
        kept=kept,
        pending=pending,
        transcript=transcript(items, told_already),
    )


class _Final(msgspec.Struct):
    output: list[Item]
    usage: Usage


def read_written(final: bytes) -> Written:
    """The model's summary from the response that it came in; empty if it failed."""
    told = msgspec.json.decode(final, type=_Final)
    said = [plain_text(item.content) for item in told.output if isinstance(item, Message)]
    return Written(text="\n".join(said), usage=told.usage)


def _kept(served: Served, items: Sequence[Item], most_tokens: int) -> list[Message]:
    """The last of the messages that were not the model's; all that instruct, before any of a user."""
    given = [item for item in items if isinstance(item, Message) and item.role != "assistant"]
    chosen: set[str] = set()
    left = most_tokens
    newest_first = given[::-1]
    for message in sorted(newest_first, key=lambda message: message.role == "user"):
        left -= _tokens(served, message)
        if left < 0:
            break
        chosen.add(message.id)
    return [message for message in given if message.id in chosen]


def _tokens(served: Served, message: Message) -> int:
    text = plain_text(message.content)
    alone = Message("", "completed", "user", [InputText(text)])
    try:
        return len(served.dialect.write(Conversation(items=[alone])).token_ids)
    except PromptError:
        return len(text)


def _pending(items: Sequence[Item]) -> list[Item]:
    answered = {item.call_id for item in items if isinstance(item, FunctionCallOutput | CustomToolCallOutput)}
    return [
        item
        for item in items
        if isinstance(item, FunctionCall | CustomToolCall) and item.call_id not in answered
    ]
