"""Text to gpt-oss's tokens: the library's own, in time that grows with the text alone, and never fatal."""

import random

import pytest

from server.model_formats.harmony.encoding import MAX_PIECE, clean, pieces
from server.model_formats.model_format import PromptError
from tests.support.harmony import encoding, oracle


def test_half_characters_are_replaced() -> None:
    assert clean("a\ud83db") == "a\ufffdb"
    assert clean("🙂") == "🙂"
    assert encoding().decode(encoding().encode("a\ud83d")) == "a\ufffd"


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        " " * 300_000,
        "漢" * 100_000,
        "🙂" * 50_000,
        "a\u0301" * 100_000,
        "\n" * 300_000,
        "!" * 300_000,
    ],
    ids=["letters", "spaces", "characters", "emoji", "accents", "lines", "marks"],
)
def test_text_without_a_break_is_written_whole(text: str) -> None:
    """At once it would take a minute, or make the library panic."""
    tokens = encoding().encode(text)
    assert encoding().decode(tokens) == text


def test_long_text_has_the_tokens_of_the_library() -> None:
    chance = random.Random(4)
    words = [
        "word ",
        "Über, ",
        "(x) ",
        "日本語。",
        "12345 ",
        "it's ",
        "\n\n",
        "https://a.b/c?d=e&f ",
        "  ",
        "end.\n",
    ]
    text = "".join(chance.choices(words, k=20_000))
    assert len(list(pieces(text))) > 50
    assert encoding().encode(text) == oracle().encode(text, disallowed_special=())


def test_pieces_are_the_text() -> None:
    for text in ("", "a" * (3 * MAX_PIECE + 1), "ab " * MAX_PIECE):
        assert "".join(pieces(text)) == text
        assert max(map(len, pieces(text))) <= MAX_PIECE


def test_words_are_remembered_unless_they_are_long() -> None:
    remembered = encoding()._encode_word.cache_info
    encoding().word("assistant")
    hits, size = remembered().hits, remembered().currsize
    assert encoding().word("assistant") == tuple(encoding().encode("assistant"))
    assert encoding().word("a " * 1000) == tuple(encoding().encode("a " * 1000))
    assert (remembered().hits, remembered().currsize) == (hits + 1, size)


class PanicException(BaseException):
    """What a panic in Rust is to Python."""


@pytest.mark.parametrize(
    ("raised", "expected", "sentence"),
    [
        (PanicException("called `Result::unwrap()` on an `Err` value"), PromptError, "unwrap"),
        (KeyboardInterrupt("Ctrl-C"), KeyboardInterrupt, "Ctrl-C"),
    ],
    ids=["panic", "interrupt"],
)
def test_a_panic_of_the_library_is_an_error_of_the_request_and_an_interrupt_is_none(
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    expected: type[BaseException],
    sentence: str,
) -> None:
    class Raising:
        def encode(self, _text: str, **_options: object) -> list[int]:
            raise raised

    monkeypatch.setattr(encoding(), "_encoding", Raising())
    with pytest.raises(expected, match=sentence):
        encoding().encode("new words")
