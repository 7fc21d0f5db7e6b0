"""`truncation: "auto"`: what stays of a conversation, and how much of it the next prompt begins with."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.model_formats.model_format import Prompt, PromptConversation, PromptTooLong
from server.prompting.truncation import drop_before, room_for_prompt, stepped_cuts
from server.prompting.write_prompt import characters_of, write_within
from server.protocol.responses.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    Reasoning,
    ReasoningText,
    encode_item,
)
from tests.support.builders import examples

SYSTEM = Message("", "completed", "system", [InputText("Be brief.")])


def say(role: Any, text: str = "x") -> Message:
    return Message("", "completed", role, [InputText(text)])


def think(text: str = "hm") -> Reasoning:
    return Reasoning("", "completed", [], [ReasoningText(text)])


def call(name: str) -> FunctionCall:
    return FunctionCall("", "completed", name, "f", "{}")


def output(name: str, text: str = "done") -> FunctionCallOutput:
    return FunctionCallOutput("", "completed", name, text)


APPROVAL: list[Item] = [
    McpApprovalRequest("mcpr_1", "s", "n", "{}"),
    McpApprovalResponse("", "mcpr_1", approve=True),
    McpCall("", "completed", "s", "n", "{}", approval_request_id="mcpr_1", output="done"),
]
PIECES: list[list[Item]] = [
    [say("user"), say("assistant")],
    [say("user"), think(), say("assistant")],
    [think(), call("c"), output("c")],
    [think(), say("assistant"), call("a"), call("b"), output("a"), output("b")],
    [McpCall("", "completed", "s", "n", "{}", output="done")],
    APPROVAL,
    [say("developer"), say("user")],
]
conversations = st.lists(st.sampled_from(PIECES), max_size=8).map(
    lambda pieces: [SYSTEM, say("user", "the task"), *(item for piece in pieces for item in piece)]
)


class Characters:
    """A model format with a token for each `width` characters of an item, which begins at a token."""

    max_chars_per_token = 1000

    def __init__(self, width: int = 1) -> None:
        self._width = width
        self.written = 0

    def write(self, conversation: PromptConversation) -> Prompt:
        self.written += 1
        assert conversation.max_tokens is not None
        tokens: list[int] = []
        for item in conversation.items:
            tokens += self.encode(encode_item(item).decode(), special=False)
            if len(tokens) > 2 * conversation.max_tokens:
                raise PromptTooLong(conversation.max_tokens)
        return Prompt(token_ids=tuple(tokens), stop_ids=frozenset())

    def encode(self, text: str, *, special: bool, limit: int | None = None) -> tuple[int, ...]:  # noqa: ARG002
        parts = range(0, len(text), self._width)
        return tuple(hash(text[start : start + self._width]) for start in parts)


def write(model_format: Characters, items: Sequence[Item], context: int) -> Prompt:
    conversation = PromptConversation(items=items)
    room, size = room_for_prompt(context, None), characters_of(conversation)
    return write_within(model_format, conversation, context - 1, size, room)  # type: ignore[arg-type]


@given(conversations, st.integers(1, 60))
@examples(200)
def test_no_pair_is_parted_and_instructions_and_the_question_stay(items: list[Item], step: int) -> None:
    for cut in stepped_cuts(items, step):
        kept = drop_before(items, cut)
        rest = items[cut:]
        assert kept[-len(rest) :] == rest != []
        assert kept[0] is SYSTEM
        instructions = [item for item in items if isinstance(item, Message) and item.role == "developer"]
        assert sum(item in instructions for item in kept) == len(instructions)
        assert any(isinstance(item, Message) and item.role == "user" for item in kept)
        for name in "abc":
            assert kept.count(call(name)) == kept.count(output(name))
        assert len({kept.count(one) for one in APPROVAL}) == 1
        assert not isinstance(items[cut - 1], Reasoning)


def test_a_call_id_that_comes_again_ties_each_call_to_its_own_output_only() -> None:
    items = [say("user"), *[item for _ in range(5) for item in (call("c"), output("c"))]]
    assert stepped_cuts(items, 10**6) == [1, 3, 5, 7, 9]


def test_what_is_cut_off_does_not_depend_on_what_comes_after() -> None:
    items: list[Item] = [say("user")]
    seen: list[int] = []
    for turn in range(60):
        items += [think("x" * (turn % 7)), call(str(turn)), output(str(turn), "word " * (turn % 11))]
        cuts = [cut for cut in stepped_cuts(items, 200) if cut < len(items) - 40]
        assert cuts[: len(seen)] == seen
        seen = cuts[: len(cuts) // 2]


def loop(width: int, context: int, turns: int) -> tuple[float, list[Prompt]]:
    """The share of cached tokens in the prompts of a loop with `turns` tool calls, and these prompts."""
    model_format = Characters(width)
    items: list[Item] = [SYSTEM, say("user", "the task " * 10)]
    prompts = []
    for turn in range(turns):
        prompts.append(write(model_format, items, context))
        text = f"{turn} " * (context // 40 * width // 3 + turn % 5)
        items += [think(f"thought {turn}"), call(f"call_{turn}"), output(f"call_{turn}", text)]
    assert model_format.written < turns * 6
    cached = 0
    for before, after in pairwise(prompts):
        pairs = zip(before.token_ids, after.token_ids, strict=False)
        cached += next((n for n, (one, other) in enumerate(pairs) if one != other), len(before.token_ids))
    return cached / sum(len(prompt.token_ids) for prompt in prompts), prompts


@pytest.mark.parametrize(
    ("width", "context"),
    [(1, 20_000), (4, 8_192), pytest.param(5, 32_768, marks=pytest.mark.faults)],
)
def test_a_loop_of_a_hundred_turns_reads_four_fifths_of_its_prompts_from_the_prefix_cache(
    width: int, context: int
) -> None:
    share, prompts = loop(width, context, 100)
    room = room_for_prompt(context, None)
    lengths = [len(prompt.token_ids) for prompt in prompts]
    assert max(lengths) <= room
    assert min(lengths[50:]) > room / 2
    assert share >= 0.8


def test_room_is_left_for_an_answer_but_not_for_more_than_was_asked_for() -> None:
    rooms = [room_for_prompt(8192, most) for most in (None, 10_000, 100, 1, 0)]
    assert rooms == [7168, 7168, 8092, 8191, 8191]


def test_a_prompt_that_cannot_be_cut_to_the_room_may_fill_the_context() -> None:
    model_format = Characters()
    one = [say("user", "x" * 850)]
    size = len(encode_item(one[0]).decode())
    assert len(write(model_format, one, size + 1).token_ids) == size
    two = [say("user", "before"), say("assistant"), *one]
    assert len(write(model_format, two, size + 1).token_ids) == size
