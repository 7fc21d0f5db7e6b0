"""The items that a compaction retains (messages, newest results, pending calls), and the summary of the rest.

The rest becomes a transcript. A short one is its own summary: it costs no tokens and has no mistakes. A
longer one is summarised by the model, or, if the model writes nothing, shortened in its middle. Reasoning is
left out: its results are in the model's messages.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from uuid import UUID

from server.generation.hosted_items import items_for_model
from server.limits.long_prompts import ITEM_CHARACTERS
from server.model_formats.model_format import Prompt, PromptConversation, PromptError, PromptTooLong
from server.prompting.prompt_limits import MAX_COUNTED_CONTEXTS
from server.prompting.served_model import LoadedModel
from server.prompting.write_prompt import ResolvedRequest, characters_of, write_prompt
from server.protocol.responses.items import (
    ID_PREFIXES,
    CallOutput,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    HostedCall,
    InputText,
    Item,
    McpApprovalResponse,
    Message,
    OtherItem,
    PairedCall,
    SettingsItem,
    awaits_client,
    item_type,
    plain_text,
    text_of,
)
from server.protocol.responses.request import CreateResponse, ReasoningOptions

EXCERPT_CHARACTERS = 200
"""Characters of what is retained that the transcript quotes, to show what an answer refers to."""
ELLIPSIS = "\n[…]\n"
RETAINED_SHARE = 2
"""Retained messages have at most 1/2 of the context's tokens."""
SUMMARY_SHARE = 8
"""A summary has at most 1/8 of the context's tokens."""
MAX_SUMMARY_TOKENS = 4096
CHARACTERS_PER_TOKEN = 3
"""An estimate, for texts that are shortened without being tokenized."""
_INSTRUCTIONS = (
    "You are given the transcript of a conversation between a user and an assistant, which is about to be "
    "forgotten. Write a summary from which the assistant can go on: what the user wants, what was decided "
    "and found out, names, numbers and identifiers word for word, what the tools gave, what is still to do. "
    "Write nothing but the summary."
)


def dividing(served: LoadedModel, tenant: str, items: Sequence[Item]) -> AbstractContextManager[None]:
    """The slot in which items are divided, as one is needed for a long prompt. Raises TooManyRequests or
    Overloaded.
    """
    characters = characters_of(PromptConversation(items=items))
    return served.long_prompts.slot(tenant, characters + ITEM_CHARACTERS * len(items))


def retained_messages(served: LoadedModel, items: Sequence[Item], max_tokens: int) -> list[Message]:
    """The newest messages that the model did not write; instructions are chosen before user messages."""
    candidates = [item for item in items if isinstance(item, Message) and _is_retained(item)]
    newest_first = candidates[::-1]
    in_order = sorted(newest_first, key=lambda message: message.role == "user")
    chosen = _first_within(served, ([message] for message in in_order), max_tokens)
    return [message for message in candidates if id(message) in chosen]


def _first_within(served: LoadedModel, groups: Iterable[Sequence[Item]], max_tokens: int) -> set[int]:
    """The identities of the items of the first groups that have so many tokens together."""
    chosen: set[int] = set()
    count = _TokenCount(served)
    room = max_tokens
    for group in groups:
        room -= sum([count(_text(item), room) for item in items_for_model(group)])
        if room < 0:
            break
        chosen |= set(map(id, group))
    return chosen


def _is_retained(message: Message) -> bool:
    """False for an earlier compaction's summary, which has that item's id: it is summarised again."""
    return message.role != "assistant" and not message.id.startswith(ID_PREFIXES[Compaction] + "_")


def settings_items(items: Sequence[Item]) -> list[Item]:
    """The items whose tools and settings last, so that a compaction leaves them as they are."""
    return [item for item in items if isinstance(item, SettingsItem)]


def pending_calls(items: Sequence[Item]) -> list[Item]:
    """Calls without an output and approval requests without an answer, so that they can be answered."""
    answered = {item.call_id for item in items if isinstance(item, CallOutput)}
    answered |= {item.approval_request_id for item in items if isinstance(item, McpApprovalResponse)}
    return [
        item
        for item in items
        if awaits_client(item) and (item.call_id if isinstance(item, PairedCall) else item.id) not in answered
    ]


def newest_results(served: LoadedModel, items: Sequence[Item], max_tokens: int, max_alone: int) -> list[Item]:
    """The newest calls with their outputs, the server's own included, from which the model continues.

    If the newest one is longer than `max_tokens`, it is retained alone, up to `max_alone`: the model has not
    read it, and would make the call again.
    """
    groups = list(_answered_calls(items[::-1]))
    chosen = _first_within(served, groups, max_tokens) or _first_within(served, groups[:1], max_alone)
    return [item for item in items if id(item) in chosen]


def _answered_calls(newest_first: Sequence[Item]) -> Iterator[Sequence[Item]]:
    outputs: dict[str, Item] = {}
    for item in newest_first:
        if isinstance(item, CallOutput):
            outputs[item.call_id or ""] = item
        elif isinstance(item, PairedCall) and (item.call_id or "") in outputs:
            yield item, outputs.pop(item.call_id or "")
        elif isinstance(item, HostedCall):
            yield (item,)


def _text(item: Item) -> str:
    match item:
        case FunctionCall(arguments=text) | CustomToolCall(input=text):
            return text
    return text_of(item) or ""


class _TokenCount:
    """Counts the tokens of texts as messages, of which the template is rendered once."""

    def __init__(self, served: LoadedModel) -> None:
        self._format = served.model_format
        alone = Message("", "completed", "user", [InputText("-")])
        try:
            self._around = len(self._format.write(PromptConversation(items=[alone])).token_ids)
        except PromptError:
            self._around = 0

    def __call__(self, text: str, limit: int) -> int:
        """The number of tokens of a text; of a longer one some number above `limit`."""
        if limit < 0:
            return 1
        try:
            return self._around + len(self._format.encode(text, special=False, limit=limit))
        except PromptError:
            return len(text)
        except PromptTooLong:
            return limit + 1


def transcript(items: Sequence[Item], retained_ids: Collection[str]) -> str:
    """Messages, calls and outputs in order, without reasoning; empty if every item is retained.

    Items in `retained_ids` stay in the context and are quoted shortly.
    """
    if all(item.id in retained_ids for item in items):
        return ""
    lines = [_line(item, quoted=item.id in retained_ids) for item in items_for_model(items)]
    return "\n\n".join(filter(None, lines))


def shorten(text: str, characters: int) -> str:
    """The text, or its beginning and end around an ellipsis, of at most so many characters."""
    if len(text) <= characters:
        return text
    if characters < len(ELLIPSIS):
        return text[:characters]
    half = (characters - len(ELLIPSIS)) // 2
    return text[:half] + ELLIPSIS + text[len(text) - half :]


def _line(item: Item, *, quoted: bool) -> str:
    match item:
        case Message(role=role, content=content):
            text = plain_text(content)
            return f"{role}: {shorten(text, EXCERPT_CHARACTERS) if quoted else text}"
        case FunctionCall(name=name) | CustomToolCall(name=name):
            return f"assistant calls {name}: {_text(item)}"
        case FunctionCallOutput() | CustomToolCallOutput():
            text = _text(item)
            return f"output of the call: {shorten(text, EXCERPT_CHARACTERS) if quoted else text}"
        case OtherItem(fields=fields):
            return f"{item_type(item)}: {json.dumps(fields, ensure_ascii=False)}"
        case _:
            return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A transcript that a compaction replaces by its summary."""

    served: LoadedModel
    tenant: str
    request: CreateResponse
    """Names the model that writes the summary, and has the conversation's instructions."""
    response: UUID
    """The response or the compaction, whose id has the date that stands in the prompt of `make_request`."""
    transcript: str
    context: int
    """Tokens that the compacted context may have."""

    @property
    def is_short(self) -> bool:
        """Whether the transcript is its own summary, so that the model need not write one."""
        return len(self.transcript) <= self._max_characters

    def text(self, written: str) -> str:
        """The summary: the model's, `written`, or the shortened transcript if that is empty."""
        return shorten(written.strip() or self.transcript, self._max_characters)

    def make_request(self) -> tuple[CreateResponse, Prompt]:
        """The request for a summary and its prompt, with as much of the transcript as the model can read."""
        length = self.served.model_info.context_length
        characters = length * CHARACTERS_PER_TOKEN
        while True:
            text = self._prompt_text(characters)
            request = self._request(text)
            items = [Message("", "completed", "user", [InputText(text)])]
            limit = length * MAX_COUNTED_CONTEXTS  # a prompt that is too long is counted and halved
            resolved = ResolvedRequest(
                tenant=self.tenant, request=request, tools=(), items=items, response=self.response, seed=0
            )
            prompt = write_prompt(self.served, resolved, max_tokens=limit)
            if len(prompt.token_ids) < length - self._max_tokens or characters == 0:
                return request, prompt
            characters //= 2

    def _prompt_text(self, characters: int) -> str:
        instructions = shorten(self.request.instructions or "", characters // 4)
        about = f"The assistant's instructions were:\n{instructions}\n\n" if instructions else ""
        return f"{about}The transcript:\n\n{shorten(self.transcript, characters)}\n\nNow write the summary."

    def _request(self, text: str) -> CreateResponse:
        return CreateResponse(
            model=self.request.model,
            instructions=_INSTRUCTIONS,
            input=text,
            store=False,
            temperature=0.0,
            max_output_tokens=self._max_tokens,
            reasoning=ReasoningOptions(effort="none"),
            cache_salt=self.request.cache_salt,
            priority=self.request.priority,
        )

    @property
    def _max_tokens(self) -> int:
        """At most half of the request's max_output_tokens, which the answer needs, too."""
        half = max((self.request.max_output_tokens or MAX_SUMMARY_TOKENS * 2) // 2, 1)
        return min(max(self.context // SUMMARY_SHARE, 1), MAX_SUMMARY_TOKENS, half)

    @property
    def _max_characters(self) -> int:
        return self._max_tokens * CHARACTERS_PER_TOKEN
