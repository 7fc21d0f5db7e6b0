import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.limits.long_prompts import LongPromptLimit
from server.model_formats.model_format import Prompt, PromptConversation
from server.prompting.compaction_items import (
    ELLIPSIS,
    EXCERPT_CHARACTERS,
    dividing,
    newest_results,
    retained_messages,
    shorten,
    transcript,
)
from server.prompting.served_model import LoadedModel
from server.protocol.responses.items import Item, McpCall
from tests.support.builders import examples, read_items

TALK: list[Item] = read_items(
    [
        {"role": "user", "content": "What is this?"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"at": "it"}'},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "text", "text": "A cat."}],
        },
        {"type": "custom_tool_call", "call_id": "d", "name": "say", "input": "Meow"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "Said."},
        {"type": "web_search_call", "action": {"query": "cats"}},
        {"role": "assistant", "content": "A cat."},
    ]
)


def test_transcript_says_who_said_what_in_order_without_thoughts() -> None:
    lines = transcript(TALK, ()).split("\n\n")
    assert lines[:-2] == [
        "user: What is this?",
        'assistant calls look: {"at": "it"}',
        "output of the call: A cat.",
        "assistant calls say: Meow",
        "output of the call: Said.",
    ]
    assert lines[-2].startswith("web_search_call: ")
    assert "cats" in lines[-2]
    assert lines[-1] == "assistant: A cat."


def test_what_is_told_elsewhere_is_only_shown() -> None:
    long = read_items([{"role": "user", "content": "a" * 1000}, {"role": "assistant", "content": "Yes."}])
    told = transcript(long, {long[0].id})
    assert told.endswith("\n\nassistant: Yes.")
    assert len(told) < EXCERPT_CHARACTERS + 50


def test_of_a_call_of_the_servers_own_that_stays_the_beginning_and_end_are_shown() -> None:
    call = McpCall("mcp_1", "completed", "city", "find", "{}", output="a" * 1000)
    (said,) = read_items([{"role": "assistant", "content": "Yes."}])
    assert len(transcript([call, said], {call.id})) < EXCERPT_CHARACTERS + 100
    assert "a" * 1000 in transcript([call, said], ())


def test_calls_of_the_servers_own_are_among_the_newest_results() -> None:
    served: Any = SimpleNamespace(model_format=_Format())
    calls = [McpCall(f"mcp_{n}", "completed", "city", "find", "{}", output="a" * 50) for n in range(4)]
    # A call has 2 tokens, its output 50, and each of both 5 around it.
    assert newest_results(served, [*TALK, *calls], 130, 130) == calls[2:]


def test_newest_result_that_is_long_stays_alone() -> None:
    served: Any = SimpleNamespace(model_format=_Format())
    calls = [McpCall(f"mcp_{n}", "completed", "city", "find", "{}", output="a" * 50) for n in range(4)]
    assert newest_results(served, calls, 60, 130) == calls[3:]
    assert newest_results(served, calls, 60, 60) == []


def test_nothing_is_said_of_what_is_all_told_elsewhere() -> None:
    assert transcript(TALK, {item.id for item in TALK}) == ""


class _Format:
    """Counts how often a template is rendered; a token is a character."""

    def __init__(self) -> None:
        self.rendered = 0

    def write(self, _conversation: PromptConversation) -> Prompt:
        self.rendered += 1
        return Prompt(token_ids=(1,) * 5, stop_ids=frozenset())

    def encode(self, text: str, *, special: bool, limit: int | None = None) -> tuple[int, ...]:
        del special, limit
        return (1,) * len(text)


def test_the_template_is_rendered_once_for_all_messages_of_a_conversation_that_is_divided() -> None:
    model_format = _Format()
    served = cast("LoadedModel", SimpleNamespace(model_format=model_format))
    messages = read_items([{"role": "user", "content": f"{index:05}"} for index in range(1000)])
    retained = retained_messages(served, messages, 200)
    assert retained == messages[-20:]  # of five tokens each, and five around them
    assert model_format.rendered == 1


def test_a_tenant_divides_one_long_conversation_at_a_time_and_short_ones_without_waiting() -> None:
    served = cast("LoadedModel", SimpleNamespace(long_prompts=LongPromptLimit()))
    many = read_items([{"role": "user", "content": "short"} for _ in range(4000)])
    entered = threading.Event()

    def divide_many() -> None:
        with dividing(served, "a", many):
            entered.set()

    with dividing(served, "a", many):
        with dividing(served, "a", many[:10]), dividing(served, "b", many):
            second = threading.Thread(target=divide_many)
            second.start()
        assert not entered.wait(0.05)
    second.join(10)
    assert entered.is_set()


@given(st.text(max_size=80), st.integers(0, 100))
@examples(200)
def test_a_cut_text_is_the_text_or_its_beginning_and_end(text: str, most: int) -> None:
    made = shorten(text, most)
    assert len(made) <= most or made == text
    if made != text and len(ELLIPSIS) <= most:
        beginning, end = made.split(ELLIPSIS)[0], made.rsplit(ELLIPSIS, 1)[1]
        assert text.startswith(beginning)
        assert text.endswith(end)


@pytest.mark.parametrize("most", [0, 1, len(ELLIPSIS) - 1])
def test_where_no_mark_fits_the_beginning_is_left(most: int) -> None:
    assert shorten("abcdefghijkl", most) == "abcdefghijkl"[:most]
