import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import FinishReason, TokenUsage
from server.generation.run import Run
from server.generation.run_log import RunLog
from server.protocol.responses.events import Event, event_type, first_events, render
from server.protocol.responses.items import Item, Message, Reasoning
from tests.support.builders import (
    CREATED,
    HALF,
    LATER,
    RESPONSE,
    THINK,
    USAGE,
    examples,
    make_run,
    resume,
    say,
    think,
)

characters = st.characters(exclude_categories=["Cs"]).map(ord).filter(lambda code: code < 0x10FFFE)
answers = st.lists(characters | st.just(HALF), max_size=15)
reasonings = st.lists(characters.map(lambda code: THINK + code), max_size=6)
tokens = st.builds(lambda first, then: [*first, *then], reasonings, answers)
REASONS: list[FinishReason] = ["stop", "length", "cancelled"]


def split(token_ids: Sequence[int], cuts: list[int]) -> list[tuple[int, ...]]:
    places = sorted({0, len(token_ids), *(min(cut, len(token_ids)) for cut in cuts)})
    return [tuple(token_ids[a:b]) for a, b in itertools.pairwise(places)]


def play(run: Run, pieces: list[tuple[int, ...]], reason: FinishReason | None) -> list[Event]:
    events = first_events(run.facts, run.facts.echo) + run.start()
    for piece in pieces:
        events += run.tokens(piece, LATER)
    if reason is None:
        return events + run.fail("server_error", "Why.", LATER)
    return events + run.finish(reason, USAGE, LATER)


def text_of(items: list[Item]) -> list[tuple[str, str]]:
    """Ids and texts."""
    told = []
    for item in items:
        assert isinstance(item, Message | Reasoning)
        assert isinstance(item.content, list)
        told.append((item.id, "".join(part.text for part in item.content)))  # type: ignore[union-attr]
    return told


@given(tokens, st.lists(st.integers(0, 20)), st.sampled_from([*REASONS, None]))
@examples(150)
def test_any_split_of_the_same_tokens_gives_the_same_output(
    token_ids: list[int], cuts: list[int], reason: FinishReason | None
) -> None:
    whole, pieces = make_run(), make_run()
    play(whole, split(token_ids, []), reason)
    events = play(pieces, split(token_ids, cuts), reason)
    assert whole.output == pieces.output
    assert whole.ending == pieces.ending
    assert whole.final == pieces.final
    assert [event.sequence_number for event in events] == list(range(len(events)))


@given(tokens, st.lists(st.integers(0, 20)), st.integers(0, 20), st.sampled_from([*REASONS, None]))
@examples(200)
def test_a_run_that_is_resumed_at_any_cut_goes_on_as_if_it_had_not_been_cut(
    token_ids: list[int], cuts: list[int], cut: int, reason: FinishReason | None
) -> None:
    pieces = split(token_ids, cuts)
    before, after = pieces[:cut], pieces[cut:]
    unbroken = make_run()
    expected = play(unbroken, pieces, reason)
    first = make_run()
    stored = (
        first_events(first.facts, first.facts.echo)
        + first.start()
        + [event for piece in before for event in first.tokens(piece, LATER)]
    )

    second = make_run()
    resume(second, RunLog([(0, [token for piece in before for token in piece])], len(stored), (), LATER))
    rest = [event for piece in after for event in second.tokens(piece, LATER)]
    if reason is None:
        rest += second.fail("server_error", "Why.", LATER)
    else:
        resumed = sum(map(len, before))
        prompt, output = USAGE.prompt + resumed, USAGE.output - resumed
        rest += second.finish(reason, TokenUsage(prompt, USAGE.cached, output), LATER)

    assert [render(RESPONSE, event) for event in stored + rest] == [
        render(RESPONSE, event) for event in expected
    ]


@given(tokens, st.integers(2, 50))
@examples(50)
def test_a_resumed_run_takes_the_number_it_is_given(token_ids: list[int], next_seq: int) -> None:
    run = make_run()
    resume(run, RunLog([(0, token_ids)], next_seq, (), None))
    events = run.finish("stop", USAGE, LATER)
    assert [event.sequence_number for event in events] == [next_seq + n for n in range(len(events))]


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("cancelled", "cancelled", None),
    ],
)
def test_the_engines_reason_becomes_the_status(reason: FinishReason, status: str, why: str | None) -> None:
    run = make_run()
    play(run, [think("r"), say("ab")], reason)
    assert run.ending is not None
    assert (run.ending.status, run.ending.incomplete_reason) == (status, why)
    assert (run.ending.input_tokens, run.ending.cached_tokens, run.ending.output_tokens) == (11, 3, 7)
    assert run.ending.reasoning_tokens == 1
    assert (run.ending.first_token_at, run.ending.finished_at) == (LATER, LATER)
    assert run.final is not None
    assert run.final.created_at == int(CREATED.timestamp())


@pytest.mark.parametrize("reason", REASONS)
def test_a_run_that_does_not_generate_says_and_counts_nothing(reason: FinishReason) -> None:
    run = make_run(wants_output=False)
    events = play(run, [say("a")], reason)
    ended = "incomplete" if reason == "cancelled" else "completed"
    assert [event_type(event) for event in events] == [
        "response.created",
        "response.in_progress",
        f"response.{ended}",
    ]
    assert run.output == []
    assert run.ending is not None
    assert (run.ending.input_tokens, run.ending.output_tokens) == (11, 0)


def test_a_failed_run_keeps_its_output_and_counts_its_tokens_itself() -> None:
    run = make_run()
    events = play(run, [think("r"), say("ab")], None)
    assert event_type(events[-1]) == "response.failed"
    assert [type(item) for item in run.output] == [Reasoning, Message]
    assert [text for _, text in text_of(run.output)] == ["r", "ab"]
    assert run.ending is not None
    assert (run.ending.input_tokens, run.ending.output_tokens) == (11, 3)
    assert (run.ending.error_code, run.ending.error_message) == ("server_error", "Why.")


def test_what_the_parser_held_back_is_told_at_the_end() -> None:
    run = make_run()
    assert run.tokens((*say("a"), HALF), LATER) != []
    assert run.tokens((HALF,), LATER) == []
    events = run.finish("length", USAGE, LATER)
    assert events[0].body == "\ufffd"
    assert [text for _, text in text_of(run.output)] == ["a\ufffd"]


def test_a_run_has_no_final_response_before_its_end() -> None:
    run = make_run()
    run.tokens(say("a"), LATER)
    assert (run.ending, run.final) == (None, None)


@given(tokens, st.lists(st.integers(0, 20)), st.integers(0, 20), st.text("ab", min_size=1, max_size=2))
@examples(200)
def test_a_stop_string_ends_a_run_alike_wherever_it_was_cut_and_however_the_engine_ended(
    token_ids: list[int], cuts: list[int], cut: int, stop: str
) -> None:
    token_ids = [*token_ids, *say(f"x{stop}y")]
    first, whole = make_run(stop), make_run(stop)
    expected = play(whole, [tuple(token_ids)], "cancelled")
    assert whole.ending is not None
    assert whole.ending.status == "completed"
    pieces = split(token_ids, cuts)
    stored = first_events(first.facts, first.facts.echo) + first.start()
    for piece in pieces[:cut]:
        stored += first.tokens(piece, LATER)

    second = make_run(stop)
    logged = [token for piece in pieces[:cut] for token in piece]
    resume(second, RunLog([(0, logged)], len(stored), (), LATER))
    for piece in pieces[cut:]:
        second.tokens(piece, LATER)
    assert second.has_stopped
    resumed = min(len(logged), whole.ending.output_tokens)
    second.finish("length", TokenUsage(USAGE.prompt + resumed, USAGE.cached, 99), LATER)
    assert second.output == whole.output
    assert second.ending == whole.ending
    assert expected


def test_a_run_that_a_stop_string_has_ended_is_complete_even_if_the_engine_fails_then() -> None:
    run = make_run("b")
    run.start()
    run.tokens(say("abc"), LATER)
    run.fail("server_error", "Why.", LATER)
    assert run.ending is not None
    assert (run.ending.status, run.ending.output_tokens, run.ending.error_code) == ("completed", 2, None)
    assert text_of(run.output)[0][1] == "a"


def test_a_stop_string_in_reasoning_is_reasoning() -> None:
    run = make_run("b")
    play(run, [think("abc"), say("xby")], "stop")
    assert [text for _, text in text_of(run.output)] == ["abc", "x"]
