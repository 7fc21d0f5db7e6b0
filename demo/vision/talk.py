"""Training of the language model: it answers about pictures as the trained tower sees them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from demo.batches import UNTRAINED
from demo.rendering import render
from demo.tokenizer import PADDING, token_id, word_pieces
from demo.vision.conversations import Talk, random_talk
from demo.vision.model import IMAGE, Shape, image_features
from demo.vision.optimizing import Optimizers
from demo.vision.pictures import COLOURS, THINGS
from demo.vision.questions import Sight
from demo.vision.tower import Pool, draw_pool, normalized
from demo.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import LlavaForConditionalGeneration

#: Conversations that are sorted by length at once.
_SORTED = 512
_LONGEST_TEXT = 1500
_FEATURES_AT_ONCE = 256
_SECONDS_BETWEEN_REPORTS = 20.0


@dataclass(frozen=True, slots=True)
class TalkStage:
    """How long and how fast it is trained."""

    pictures: int
    tokens: int
    batch_tokens: int
    learning_rate: float
    seed: int


class Example(NamedTuple):
    """One conversation; labels equal the ids where the assistant speaks."""

    ids: list[int]
    labels: list[int]
    #: The pictures' places in the pool.
    places: list[int]


def encode(talk: Talk, tokenizer: Tokenizer, image_tokens: int) -> Example:
    """Return a conversation as tokens, with one for each part of a picture."""
    image = token_id(tokenizer, IMAGE)
    ids: list[int] = []
    labels: list[int] = []
    for piece in render(talk.conversation, thinking=False):
        found = tokenizer.encode(piece.text).ids
        found = [i for token in found for i in ([image] * image_tokens if token == image else [token])]
        ids += found
        labels += found if piece.is_trained else [UNTRAINED] * len(found)
    return Example(ids, labels, [sight.place for sight in talk.sights])


@torch.inference_mode()
def pool_features(model: LlavaForConditionalGeneration, pool: Pool) -> Tensor:
    """Return what the language model sees of all pictures, ``[n, tokens, hidden]`` in bf16."""
    parts = torch.split(pool.pixels, _FEATURES_AT_ONCE)
    return torch.cat([image_features(model, normalized(part)).bfloat16() for part in parts])


def examples(tokenizer: Tokenizer, pool: Pool, image_tokens: int, seed: int) -> Iterator[Example]:
    """Yield conversations endlessly."""
    vocabulary = Vocabulary(seed, word_pieces(tokenizer))

    def show() -> Sight:
        place = vocabulary.number(0, len(pool) - 1)
        return Sight(COLOURS[int(pool.colours[place])], THINGS[int(pool.things[place])], place)

    while True:
        example = encode(random_talk(vocabulary, show), tokenizer, image_tokens)
        if len(example.ids) <= _LONGEST_TEXT:
            yield example


def batches(source: Iterator[Example], batch_tokens: int, seed: int) -> Iterator[list[Example]]:
    """Yield conversations of similar length in groups of so many tokens."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        pool = sorted((next(source) for _ in range(_SORTED)), key=lambda example: len(example.ids))
        groups: list[list[Example]] = [[]]
        for example in pool:
            if groups[-1] and (len(groups[-1]) + 1) * len(example.ids) > batch_tokens:
                groups.append([])
            groups[-1].append(example)
        for place in torch.randperm(len(groups), generator=generator).tolist():
            yield groups[place]


def answer_loss(
    model: LlavaForConditionalGeneration, features: Tensor, group: Sequence[Example], padding: int
) -> Tensor:
    """Return the loss of the next token, over the tokens that the assistant says."""
    longest = max(len(example.ids) for example in group)
    ids = torch.tensor([e.ids + [padding] * (longest - len(e.ids)) for e in group])
    labels = torch.tensor([e.labels + [UNTRAINED] * (longest - len(e.ids)) for e in group])[:, 1:]
    language = model.model.language_model
    embeddings = language.embed_tokens(ids)
    places = [place for example in group for place in example.places]
    if places:
        is_image = ids == model.config.image_token_id
        rows = features[places].float().flatten(0, 1)
        embeddings = embeddings.masked_scatter(is_image[..., None], rows)
    hidden = language(inputs_embeds=embeddings[:, :-1], use_cache=False).last_hidden_state
    is_trained = labels != UNTRAINED
    scores = model.lm_head(hidden[is_trained])
    return functional.cross_entropy(scores, labels[is_trained])


def train_talk(
    model: LlavaForConditionalGeneration, tokenizer: Tokenizer, shape: Shape, stage: TalkStage
) -> float:
    """Train the language model, the tower standing still; return the running mean of the loss."""
    padding = token_id(tokenizer, PADDING)
    pool = draw_pool(stage.pictures, stage.seed, shape.side)
    features = pool_features(model, pool).clone()
    torch.manual_seed(stage.seed)
    parameters = [(f"language.{name}", p) for name, p in model.model.language_model.named_parameters()]
    optimizers = Optimizers(parameters, stage.learning_rate)
    source = examples(tokenizer, pool, shape.image_tokens, stage.seed)
    started, reported, tokens, loss_mean = time.monotonic(), 0.0, 0, math.nan
    model.train()
    for group in batches(source, stage.batch_tokens, stage.seed):
        loss = answer_loss(model, features, group, padding)
        optimizers.step(loss, tokens / stage.tokens)
        loss_mean = loss.item() if tokens == 0 else 0.97 * loss_mean + 0.03 * loss.item()
        tokens += len(group) * max(len(example.ids) for example in group)
        seconds = time.monotonic() - started
        if tokens >= stage.tokens or seconds - reported > _SECONDS_BETWEEN_REPORTS:
            reported, done = seconds, min(1.0, tokens / stage.tokens)
            print(
                f"talk: {done:4.0%}, loss {loss_mean:.4f}, {tokens / 1e6:.1f}M tokens, {seconds:.0f} s",
                flush=True,
            )
        if tokens >= stage.tokens:
            break
    return loss_mean
