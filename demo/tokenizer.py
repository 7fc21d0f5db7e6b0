"""The tokenizer: a byte-level BPE of 1,280 tokens, cut so that copying text is copying tokens.

Every space and mark is a token of its own, so a word has the same tokens after a space, a quote
and a line break. Numbers are cut from the right into pairs of digits (1 23, 19 99), so a number
below a hundred is one token.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo.conversations import random_conversation
from demo.rendering import TURN_END, TURN_START, render
from demo.vocabulary import Vocabulary
from demo.words import DICTIONARY

VOCABULARY_SIZE = 1280
PADDING = "<|endoftext|>"
#: Never shown to a user; they end and begin turns.
CONTROL_TOKENS = (PADDING, TURN_START, TURN_END)
#: Part of the text, because the readers of thoughts and calls look for them there.
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tools>", "</tools>")

_SHIPPED = Path(__file__).with_name("holdfast-demo")
_CUT = r"[\p{L}\p{M}]+|\p{N}{1,2}(?=(?:\p{N}{2})*(?!\p{N}))|\s|[^\s\p{L}\p{M}\p{N}]"

#: Read by transformers' ``parse_response`` and by servers that follow it.
_RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {
            "close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)",
            "content": "text",
        },
    },
}


def shipped_tokenizer() -> Tokenizer:
    """Return the tokenizer of the model in the repository."""
    return Tokenizer.from_file(str(_SHIPPED / "tokenizer.json"))


def train_tokenizer(conversations: int, seed: int, size: int = VOCABULARY_SIZE) -> Tokenizer:
    """Return a tokenizer whose merges fit the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CUT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(CONTROL_TOKENS) - len(MARKUP_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(conversations, seed), trainer)
    tokenizer.add_special_tokens([*CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP_TOKENS])
    return tokenizer


def _texts(conversations: int, seed: int) -> Iterator[str]:
    """Yield what the merges are counted in: conversations, the dictionary, pairs of digits."""
    vocabulary = Vocabulary(seed, _dictionary_cuttings(seed))
    for _ in range(conversations):
        pieces = render(random_conversation(vocabulary), thinking=vocabulary.chance(0.3))
        text = "".join(piece.text for piece in pieces)
        for token in CONTROL_TOKENS + MARKUP_TOKENS:
            text = text.replace(token, " ")
        yield text
    for _ in range(60):
        yield " ".join(DICTIONARY)
    for _ in range(400):
        yield " ".join(f"{number:02d}" for number in range(100))


def _dictionary_cuttings(seed: int) -> list[str]:
    """Return bits of dictionary words, as there are no pieces of a tokenizer to glue yet."""
    chooser = random.Random(seed)
    cuttings = []
    for _ in range(2000):
        word = chooser.choice(DICTIONARY)
        start = chooser.randint(0, max(0, len(word) - 2))
        cuttings.append(word[start : start + chooser.randint(2, 4)])
    return cuttings


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that the tokenizer is known to have."""
    found = tokenizer.token_to_id(token)
    assert found is not None, f"the tokenizer has no token {token!r}"
    return found


def word_pieces(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens of lower-case letters, for words glued from them."""
    return sorted(
        token
        for token in tokenizer.get_vocab(with_added_tokens=False)
        if len(token) > 1 and token.isascii() and token.isalpha() and token.islower()
    )


def save_tokenizer(tokenizer: Tokenizer, folder: Path, positions: int) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": PADDING,
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "response_template": _RESPONSE_TEMPLATE,
    }
    text = json.dumps(config, indent=1)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
