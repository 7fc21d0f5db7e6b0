from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import EngineRequest, SamplingParams, StopMatch
from engine.scheduling.sequence import StopStrings, TokenSequence
from engine.vocabulary import Vocabulary
from tests.support.rounds import example_count


def run(pieces: list[bytes], texts: list[str], cut: int = 0) -> tuple[int, StopMatch] | None:
    """After how many tokens the output ends, and why; the first `cut` came before the request was cut."""
    stops = StopStrings(texts, Vocabulary(tuple(pieces)), range(cut))
    for token in range(cut, len(pieces)):
        hit = stops.push(token, ends=True)
        if hit is not None:
            return token + 1, hit
    return None


def split(text: bytes, places: set[int]) -> list[bytes]:
    borders = [0, *sorted(places), len(text)]
    return [text[a:b] for a, b in pairwise(borders)]


def plainly(text: bytes, texts: list[str]) -> tuple[int, int, str] | None:
    """The first end of a stop string, where it begins, and which: the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in texts if text[:end].endswith(stop.encode())]
        if found:
            best = max(found, key=lambda stop: len(stop.encode()))
            return end, end - len(best.encode()), best
    return None


TEXTS = st.text(alphabet="ab\u00e4\U0001f389", min_size=1, max_size=5)


@settings(max_examples=example_count(500), deadline=None)
@given(
    st.text(alphabet="ab\u00e4\U0001f389", max_size=20), st.lists(TEXTS, min_size=1, max_size=4), st.data()
)
def test_the_first_stop_string_is_found_at_every_split_and_cut(
    output: str, texts: list[str], data: st.DataObject
) -> None:
    text = output.encode()
    pieces = split(text, data.draw(st.sets(st.integers(0, len(text)))))
    expected = plainly(text, texts)
    begun = 0
    while expected is not None and sum(map(len, pieces[:begun])) < expected[0]:
        begun += 1
    cut = data.draw(st.integers(0, max(0, begun - 1)))
    found = run(pieces, texts, cut)
    if expected is None:
        assert found is None
        return
    assert found is not None
    count, hit = found
    _, start, which = expected
    held = b"".join(pieces[count - hit.tokens : count])
    before = b"".join(pieces[: count - hit.tokens])
    assert count == begun
    assert hit.text == which
    assert before + held[: hit.before] == text[:start]
    assert held[hit.before : len(held) - hit.after] == which.encode()
    assert hit.before < len(pieces[count - hit.tokens])
    assert hit.after < len(pieces[count - 1])


def test_a_stop_string_is_found_at_every_split_of_a_text() -> None:
    text = "Once \U0001f389STOP\n and".encode()
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            pieces = split(text, {first, second})
            found = run(pieces, ["\U0001f389STOP\n", "never"])
            assert found is not None
            count, hit = found
            held = b"".join(pieces[count - hit.tokens : count])
            assert b"".join(pieces[: count - hit.tokens]) + held[: hit.before] == b"Once "


def test_no_more_is_kept_than_a_stop_string_may_need() -> None:
    stops = StopStrings(["abcd"], Vocabulary((b"xy", b"")), [])
    for _ in range(100):
        stops.push(0, ends=True)
        stops.push(1, ends=True)
    assert len(stops._tail) <= 4
    assert len(stops._lengths) <= 8


@pytest.mark.parametrize("offset", [0, 2])
def test_a_stop_string_counts_after_min_tokens_only(offset: int) -> None:
    vocabulary = Vocabulary((b"a", b"b", b"."))
    tokens = [0, 1, 0, 1, 0, 1]
    request = EngineRequest(
        request_id="a",
        prompt=(2, *tokens[:offset]),
        max_tokens=9,
        sampling=SamplingParams(seed=0),
        min_tokens=3,
        stop_strings=("ab",),
        output_offset=offset,
    )
    sequence = TokenSequence(request, 1, vocabulary)
    ends = [sequence.append(token) for token in tokens[offset:]]
    assert ends.index("stop") == 3 - offset
    assert sequence.stop_match == StopMatch("ab", 2, 0, 0)


@pytest.mark.parametrize(("ignore", "reason"), [(False, "stop"), (True, None)])
def test_stop_ids_are_tokens_like_others_when_they_are_ignored(ignore: bool, reason: str | None) -> None:
    request = EngineRequest(
        request_id="a",
        prompt=(1,),
        max_tokens=9,
        sampling=SamplingParams(seed=0),
        stop_ids=frozenset({7}),
        ignore_eos=ignore,
    )
    assert TokenSequence(request, 1).append(7) == reason
