"""Calls that a model makes before it has ended its reasoning, and calls that it only mentions there."""

import json
import random
from dataclasses import replace

import pytest

from server.model_formats.model_format import (
    CallDelta,
    CallEnd,
    CallStart,
    Prompt,
    PromptConversation,
    ReasoningDelta,
    TextDelta,
    merge_deltas,
)
from server.protocol.responses.items import InputText, Message
from server.protocol.responses.tools import ToolChoice
from tests.support.families import CLOCK, THINKERS, TOOLS, WEATHER, format_of, ids_of, shown
from tests.support.family_formats import FAMILIES
from tests.support.walks import compiler_of, hints_of, walk

OPENED = Prompt(token_ids=(), stop_ids=frozenset(), tools=TOOLS, opens_reasoning=True)
USER = Message("1", "completed", "user", [InputText("hi")])
CALL = ["function get_weather", "end"]

with_openers = pytest.mark.parametrize(
    "name",
    [
        name
        for name in THINKERS
        if (calls := format_of(name)._calls) and calls.in_reasoning and not calls.bare_starts
    ],
)


def told(name: str, text: str, prompt: Prompt = OPENED) -> list[str]:
    """What a parser tells of an output, the same at every split: of calls the names and ends."""
    ids = ids_of(name, text)
    parser = format_of(name).parser(prompt)
    whole = parser.feed(ids) + parser.close()
    parser = format_of(name).parser(prompt)
    split = [delta for token in ids for delta in parser.feed([token])] + parser.close()
    assert merge_deltas(split) == merge_deltas(whole)
    words = [word for word in shown(whole) if not word.startswith("{")]
    return [" ".join(word.split()[:2]) if word.startswith("function") else word for word in words]


@with_openers
def test_a_call_in_place_of_the_end_of_the_reasoning_is_made(name: str) -> None:
    family = FAMILIES[name]
    assert told(name, f"I look. {family.call}") == ["thought I look.", *CALL]
    assert told(name, family.call) == CALL


@with_openers
def test_a_call_before_the_end_of_the_reasoning_is_made_if_nothing_follows(name: str) -> None:
    family = FAMILIES[name]
    assert told(name, f"I look. {family.call}{family.close}") == ["thought I look.", *CALL]
    assert told(name, f"I look. {family.call}{family.close}\n\n") == ["thought I look.", *CALL]


@with_openers
def test_a_call_in_the_reasoning_that_an_answer_follows_was_only_considered(name: str) -> None:
    family = FAMILIES[name]
    for after in ("No need.", " It rains."):
        *thoughts, answer = told(name, f"Perhaps {family.call} would do.{family.close}{after}")
        assert answer == f"text {after.strip()}"
        (thought,) = thoughts
        assert thought.startswith("thought Perhaps ")
        assert thought.endswith(" would do.")
        assert "get_weather" in thought
        assert "Paris" in thought


@with_openers
def test_of_two_calls_around_the_end_of_the_reasoning_the_second_is_made(name: str) -> None:
    family = FAMILIES[name]
    words = told(name, f"So: {family.call} Yes.{family.close}{family.call}")
    assert [word for word in words if not word.startswith("thought")] == CALL


@with_openers
def test_a_mentioned_opener_is_reasoning(name: str) -> None:
    family = FAMILIES[name]
    opener = format_of(name)._markup.restore(format_of(name)._calls.openers[0])  # type: ignore[union-attr]
    for text in (f"Maybe {opener} is what I need", f"{opener}{opener}", f"Not {opener}x y z"):
        assert told(name, f"{text}{family.close}Yes.") == [f"thought {text}", "text Yes."]
        assert told(name, text) == [f"thought {text}"]


@with_openers
def test_a_call_that_is_only_begun_does_not_swallow_the_answer(name: str) -> None:
    """The tag in a value ends the reasoning where the call is cut off, or another call follows."""
    family = FAMILIES[name]
    begun = f"Like {family.call.partition('Paris')[0]}and so on."
    for rest, words in (("Yes.", ["text Yes."]), (f"Yes.{family.call}", ["text Yes.", *CALL])):
        thought, *others = told(name, f"{begun}{family.close}{rest}")
        assert (thought, others) == (f"thought {begun}", words)
    if "</think>" in family.plain:
        asked = family.call.replace("Paris", "</think>")
        assert told(name, asked) == CALL


@with_openers
def test_a_call_of_a_tool_that_is_not_offered_is_reasoning(name: str) -> None:
    family = FAMILIES[name]
    other = replace(OPENED, tools=(CLOCK,))
    words = told(name, f"I look. {family.call}", other)
    assert [word.partition(" ")[0] for word in words] == ["thought"]


@with_openers
def test_tokens_of_a_call_in_the_reasoning_are_no_reasoning_tokens(name: str) -> None:
    family = FAMILIES[name]
    thought, call = ids_of(name, "I look at it. "), ids_of(name, family.call)
    parser = format_of(name).parser(OPENED)
    parser.feed([*thought, *call])
    parser.close()
    assert abs(parser.reasoning_tokens - len(thought)) <= 1


@with_openers
def test_many_calls_and_mentions_in_the_reasoning_are_read_in_linear_time(name: str) -> None:
    family = FAMILIES[name]
    opener = format_of(name)._markup.restore(format_of(name)._calls.openers[0])  # type: ignore[union-attr]
    text = f"{family.call} {opener} and " * 300
    words = told(name, f"{text}{family.close}Done.")
    assert words[-1] == "text Done."
    assert words[0].count("Paris") == 300


@with_openers
def test_a_forced_call_may_take_the_place_of_the_end_of_the_reasoning(name: str) -> None:
    """Without it a model that calls within its reasoning could not end before its limit of tokens."""
    compiler = compiler_of(name)
    tools = (replace(WEATHER, strict=True), CLOCK)
    prompts = [
        format_of(name).write(
            PromptConversation(
                items=[USER], tools=tools, tool_choice=ToolChoice(mode=mode), reasoning_effort="high"
            )
        )
        for mode in ("required", "auto")
    ]
    family = FAMILIES[name]
    for prompt in prompts:
        assert prompt.grammar is not None
        begin = (
            ids_of(name, "I look. ")
            if prompt.opens_reasoning
            else ids_of(name, f"{family.open.lstrip()}I look. ")
        )
        lead = ids_of(name, format_of(name)._markup.restore(format_of(name)._calls.prefix))  # type: ignore[union-attr]
        tokens = walk(compiler, prompt.grammar, random.Random(name), hints_of(name), [*begin, *lead])
        parser = format_of(name).parser(prompt)
        deltas = merge_deltas(parser.feed(tokens) + parser.close())
        assert isinstance(deltas[0], ReasoningDelta)
        assert deltas[0].text == "I look."
        calls = [delta for delta in deltas if isinstance(delta, CallStart)]
        assert calls
        assert len(calls) == sum(isinstance(delta, CallEnd) for delta in deltas)
        for start, arguments in zip(calls, [d for d in deltas if isinstance(d, CallDelta)], strict=True):
            assert start.name != "get_weather" or "city" in json.loads(arguments.text)
        assert not any(isinstance(delta, TextDelta) for delta in deltas)
