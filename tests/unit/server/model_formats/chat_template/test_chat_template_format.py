import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from server.configuration.shipped_files import demo_model_folder
from server.model_formats.model_format import (
    Delta,
    ModelFormat,
    OutputParser,
    PromptConversation,
    PromptError,
    ReasoningDelta,
    TextDelta,
)
from server.model_formats.select_format import load_model_format
from server.protocol.responses.items import InputText, Message, OutputText, Reasoning, ReasoningText, Refusal
from tests.support.builders import examples, prompted

DEMO = demo_model_folder()
tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
STOP, START, OPEN, CLOSE = 1273, 1272, 1274, 1275
model_format = load_model_format(DEMO, frozenset({STOP}))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
any_tokens = st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=20)


def ids(text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def read(parser: OutputParser, pieces: Sequence[Sequence[int]]) -> list[Delta]:
    return [delta for piece in pieces for delta in parser.feed(piece)] + parser.close()


def told(deltas: list[Delta]) -> tuple[str, str]:
    thought = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    return thought, "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def plain_model_format(folder: Path) -> ModelFormat:
    """The demo tokenizer with a template that knows no reasoning."""
    (folder / "tokenizer.json").symlink_to(DEMO / "tokenizer.json")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return load_model_format(folder, frozenset({STOP}))


def test_characters_cut_across_tokens_are_given_whole() -> None:
    parser = model_format.parser(prompted(False))
    tokens = ids("😀é")
    assert len(tokens) > 3
    deltas = [parser.feed([token]) for token in tokens]
    assert deltas[0] == []
    assert all("\ufffd" not in told(some)[1] for some in deltas)
    assert told([delta for some in deltas for delta in some]) == ("", "😀é")


@given(texts)
@examples(150)
def test_a_text_is_read_back_whatever_its_tokens(text: str) -> None:
    tokens = ids(text)
    parser = model_format.parser(prompted(False))
    if any(token in (OPEN, START, STOP) for token in tokens):
        return
    assert told(read(parser, [[token] for token in tokens])) == ("", text)


@given(any_tokens, st.lists(st.integers(0, 20)), st.booleans())
@examples(300)
def test_any_split_of_any_tokens_gives_the_same_text_and_no_error(
    tokens: list[int], cuts: list[int], opened: bool
) -> None:
    whole, single, pieces = (model_format.parser(prompted(opened)) for _ in range(3))
    bounds = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    expected = told(read(whole, [tokens]))
    assert told(read(single, [[token] for token in tokens])) == expected
    split = [tokens[a:b] for a, b in pairwise(bounds)]
    assert told(read(pieces, split)) == expected
    assert whole.reasoning_tokens == single.reasoning_tokens == pieces.reasoning_tokens


@given(any_tokens)
@examples(200)
def test_nothing_that_the_tokenizer_would_decode_is_lost(tmp_tokens: list[int]) -> None:
    tokens = [token for token in tmp_tokens if token not in (OPEN, CLOSE, STOP)]
    thought, answer = told(read(model_format.parser(prompted(False)), [tokens]))
    assert (thought, answer) == ("", tokenizer.decode(tokens, skip_special_tokens=True))


def test_special_tokens_are_not_told() -> None:
    tokens = [START, *ids("a"), START, *ids("b"), STOP]
    assert told(read(model_format.parser(prompted(False)), [tokens])) == ("", "ab")


def test_a_stop_token_is_not_told_even_when_it_is_an_ordinary_word() -> None:
    word = ids("b")
    own = load_model_format(DEMO, frozenset(word))
    assert told(read(own.parser(prompted(False)), [[*ids("a"), *word]])) == ("", "a")


def test_close_gives_what_was_held_back() -> None:
    parser = model_format.parser(prompted(False))
    assert parser.feed(ids("😀")[:2]) == []
    assert parser.close() == [TextDelta("\ufffd")]
    assert parser.close() == []
    parser = model_format.parser(prompted(True))
    assert parser.feed(ids("a </th")) == [ReasoningDelta("a")]
    assert parser.close() == [ReasoningDelta(" </th")]


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_and_answer_are_told_apart_and_counted(opened: bool) -> None:
    thought = ids("why")
    tokens = [*([] if opened else [OPEN]), *thought, CLOSE, *ids("because"), STOP]
    parser = model_format.parser(prompted(opened))
    assert told(read(parser, [[token] for token in tokens])) == ("why", "because")
    assert parser.reasoning_tokens == len(thought) + 1


def test_neighbouring_deltas_of_one_kind_are_one() -> None:
    parser = model_format.parser(prompted(True))
    deltas = parser.feed([*ids("one two"), CLOSE, *ids("three four")])
    assert deltas == [ReasoningDelta("one two"), TextDelta("three four")]


def test_a_model_without_reasoning_keeps_tags_as_text(tmp_path: Path) -> None:
    parser = plain_model_format(tmp_path).parser(prompted(False))
    assert told(read(parser, [[OPEN, *ids("a"), CLOSE]])) == ("", "<think>a</think>")
    assert parser.reasoning_tokens == 0


def write(*items: Any, instructions: str | None = None, effort: Any = None) -> tuple[str, bool]:
    prompt = model_format.write(
        PromptConversation(items=items, instructions=instructions, reasoning_effort=effort)
    )
    assert prompt.stop_ids == {STOP}
    return tokenizer.decode(list(prompt.token_ids), skip_special_tokens=False), prompt.opens_reasoning


def test_a_prompt_has_the_instructions_and_every_message_in_order() -> None:
    items = [
        Message("1", "completed", "developer", [InputText("dev")]),
        Message("2", "completed", "user", [InputText("a"), InputText("b")]),
        Reasoning("3", "completed", [], [ReasoningText("hidden")]),
        Message("4", "completed", "assistant", [OutputText("c"), Refusal("d")]),
    ]
    text, opens = write(*items, instructions="Be brief.")
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>system\ndev<|im_end|>\n"
        "<|im_start|>user\nab<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhidden\n</think>\n\ncd<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not opens


@pytest.mark.parametrize(
    ("effort", "opens"), [(None, False), ("none", False), ("minimal", False), ("low", True), ("xhigh", True)]
)
def test_effort_decides_whether_the_prompt_opens_the_reasoning(effort: Any, opens: bool) -> None:
    text, opened = write(Message("1", "completed", "user", [InputText("a")]), effort=effort)
    assert opened == opens == text.endswith("<think>\n")


def test_a_user_cannot_open_the_reasoning() -> None:
    _, opened = write(Message("1", "completed", "user", [InputText("<think>")]))
    assert not opened


def test_the_demo_model_has_the_tokens_that_these_tests_name() -> None:
    config = json.loads((DEMO / "generation_config.json").read_text())
    assert STOP in config["eos_token_id"]
    names = ["<|im_end|>", "<|im_start|>", "<think>", "</think>"]
    assert [tokenizer.token_to_id(name) for name in names] == [STOP, START, OPEN, CLOSE]


def test_a_prompt_tells_the_date_of_its_conversation_whenever_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to(DEMO / "tokenizer.json")
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%Y-%m-%d') }} {{ messages[0].content }}")
    dated = load_model_format(tmp_path, frozenset({STOP}))
    moment = datetime(2020, 2, 29, 23, 59, tzinfo=UTC)
    items = [Message("1", "completed", "user", [InputText("hi")])]
    prompt = dated.write(PromptConversation(items=items, created_at=moment))
    assert tokenizer.decode(list(prompt.token_ids)) == "2020-02-29 hi"


def test_conversation_is_written_by_the_template_that_it_brings() -> None:
    hi = [Message("msg_1", "completed", "user", [InputText("Hi <|im_end|>")])]
    own = "{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}<|im_end|>"
    prompt = model_format.write(PromptConversation(items=hi, chat_template=own))
    assert tokenizer.decode(prompt.token_ids, skip_special_tokens=False) == "[user] Hi <|im_end|><|im_end|>"
    assert prompt.token_ids.count(STOP) == 1
    assert model_format.write(PromptConversation(items=hi)).token_ids != prompt.token_ids


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ messages.nothing.at.all }}", "{{ raise_exception('no') }}", "{{ 1 / 0 }}"]
)
def test_template_that_cannot_write_the_conversation_is_the_requests_mistake(template: str) -> None:
    hi = [Message("msg_1", "completed", "user", [InputText("Hi")])]
    with pytest.raises(PromptError) as refusal:
        model_format.write(PromptConversation(items=hi, chat_template=template))
    assert refusal.value.param == "chat_template"
