"""`truncation: "auto"`: the end of a conversation that fits into the context.

Items go from the beginning, but for system and developer messages and the user message that the first of the
others answers. No call is parted from its output, no approval from its call, no thought from what it led to.

The conversation is cut in steps, at places that depend only on what is before them. So the next turn's prompt
mostly begins as this one's does, and the engine has it in its prefix cache.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from server.model_formats.model_format import ModelFormat, Prompt, PromptError, PromptTooLong
from server.protocol.responses.items import (
    CallOutput,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    PairedCall,
    Reasoning,
    encode_item,
    text_of,
)

STEP_SHARE = 3
"""A conversation that is too long loses a third of the room at a time. Of loops whose turns fill a twentieth
of the room, more than four fifths of the prompts' tokens are then cached."""
ANSWER_SHARE = 8
"""An eighth of the context is left for an answer whose request does not limit it further."""
_SAMPLE = 16_384
"""Characters from which the tokens in a step are estimated."""
_ITEM_SIZE = 16
"""Characters for the markup around an item."""


def room_for_prompt(context: int, max_output_tokens: int | None) -> int:
    """The tokens that a prompt is cut to."""
    answer = context // ANSWER_SHARE
    return context - max(1, answer if max_output_tokens is None else min(answer, max_output_tokens))


def truncate(
    items: Sequence[Item],
    model_format: ModelFormat,
    write: Callable[[Sequence[Item]], Prompt],
    room: int,
    limit: int,
    dropped: int = 0,
) -> Prompt:
    """The prompt of all items, or of the longest end that has at most `room` tokens, to a step; else of the
    shortest one.

    Where the turn before left out `dropped` items, this one leaves out no fewer, and no others if that is
    enough. If not, it is a binary search, because a longer conversation has no fewer tokens. Raises
    PromptTooLong if writing even the shortest one stopped at the limit.
    """

    def write_from(cut: int) -> Prompt:
        retained = drop_before(items, cut)
        return replace(write(retained), dropped_items=len(items) - len(retained))

    def write_within_room(cut: int) -> Prompt | None:
        try:
            prompt = write_from(cut)
        except PromptTooLong:
            return None
        return prompt if len(prompt.token_ids) <= room else None

    cuts = [0, *_possible_cuts(items)]
    before = bisect_left(cuts, dropped, key=lambda cut: len(items) - len(drop_before(items, cut)))
    cuts = cuts[before:] or cuts[-1:]
    if (prompt := write_within_room(cuts[0])) is not None:
        return prompt
    step = limit / STEP_SHARE * _characters_per_token(items, model_format, limit)
    stepped = [cut for cut in stepped_cuts(items, max(1, int(step))) if cut > cuts[0]]
    low, high, best = 0, len(stepped) - 1, None
    while low <= high:
        middle = (low + high) // 2
        prompt = write_within_room(stepped[middle])
        if prompt is None:
            low = middle + 1
        else:
            best, high = prompt, middle - 1
    return best or write_from(cuts[-1])


def stepped_cuts(items: Sequence[Item], step: int) -> list[int]:
    """The indexes from which on the conversation may stay: one every `step` characters, and then all."""
    before = [0, *accumulate(map(_size, items))]
    cuts = list(_possible_cuts(items))
    stepped: list[int] = []
    passed = 0
    for cut in cuts:
        if before[cut] // step > passed:
            passed = before[cut] // step
            stepped.append(cut)
    return [*stepped, *(cut for cut in cuts if not stepped or cut > stepped[-1])]


def drop_before(items: Sequence[Item], start: int) -> list[Item]:
    """The items from index `start` on, after the instructions and the user message that they answer."""
    first = next((item for item in items[start:] if not _is_of(item, "system", "developer")), None)
    users = [] if first is None or _is_of(first, "user") else range(start)
    question = next((index for index in reversed(users) if _is_of(items[index], "user")), None)
    retained = [
        item
        for index, item in enumerate(items[:start])
        if index == question or _is_of(item, "system", "developer")
    ]
    return [*retained, *items[start:]]


def _possible_cuts(items: Sequence[Item]) -> Iterator[int]:
    """The indexes before which no item belongs to one after it."""
    ends = _ends(items)
    reach = 0
    for index, item in enumerate(items[:-1]):
        reach = max(reach, ends.get(index, 0))
        leads_on = isinstance(item, Reasoning) or _is_of(item, "assistant")
        if reach <= index and not (leads_on and not _is_of(items[index + 1], "user", "system", "developer")):
            yield index + 1


def _ends(items: Sequence[Item]) -> dict[int, int]:
    """The index of the last output or answer of each call and each request for approval, by its index.

    A model may use the id of a call again.
    """
    begun: dict[str | None, int] = {}
    ends: dict[int, int] = {}
    for index, item in enumerate(items):
        match item:
            case McpApprovalRequest():
                begun[item.id] = index
            case _ if isinstance(item, PairedCall):
                begun[item.call_id] = index
            case McpApprovalResponse() | McpCall() if item.approval_request_id in begun:
                ends[begun[item.approval_request_id]] = index
            case _ if isinstance(item, CallOutput) and item.call_id in begun:
                ends[begun[item.call_id]] = index
    return ends


def _characters_per_token(items: Sequence[Item], model_format: ModelFormat, limit: int) -> float:
    """From the conversation's beginning, so that it is the same in each turn."""
    sample, most = "", min(limit, _SAMPLE)
    for item in items:
        sample += _text(item)
        if len(sample) >= most:
            break
    try:
        return len(sample[:most]) / max(1, len(model_format.encode(sample[:most], special=False)))
    except PromptError:
        return 1.0


def _size(item: Item) -> int:
    return len(_text(item)) + _ITEM_SIZE


def _text(item: Item) -> str:
    text = text_of(item)
    return encode_item(item).decode() if text is None else text


def _is_of(item: Item, *roles: str) -> bool:
    return isinstance(item, Message) and item.role in roles
