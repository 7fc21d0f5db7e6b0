"""Prompts longer than the context: refused, or truncated to the conversation's newest turns. Pure.

A turn begins with a user message and is dropped as a whole, so that no call loses its output. System and
developer messages and the last turn always stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from server.errors import InvalidRequest
from server.hosted_tools.call_items import items_for_model
from server.limits.tools_and_grammars import characters_of, text_size
from server.model_formats.interface import Conversation, ModelFormat, Prompt, PromptTooLong
from server.protocol.responses.items import Item, Message
from server.protocol.responses.request import TruncationSide


def write_within(
    model_format: ModelFormat, conversation: Conversation, limit: int, *, truncates: bool
) -> Prompt:
    """The prompt of a conversation; with `truncates`, of its newest turns if the whole is too long.

    A conversation with more characters than `limit` tokens can have is not written. Raises PromptError, and
    PromptTooLong if tokenizing stopped at the limit; without `truncates` a prompt may exceed `limit`.
    """
    longest = model_format.max_chars_per_token
    most = None if longest is None else longest * limit

    def write(kept: Sequence[Item]) -> Prompt:
        if most is not None and characters_of(replace(conversation, items=kept)) > most:
            raise PromptTooLong(limit)
        return model_format.write(replace(conversation, items=items_for_model(kept), max_tokens=limit))

    prompt = None
    try:
        prompt = write(conversation.items)
    except PromptTooLong:
        if not truncates:
            raise
    if prompt is None or (truncates and len(prompt.token_ids) > limit):
        prompt = truncate_turns(conversation.items, write, limit, most) or prompt
    if prompt is None:
        raise PromptTooLong(limit)
    return prompt


def truncate_tokens(
    token_ids: tuple[int, ...],
    most: int | None,
    side: TruncationSide | None,
    *,
    context: int,
    max_output: int | None,
) -> tuple[int, ...]:
    """VLLM's `truncate_prompt_tokens`: the last `most` tokens of a prompt, the first ones with side `right`.

    None keeps all; -1 keeps as many as leave room for `max_output` tokens in the context. Raises
    InvalidRequest if none is left.
    """
    if most is None:
        return token_ids
    if most < 0:
        most = max(1, context - max(1, max_output or 1))
    if most == 0:
        raise InvalidRequest("No token of the prompt would be left.", param="truncate_prompt_tokens")
    return token_ids[:most] if side == "right" else token_ids[-most:]


def truncate_turns(
    items: Sequence[Item], write: Callable[[Sequence[Item]], Prompt], limit: int, most: int | None = None
) -> Prompt | None:
    """The prompt of the most newest turns that have at most `limit` tokens; None if the last one has more.

    A binary search, because a longer conversation has no fewer tokens. Turns with more than `most`
    characters are not tokenized.
    """
    starts = [index for index, item in enumerate(items) if _begins_turn(item)]
    low, high, best = _first_start_within(items, starts, most), len(starts) - 1, None
    while low <= high:
        middle = (low + high) // 2
        try:
            prompt = write(drop_before(items, starts[middle]))
        except PromptTooLong:
            low = middle + 1
            continue
        if len(prompt.token_ids) <= limit:
            best, high = prompt, middle - 1
        else:
            low = middle + 1
    return best


def _first_start_within(items: Sequence[Item], starts: Sequence[int], most: int | None) -> int:
    """The first turn but number 0 from which on there are at most `most` characters."""
    if most is None:
        return 1
    size, end = 0, len(items)
    for number in range(len(starts) - 1, 0, -1):
        size += sum(map(text_size, items[starts[number] : end]))
        end = starts[number]
        if size > most:
            return number + 1
    return 1


def drop_before(items: Sequence[Item], start: int) -> list[Item]:
    """The items from index `start` on, after the instructions before it."""
    instructions = [item for item in items[:start] if isinstance(item, Message) and _instructs(item)]
    return [*instructions, *items[start:]]


def _instructs(item: Message) -> bool:
    return item.role in ("system", "developer")


def _begins_turn(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "user"
