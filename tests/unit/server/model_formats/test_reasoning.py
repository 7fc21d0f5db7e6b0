import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.model_formats.chat_template.chat_output_parser import read_answer
from server.model_formats.harmony.vocabulary import CHANNEL, END, MESSAGE
from server.model_formats.model_format import Delta, ReasoningDelta, TextDelta
from server.model_formats.reasoning import (
    REASONING_FORMATS,
    THINK,
    ReasoningFormat,
    ThoughtReader,
    detect_reasoning_format,
)
from server.model_formats.text_scanner import (
    Reader,
    Scanner,
    TextEmitter,
)
from server.model_formats.tool_calls.tool_call_format import ToolCallEmitter
from server.model_formats.tool_names import ToolIndex
from tests.support.builders import examples
from tests.support.families import THINKERS, format_of, ids_of
from tests.support.family_formats import FAMILIES
from tests.support.harmony import harmony_format

OPEN, CLOSE = THINK.start_tags[0], THINK.end_tags[0]
PIECES = ["<", ">", "/", "<think", "think>", OPEN, CLOSE, "</", "</thi", " ", "\n", "\t", "a", "b<c", "é", ""]
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
cuts = st.lists(st.integers(0, 60), max_size=15)


class Splitter:
    """Text → reasoning and answer, as a parser of a model without calls reads it."""

    def __init__(self, form: ReasoningFormat = THINK, *, opens_reasoning: bool) -> None:
        self._scanner = Scanner()
        self._reader = self._read(form, opens_reasoning)
        next(self._reader, None)

    @property
    def reasoning(self) -> bool:
        return self._scanner.in_reasoning

    def feed(self, text: str) -> list[Delta]:
        self._scanner.feed(text, [])
        next(self._reader, None)
        return self._scanner.take_deltas()

    def close(self) -> list[Delta]:
        self._scanner.ended = True
        for _ in self._reader:
            pass
        return self._scanner.take_deltas()

    def _read(self, form: ReasoningFormat, opened: bool) -> Reader[None]:
        scanner = self._scanner
        reasoning = TextEmitter(scanner, "reasoning", str)
        answer = TextEmitter(scanner, "answer", str)
        thoughts = ThoughtReader(scanner, form, reasoning, opened=opened)
        emitter = ToolCallEmitter(scanner, ToolIndex(()))
        yield from read_answer(scanner, None, emitter, answer, thoughts)


def split(pieces: Sequence[str], *, opened: bool = False) -> tuple[str, str]:
    """Reasoning and answer."""
    splitter = Splitter(opens_reasoning=opened)
    deltas = [delta for piece in pieces for delta in splitter.feed(piece)] + splitter.close()
    assert all(isinstance(delta, TextDelta | ReasoningDelta) and delta.text for delta in deltas)
    kinds = [isinstance(delta, ReasoningDelta) for delta in deltas]
    assert kinds == sorted(kinds, reverse=True), "reasoning came after the answer began"
    thought = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    return thought, "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def pieces_of(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@given(texts, cuts, st.booleans())
@examples(400)
def test_any_split_of_the_same_text_gives_the_same_result(text: str, places: list[int], opened: bool) -> None:
    whole = split([text], opened=opened)
    assert split(pieces_of(text, places), opened=opened) == whole
    assert split(list(text), opened=opened) == whole


@given(texts.filter(lambda text: not text.lstrip().startswith(OPEN)), texts)
@examples(200)
def test_reasoning_is_what_is_between_the_tags(thought: str, answer: str) -> None:
    text = f"{OPEN}{thought}{CLOSE}{answer}"
    before, _, after = f"{thought}{CLOSE}{answer}".partition(CLOSE)
    for shape, opened in ((text, False), (text, True), (text.removeprefix(OPEN), True)):
        assert split([shape], opened=opened) == (before.strip(), after.lstrip())


@given(texts.filter(lambda text: not text.lstrip().startswith(OPEN)))
@examples(200)
def test_a_text_that_does_not_open_reasoning_is_the_answer_unchanged(text: str) -> None:
    assert split([text]) == ("", text)


@given(texts, texts, st.booleans())
@examples(200)
def test_no_closing_tag_is_in_the_reasoning(thought: str, answer: str, opened: bool) -> None:
    assert CLOSE not in split([f"{OPEN}{thought}{CLOSE}{answer}"], opened=opened)[0]


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("", False, ("", "")),
        ("", True, ("", "")),
        ("plain", False, ("", "plain")),
        ("  indented\n", False, ("", "  indented\n")),
        (" \n", False, ("", " \n")),
        ("<think>why</think>because", False, ("why", "because")),
        ("\n <think>\n why \n</think>\n\n because \n", False, ("why", "because \n")),
        ("<think></think>because", False, ("", "because")),
        ("<think>\n\n</think>\n\nbecause", False, ("", "because")),
        ("<think>why", False, ("why", "")),
        ("<think>why </thi", False, ("why </thi", "")),
        ("<think>why \n", False, ("why", "")),
        ("<think>a  b</think>", False, ("a  b", "")),
        ("why</think>because", True, ("why", "because")),
        ("\nwhy\n</think>\nbecause", True, ("why", "because")),
        ("<think>why</think>because", True, ("why", "because")),
        ("\n<think>\nwhy</think>because", True, ("why", "because")),
        ("<thi", True, ("<thi", "")),
        ("because </think> it is", False, ("", "because </think> it is")),
        ("a <think>b</think>", False, ("", "a <think>b</think>")),
        ("<think>a</think>b<think>c</think>", False, ("a", "b<think>c</think>")),
        ("<thin", False, ("", "<thin")),
        ("<thinking", False, ("", "<thinking")),
        ("<think>1 < 2 </ think></think>yes", False, ("1 < 2 </ think>", "yes")),
    ],
)
def test_tags_and_white_space(text: str, opened: bool, expected: tuple[str, str]) -> None:
    assert split([text], opened=opened) == expected
    assert split(list(text), opened=opened) == expected


def test_only_what_could_become_a_tag_is_held_back() -> None:
    splitter = Splitter(opens_reasoning=False)
    assert splitter.feed("<thin") == []
    assert splitter.feed("k>why") == [ReasoningDelta("why")]
    assert splitter.feed(" </thinner") == [ReasoningDelta(" </thinner")]
    assert splitter.feed("  ") == []
    assert splitter.reasoning
    assert splitter.feed("</think>") == []
    assert not splitter.reasoning


def test_a_prompt_that_opened_the_reasoning_is_in_it_from_the_start() -> None:
    assert Splitter(opens_reasoning=True).reasoning
    assert not Splitter(opens_reasoning=False).reasoning


def seconds_for(text: str, opened: bool) -> float:
    started = time.process_time()
    split(list(text), opened=opened)
    return time.process_time() - started


@pytest.mark.parametrize(
    ("unit", "head", "opened"),
    [
        ("a", "", True),
        ("<", "", True),
        ("</think", "", True),
        ("\n\n\n x", "", True),
        ("</thin ", "", True),
        (" ", "", True),
        (" ", "a", True),
        (" ", "", False),
        (" ", "<think>a</think>", False),
    ],
)
def test_the_cost_grows_with_the_length_and_not_with_its_square(unit: str, head: str, opened: bool) -> None:
    """200,000 characters, one by one, against a sixteenth of them; a square would be 256 times as dear.

    They are read again if it took too long, so that a busy machine is not taken for a slow splitter.
    """
    small = (unit * 12_500)[:12_500]
    bound = 64 * max(min(seconds_for(head + small, opened) for _ in range(2)), 0.005)
    assert any(seconds_for(head + small * 16, opened) < bound for _ in range(2))


@pytest.mark.parametrize("form", REASONING_FORMATS, ids=lambda form: form.name)
def test_each_form_tells_reasoning_and_answer_apart(form: ReasoningFormat) -> None:
    opening, closing = form.start_tags[0], form.end_tags[0]
    text = f"{opening} why {closing}\n{''.join(form.answer_tags[:1])}because{''.join(form.answer_tags[1:])}"
    for shape, opened in ((text, False), (text, True), (text.removeprefix(opening), True)):
        splitter = Splitter(form, opens_reasoning=opened)
        deltas = [delta for piece in shape for delta in splitter.feed(piece)] + splitter.close()
        thought = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
        answer = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        assert (thought, answer) == ("why", "because")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<think>' }}", "think"),
        ("{{ content.split('</think>') }}", "think"),
        ("Write your thoughts between <think></think> and <response></response>.", "granite_tags"),
        ("Here is my thought process: ...", "granite"),
        ("{{ '[THINK]' }}", "mistral"),
        ("<|channel>thought", "gemma"),
        ("<|START_THINKING|>", "cohere"),
        ("<seed:think>", "seed"),
        ("◁think▷", "kimi"),
        ("{{ messages }}", None),
    ],
)
def test_a_template_shows_its_form_of_reasoning(template: str, name: str | None) -> None:
    form = detect_reasoning_format(template)
    assert (form.name if form else None) == name


@pytest.mark.parametrize("name", THINKERS)
def test_marks_are_the_familys_own_where_its_reasoning_ends_with_one_token(name: str) -> None:
    marks = format_of(name).reasoning_marks
    family = FAMILIES[name]
    end = ids_of(name, family.close.strip())
    if len(end) > 1:
        assert marks is None
    else:
        assert marks is not None
        assert marks.end == tuple(end)
        assert marks.start == tuple(ids_of(name, family.open.strip()))


def test_gpt_oss_thinks_in_a_message_of_its_own() -> None:
    marks = harmony_format().reasoning_marks
    assert (marks.start[0], marks.start[-1], marks.end) == (CHANNEL, MESSAGE, (END,))
    assert len(marks.start) == 3
