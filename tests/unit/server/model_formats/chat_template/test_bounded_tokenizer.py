"""Long texts: refused by their characters or by a count of their pieces, without being tokenized whole."""

import sys
import threading
from typing import Any

import pytest
from tokenizers import Tokenizer

from server.configuration.shipped_files import demo_model_folder
from server.model_formats.chat_template.template import PIECE, BoundedTokenizer
from server.model_formats.model_format import PromptTooLong


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo_model_folder() / "tokenizer.json"))


class Watched:
    """A tokenizer that remembers how many characters it was characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, **options)


def test_a_text_that_is_too_long_by_its_characters_is_not_tokenized_at_all(tokenizer: Tokenizer) -> None:
    watched = Watched(tokenizer)
    bounded = BoundedTokenizer(watched)  # type: ignore[arg-type]
    assert bounded.max_chars_per_token == max(map(len, tokenizer.get_vocab(with_added_tokens=True)))
    with pytest.raises(PromptTooLong):
        bounded.encode(["a" * (100 * bounded.max_chars_per_token + 1)], 100)
    assert watched.characters == 0


@pytest.mark.parametrize("texts", [["a b" * 100_000], ["a b" * 50] * 2000], ids=["one", "many"])
def test_a_text_is_counted_no_further_than_to_where_it_is_too_long(
    tokenizer: Tokenizer, texts: list[str]
) -> None:
    watched = Watched(tokenizer)
    bounded = BoundedTokenizer(watched)  # type: ignore[arg-type]
    with pytest.raises(PromptTooLong):
        bounded.encode(texts, 30_000)
    assert watched.characters <= PIECE


def test_a_long_text_that_fits_has_the_tokens_of_the_whole_text(tokenizer: Tokenizer) -> None:
    text = "The weather in Paris is good, and the sum of two is four.\n" * 5000
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    assert BoundedTokenizer(tokenizer).encode([text], len(whole)) == [whole]


def test_other_threads_run_while_a_text_is_tokenized(tokenizer: Tokenizer) -> None:
    bounded = BoundedTokenizer(tokenizer)
    over, turns = threading.Event(), 0

    def run() -> None:
        nonlocal turns
        while not over.wait(0.001):
            turns += 1

    other = threading.Thread(target=run)
    before = sys.getswitchinterval()
    other.start()
    try:
        sys.setswitchinterval(600)  # nobody takes the interpreter away: it must be characters
        bounded.encode(["a b" * 200_000])
    finally:
        sys.setswitchinterval(before)
        seen = turns
        over.set()
        other.join()
    assert seen > 5
