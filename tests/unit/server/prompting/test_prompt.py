from collections.abc import Sequence
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from server.model_formats.model_format import Prompt
from server.prompting.prompt import drop_before, truncate_turns
from server.protocol.responses.items import FunctionCall, FunctionCallOutput, InputText, Item, Message
from tests.support.builders import examples

Role = Literal["user", "assistant", "system", "developer"]


def say(role: Role, text: str = "x") -> Message:
    return Message("", "completed", role, [InputText(text)])


CALL = FunctionCall("", "completed", "c", "f", "{}")
OUTPUT = FunctionCallOutput("", "completed", "c", "done")
TURNS: list[list[Item]] = [
    [say("user"), say("assistant")],
    [say("user"), CALL, OUTPUT, say("assistant")],
    [say("system"), say("user")],
]
turns = st.lists(
    st.sampled_from(TURNS),
    min_size=1,
    max_size=8,
).map(lambda turns: [item for turn in turns for item in turn])


def write(items: Sequence[Item]) -> Prompt:
    """A prompt with a token for each item."""
    return Prompt(token_ids=tuple(range(len(items))), stop_ids=frozenset())


@given(turns, st.integers(1, 30))
@examples(200)
def test_the_longest_end_of_whole_turns_that_fits_is_kept(items: list[Item], limit: int) -> None:
    prompt = truncate_turns(items, write, limit)
    starts = [n for n, item in enumerate(items) if isinstance(item, Message) and item.role == "user"]
    fitting = [drop_before(items, start) for start in starts[1:] if len(drop_before(items, start)) <= limit]
    assert (prompt is None) == (not fitting)
    if prompt is not None:
        assert len(prompt.token_ids) == max(map(len, fitting))


@given(turns)
@examples(50)
def test_instructions_stay_and_no_call_is_parted_from_its_output(items: list[Item]) -> None:
    for start, item in enumerate(items):
        if isinstance(item, Message) and item.role == "user":
            kept = drop_before(items, start)
            assert kept.count(say("system")) == items.count(say("system"))
            assert kept.count(CALL) == kept.count(OUTPUT)
