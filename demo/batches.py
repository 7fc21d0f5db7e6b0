"""Training batches: conversations as token ids, with labels and positions, endlessly.

Conversations of similar length share a batch, so that little of it is padding. In some of them
positions jump ahead just before an answer: the model then learns to look far back although most
training texts are short. The conversations of a long batch share one long setting, which is computed
once for all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo.chat import Conversation
from demo.conversations import Emphasis
from demo.drills import drill_or_conversation
from demo.rendering import Piece, render
from demo.settings import long_setting
from demo.tokenizer import PADDING, token_id, word_pieces
from demo.toolbox import offer_tools
from demo.vocabulary import Vocabulary

#: The label of a token that does not count in the loss.
UNTRAINED = -100

_POOL = 512
_THINKING_SHARE = 0.35
_LONGEST_TEXT = 2560
_CONVERSATIONS_IN_A_LONG_SETTING = 14
_JUMP_SHARE = 0.4
#: A jump is two to the power of something between these; two jumps stay within 8,192 positions.
_JUMP_POWERS = (1.0, 11.4)


class Example(NamedTuple):
    """One conversation; labels equal the ids where the assistant speaks."""

    ids: list[int]
    labels: list[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side, each tensor (examples, longest); ``prefix`` (1, length) is before all."""

    ids: Tensor
    labels: Tensor
    positions: Tensor
    prefix: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Return the number of tokens computed, padding included."""
        return self.ids.numel() + (0 if self.prefix is None else self.prefix.numel())


@dataclass(frozen=True, slots=True)
class LongSettings:
    """How often a batch is a long one, and how many characters its setting has."""

    share: float
    low: int
    high: int


class Batches:
    """Batches from one seed: the same seed and tokenizer give the same batches for ever."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int,
        batch_tokens: int,
        emphasis: Emphasis = MappingProxyType({}),
        long: LongSettings | None = None,
    ) -> None:
        """Start from a seed; a batch holds about ``batch_tokens`` tokens."""
        self._emphasis = emphasis
        self._long = long
        self._tokenizer = tokenizer
        self._padding = token_id(tokenizer, PADDING)
        self._vocabulary = Vocabulary(seed, word_pieces(tokenizer))
        self._random = random.Random(seed)
        self._batch_tokens = batch_tokens

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches without end."""
        while True:
            conversations = [drill_or_conversation(self._vocabulary, self._emphasis) for _ in range(_POOL)]
            examples = self._examples([self._render(known) for known in conversations])
            groups = self._grouped(sorted(examples, key=lambda e: len(e.ids)))
            self._random.shuffle(groups)
            for group in groups:
                if self._long and self._random.random() < self._long.share:
                    yield self._long_batch(self._long)
                else:
                    yield self._batch(group)

    def _long_batch(self, long: LongSettings) -> Batch:
        """Return conversations in one setting."""
        known_tools = self._emphasis.get(offer_tools, 1)
        setting = long_setting(self._vocabulary, long.low, long.high, known_tools)
        rendered = [
            self._render(drill_or_conversation(self._vocabulary, self._emphasis, setting))
            for _ in range(_CONVERSATIONS_IN_A_LONG_SETTING)
        ]
        prefix = self._tokenizer.encode(rendered[0][0].text, add_special_tokens=False).ids
        examples = sorted(self._examples([pieces[1:] for pieces in rendered]), key=lambda e: len(e.ids))
        return self._batch(self._grouped(examples)[0], prefix)

    def _render(self, conversation: Conversation) -> list[Piece]:
        return render(conversation, thinking=self._vocabulary.chance(_THINKING_SHARE))

    def _examples(self, rendered: list[list[Piece]]) -> list[Example]:
        pieces = [piece for conversation in rendered for piece in conversation]
        texts = [piece.text for piece in pieces]
        encodings = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        examples = []
        for conversation in rendered:
            ids: list[int] = []
            labels: list[int] = []
            for piece in conversation:
                encoded = next(encodings).ids
                ids += encoded
                labels += encoded if piece.is_trained else [UNTRAINED] * len(encoded)
            examples.append(Example(ids[:_LONGEST_TEXT], labels[:_LONGEST_TEXT]))
        return examples

    def _grouped(self, examples: list[Example]) -> list[list[Example]]:
        """Cut a list sorted by length where one more example would make a batch too large."""
        groups: list[list[Example]] = [[]]
        for example in examples:
            if (len(groups[-1]) + 1) * len(example.ids) > self._batch_tokens and groups[-1]:
                groups.append([])
            groups[-1].append(example)
        return groups

    def _batch(self, examples: list[Example], prefix: Sequence[int] = ()) -> Batch:
        longest = max(len(example.ids) for example in examples)
        shape = (len(examples), longest)
        ids = torch.full(shape, self._padding)
        labels = torch.full(shape, UNTRAINED)
        positions = torch.arange(len(prefix), len(prefix) + longest).repeat(len(examples), 1)
        for row, example in enumerate(examples):
            ids[row, : len(example.ids)] = torch.tensor(example.ids)
            labels[row, : len(example.labels)] = torch.tensor(example.labels)
            for start, distance in self._jumps(example.labels):
                positions[row, start:] += distance
        return Batch(ids, labels, positions, torch.tensor([prefix]) if prefix else None)

    def _jumps(self, labels: list[int]) -> list[tuple[int, int]]:
        """Return (from where, how far) positions jump, just before one or two answers."""
        if self._random.random() >= _JUMP_SHARE:
            return []
        answers = [i for i in range(1, len(labels)) if labels[i - 1] == UNTRAINED != labels[i]]
        count = min(len(answers), self._random.choice((1, 1, 2)))
        return [
            (answer - 1, int(2 ** self._random.uniform(*_JUMP_POWERS)))
            for answer in self._random.sample(answers, count)
        ]
