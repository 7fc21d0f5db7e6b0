"""Drafts come from where a request's last tokens occurred before, and from the caller's prediction."""

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.prompt_lookup import PromptLookup

COPY = [1, 2, 3, 4, 5, 6, 7, 8]


def test_what_followed_the_last_tokens_is_drafted() -> None:
    assert PromptLookup([*COPY, 20, 3, 4]).draft(3) == [5, 6, 7]


def test_the_longer_match_counts_before_the_later_one() -> None:
    lookup = PromptLookup([1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4])
    assert lookup.draft(1) == [50]


def test_the_later_of_two_matches_counts() -> None:
    assert PromptLookup([3, 4, 50, 3, 4, 60, 3, 4]).draft(1) == [60]


def test_tokens_that_occur_for_the_first_time_have_no_draft() -> None:
    lookup = PromptLookup([1, 2, 3, 4])
    assert not lookup.has_draft
    assert lookup.draft(4) == []


def test_a_place_is_followed_while_the_output_goes_on_as_it_does() -> None:
    text = [*COPY, 2, 3, 70, 71]
    lookup = PromptLookup([*text, 1, 2])
    lookup.advance([*text, 1, 2, 3, 4])
    assert lookup.draft(4) == [5, 6, 7, 8]


def test_another_token_ends_it_and_is_looked_up_itself() -> None:
    text = [*COPY, 30, 31, 32]
    lookup = PromptLookup([*text, 2, 3])
    assert lookup.draft(1) == [4]
    lookup.advance([*text, 2, 3, 30, 31])
    assert lookup.draft(1) == [32]


def test_a_loop_is_drafted_round_and_round() -> None:
    assert PromptLookup([7, 8, 9, 7, 8, 9]).draft(7) == [7, 8, 9, 7, 8, 9, 7]


def test_a_draft_ends_before_tokens_that_end_the_request() -> None:
    assert PromptLookup([*COPY, 1, 2]).draft(4, {5}) == [3, 4]


def test_a_prediction_is_drafted_from_its_beginning_on() -> None:
    lookup = PromptLookup([1, 2, 3], COPY)
    assert lookup.draft(3) == [1, 2, 3]
    lookup.advance([1, 2, 3, 1, 2, 3])
    assert lookup.draft(9) == [4, 5, 6, 7, 8]
    assert lookup.accepted == 3


def test_after_a_change_a_prediction_is_found_again() -> None:
    lookup = PromptLookup([], COPY)
    lookup.advance([1, 2, 90, 91, 4, 5])
    assert lookup.draft(3) == [6, 7, 8]
    lookup.advance([1, 2, 90, 91, 4, 5, 6])
    assert lookup.accepted == 3


def test_estimates_follow_what_came() -> None:
    lookup = PromptLookup([*COPY, 1, 2, 3, 4])
    before = lookup.probability(0)
    lookup.advance([*COPY, 1, 2, 3, 4, 5])
    assert PromptLookup([*COPY, 1, 2, 3, 4]).probability(0) == before
    wrong = PromptLookup([*COPY, 1, 2, 3, 4])
    wrong.advance([*COPY, 1, 2, 3, 4, 99, 1, 2, 3, 4])
    assert wrong.probability(0) < before


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=60), st.data())
def test_how_tokens_come_does_not_matter(prompt: list[int], output: list[int], data: st.DataObject) -> None:
    whole, parts = PromptLookup(prompt), PromptLookup(prompt)
    tokens = [*prompt, *output]
    whole.advance(tokens)
    for end in sorted(data.draw(st.lists(st.integers(len(prompt), len(tokens)), max_size=5))):
        parts.advance(tokens[:end])
    parts.advance(tokens)
    assert parts.draft(8) == whole.draft(8)
    assert [parts.probability(place) for place in range(40)] == [whole.probability(p) for p in range(40)]
