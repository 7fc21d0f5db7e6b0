from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from engine.vocabulary import Vocabulary, read_vocabulary

DEMO = Path(__file__).parents[3] / "demo" / "holdfast-demo"


def save(folder: Path, tokens: list[str], decoder: Any, **settings: Any) -> Path:
    tokenizer: Any = Tokenizer(models.BPE(vocab={t: n for n, t in enumerate(tokens)}, merges=[], **settings))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<end>")])
    tokenizer.add_tokens([AddedToken("<caf\u00e9>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_the_bytes_of_a_text_are_those_of_its_tokens() -> None:
    tokenizer: Any = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    vocabulary = read_vocabulary(DEMO, tokenizer.get_vocab_size())
    assert vocabulary is not None
    text = "Hello w\u00f6rld!\n\t \u65e5\u672c \U0001f389 <think>\x00\x7f\u00ad"
    ids = tokenizer.encode(text).ids
    assert vocabulary.spell(ids) == text.encode()
    assert vocabulary.special == {
        token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
    }
    assert all(vocabulary.tokens)


def test_sentencepiece_tokens_have_spaces_and_bytes(tmp_path: Path) -> None:
    parts = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    save(tmp_path, ["<0xF0>", "<0x0a>", "\u2581caf\u00e9", "x\u2581\u2581y"], parts, byte_fallback=True)
    assert read_vocabulary(tmp_path, 8) == Vocabulary(
        (b"\xf0", b"\n", b" caf\xc3\xa9", b"x  y", b"<end>", b"<caf\xc3\xa9>", b"", b""),
        frozenset({4}),
        markup=frozenset({5}),
    )


def test_a_byte_level_token_outside_the_alphabet_stands_for_itself(tmp_path: Path) -> None:
    save(tmp_path, ["\u0120a", "\u0120\u65e5"], decoders.ByteLevel())
    vocabulary = read_vocabulary(tmp_path, 4)
    assert vocabulary is not None
    assert vocabulary.tokens[:2] == (b" a", "\u0120\u65e5".encode())


def test_ids_beyond_the_model_are_left_out(tmp_path: Path) -> None:
    save(tmp_path, ["a", "b"], decoders.ByteLevel())
    assert read_vocabulary(tmp_path, 2) == Vocabulary((b"a", b"b"))


def test_tokens_without_bytes_of_their_own_are_refused(tmp_path: Path) -> None:
    save(tmp_path, ["a", "##b"], decoders.WordPiece())
    with pytest.raises(ValueError, match="no bytes of their own"):
        read_vocabulary(tmp_path, 4)


def test_a_folder_without_or_with_a_broken_tokenizer_is_told_apart(tmp_path: Path) -> None:
    assert read_vocabulary(tmp_path, 4) is None
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        read_vocabulary(tmp_path, 4)
