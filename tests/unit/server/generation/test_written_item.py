"""Reasoning that is its own summary: its events, and runs that are resumed in the midst of them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.generation.output_decoding import DecodingSpec
from server.generation.run import Run
from server.generation.run_log import RunLog
from server.protocol.responses.events import Event, event_type, first_events, render
from tests.support.builders import (
    LATER,
    RESPONSE,
    SDK_EVENT,
    SpelledParser,
    examples,
    make_facts,
    resume,
    say,
    think,
)

WORDS = st.text("ab \n日", max_size=90)


def make_run(*, summarizes_reasoning: bool = True) -> Run:
    return Run(make_facts(), DecodingSpec(SpelledParser(), summarizes_reasoning=summarizes_reasoning))


def play(run: Run, tokens: Sequence[int]) -> list[Event]:
    return (
        first_events(run.facts, run.facts.echo)
        + run.start()
        + run.tokens(tokens, LATER)
        + run.fail("server_error", "Why.", LATER)
    )


def told(events: Sequence[Event]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [json.loads(render(RESPONSE, event)) for event in events]
    return found


def test_the_summary_is_told_in_openais_events_and_in_the_item() -> None:
    events = play(make_run(), [*think("I see it."), *say("Yes")])
    for event in events:
        SDK_EVENT.validate_json(render(RESPONSE, event))
    kinds = [event_type(event).removeprefix("response.") for event in events]
    assert kinds[2:6] == [
        "output_item.added",
        "content_part.added",
        "reasoning_summary_part.added",
        "reasoning_text.delta",
    ]
    last = kinds.index("output_item.done")
    assert kinds[last - 5 : last] == [
        "reasoning_text.done",
        "content_part.done",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ]
    deltas = [event["delta"] for event in told(events) if event["type"].endswith("summary_text.delta")]
    assert deltas == ["I ", "see ", "it."]
    item = told(events)[last]["item"]
    assert item["summary"] == [{"type": "summary_text", "text": "I see it."}]
    assert item["content"] == [{"type": "reasoning_text", "text": "I see it."}]


def test_without_a_wish_for_it_there_is_no_summary() -> None:
    events = play(make_run(summarizes_reasoning=False), [*think("I see it."), *say("Yes")])
    assert not any("summary_" in event_type(event) for event in events)
    assert all(not event["item"]["summary"] for event in told(events) if event.get("item", {}).get("summary"))


@given(WORDS, WORDS, st.integers(0, 90))
@examples(80)
def test_a_run_that_is_resumed_tells_the_summary_as_if_it_had_not_been_cut(
    thought: str, answer: str, cut: int
) -> None:
    tokens = [*think(thought), *say(answer)]
    unbroken = play(make_run(), tokens)
    first = make_run()
    stored = first_events(first.facts, first.facts.echo) + first.start() + first.tokens(tokens[:cut], LATER)
    second = make_run()
    resume(second, RunLog([(0, tokens[:cut])], len(stored), stored, LATER))
    rest = second.tokens(tokens[cut:], LATER) + second.fail("server_error", "Why.", LATER)
    assert told([*stored, *rest]) == told(unbroken)


@given(WORDS, st.integers(1, 90))
@examples(40)
def test_a_run_that_can_only_fail_ends_the_summary_that_was_told(thought: str, cut: int) -> None:
    tokens = think(f"x{thought}")[:cut]
    first = make_run()
    stored = first_events(first.facts, first.facts.echo) + first.start() + first.tokens(tokens, LATER)
    second = make_run()
    second.restore_output_only(RunLog([(0, tokens)], len(stored), stored, LATER))
    rest = second.fail("server_error", "Why.", LATER)
    assert told([*stored, *rest])[:-1] == told(play(make_run(), tokens))[:-1]


@pytest.mark.parametrize("summarizes_reasoning", [True, False])
def test_a_log_says_whether_its_reasoning_has_summaries(summarizes_reasoning: bool) -> None:
    for said, answer in ((think("Hm"), summarizes_reasoning), (say("Hm"), None)):
        events = play(make_run(summarizes_reasoning=summarizes_reasoning), said)
        assert RunLog((), len(events), events, None).has_summaries() is answer
