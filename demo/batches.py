"""Training batches: conversations as token ids, with labels and positions, endlessly.

Conversations of similar length share a batch, so that little of it is padding. In some of them
positions jump ahead just before an answer: the model then learns to look far back although no
training text is long.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo.conversations import Task, random_conversation
from demo.rendering import render
from demo.tokenizer import PADDING, token_id, word_pieces
from demo.vocabulary import Vocabulary

#: The label of a token that does not count in the loss.
UNTRAINED = -100

_POOL = 512
_THINKING_SHARE = 0.35
_LONGEST_TEXT = 512
_JUMP_SHARE = 0.4
#: A jump is two to the power of something between these; two jumps stay within 8,192 positions.
_JUMP_POWERS = (1.0, 11.8)


class Example(NamedTuple):
    """One conversation; labels equal the ids where the assistant speaks."""

    ids: list[int]
    labels: list[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side, each tensor (examples, longest)."""

    ids: Tensor
    labels: Tensor
    positions: Tensor

    @property
    def tokens(self) -> int:
        """Return the number of tokens computed, padding included."""
        return self.ids.numel()


class Batches:
    """Batches from one seed: the same seed and tokenizer give the same batches for ever."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int,
        batch_tokens: int,
        emphasis: Mapping[Task, float] = MappingProxyType({}),
    ) -> None:
        """Start from a seed; a batch holds about ``batch_tokens`` tokens.

        ``emphasis`` says how many times as often as usual a task is drawn.
        """
        self._emphasis = emphasis
        self._tokenizer = tokenizer
        self._padding = token_id(tokenizer, PADDING)
        self._vocabulary = Vocabulary(seed, word_pieces(tokenizer))
        self._random = random.Random(seed)
        self._batch_tokens = batch_tokens

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches without end."""
        while True:
            groups = self._grouped(sorted(self._examples(), key=lambda e: len(e.ids)))
            self._random.shuffle(groups)
            for group in groups:
                yield self._batch(group)

    def _examples(self) -> list[Example]:
        examples = [Example([], []) for _ in range(_POOL)]
        pieces, owners = [], []
        for example in examples:
            thinking = self._vocabulary.chance(_THINKING_SHARE)
            conversation = random_conversation(self._vocabulary, self._emphasis)
            rendered = render(conversation, thinking=thinking)
            pieces += rendered
            owners += [example] * len(rendered)
        texts = [piece.text for piece in pieces]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for encoding, piece, example in zip(encodings, pieces, owners, strict=True):
            ids = encoding.ids
            example.ids.extend(ids)
            example.labels.extend(ids if piece.is_trained else [UNTRAINED] * len(ids))
        return [Example(e.ids[:_LONGEST_TEXT], e.labels[:_LONGEST_TEXT]) for e in examples]

    def _grouped(self, examples: list[Example]) -> list[list[Example]]:
        """Cut a list sorted by length where one more example would make a batch too large."""
        groups: list[list[Example]] = [[]]
        for example in examples:
            if (len(groups[-1]) + 1) * len(example.ids) > self._batch_tokens and groups[-1]:
                groups.append([])
            groups[-1].append(example)
        return groups

    def _batch(self, examples: list[Example]) -> Batch:
        longest = max(len(example.ids) for example in examples)
        shape = (len(examples), longest)
        ids = torch.full(shape, self._padding)
        labels = torch.full(shape, UNTRAINED)
        positions = torch.arange(longest).repeat(len(examples), 1)
        for row, example in enumerate(examples):
            ids[row, : len(example.ids)] = torch.tensor(example.ids)
            labels[row, : len(example.labels)] = torch.tensor(example.labels)
            for start, distance in self._jumps(example.labels):
                positions[row, start:] += distance
        return Batch(ids, labels, positions)

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
