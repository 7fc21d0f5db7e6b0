"""Training: a small Qwen3 from random weights, in stages that are measured in tokens.

Tokens rather than minutes, so that a busy machine makes the same model as an idle one. Matrices
are trained with Muon, embeddings and norms with AdamW.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AttentionInterface, DynamicCache, GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from demo.batches import UNTRAINED, Batch, Batches
from demo.rendering import TURN_END
from demo.stages import Stage
from demo.tokenizer import PADDING, token_id

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the model."""

    hidden: int = 128
    intermediate: int = 384
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    head_size: int = 32
    positions: int = 8192


#: The first token of an answer decides what it is: a call, a refusal or words. The rest is copied.
_WEIGHT_OF_FIRST = 4.0
_ATTENTION = "sdpa_in_float32"
_WARM_UP = 0.03
_FULL_SPEED_UNTIL = 0.5
_LOWEST_SHARE = 0.03
_SECONDS_BETWEEN_REPORTS = 20.0


def new_model(tokenizer: Tokenizer, shape: Shape) -> Qwen3ForCausalLM:
    """Return a model of this shape with random weights."""
    padding, turn_end = token_id(tokenizer, PADDING), token_id(tokenizer, TURN_END)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_size,
        max_position_embeddings=shape.positions,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=turn_end,
        pad_token_id=padding,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=[turn_end, padding], pad_token_id=padding, do_sample=False
    )
    for matrix in _matrices(model):
        # Wider than the default, which is meant for models of a hundred times this width.
        torch.nn.init.normal_(matrix, std=0.5 / math.sqrt(matrix.shape[1]))
    return model


def _attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any
) -> tuple[Tensor, None]:
    """Attend in float32: on a CPU, the gradient of bf16 attention takes three times as long."""
    with torch.autocast("cpu", enabled=False):
        query, key, value = query.float(), key.float(), value.float()
        return sdpa_attention_forward(module, query, key, value, *rest, **options)


AttentionInterface.register(_ATTENTION, _attend)


def train_stage(model: Qwen3ForCausalLM, tokenizer: Tokenizer, stage: Stage) -> float:
    """Train for one stage and return the running mean of the loss."""
    model.set_attn_implementation(_ATTENTION)
    optimizers = _optimizers(model, stage.learning_rate)
    started, reported = time.monotonic(), 0.0
    tokens, loss_mean = 0, math.nan
    model.train()
    batches = Batches(tokenizer, stage.seed, stage.batch_tokens, stage.emphasis, stage.long)
    for step, batch in enumerate(batches, start=1):
        _set_learning_rate(optimizers, stage.learning_rate * _speed(tokens / stage.tokens))
        loss = _step(model, optimizers, batch)
        loss_mean = loss if step == 1 else 0.97 * loss_mean + 0.03 * loss
        tokens += batch.tokens
        is_done = tokens >= stage.tokens
        seconds = time.monotonic() - started
        if is_done or seconds - reported > _SECONDS_BETWEEN_REPORTS:
            reported = seconds
            print(
                f"{stage.name}: {tokens / stage.tokens:4.0%}, step {step}, loss {loss_mean:.4f}, "
                f"{tokens / 1e6:.1f}M tokens in {seconds:.0f} s",
                flush=True,
            )
        if is_done:
            break
    return loss_mean


class Average:
    """The weighted average of a model's weights after several stages.

    Each stage is a little better at one thing and worse at another; their average is better than
    any of them.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._share = 0.0

    def add(self, model: Qwen3ForCausalLM, share: float) -> None:
        """Count the model as it is now."""
        self._share += share
        for name, weights in model.state_dict().items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(weights)) + share * weights

    def model(self, like: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
        """Return a copy of the model with the average as its weights."""
        averaged = copy.deepcopy(like)
        averaged.load_state_dict({name: total / self._share for name, total in self._sums.items()})
        return averaged


def _matrices(model: Qwen3ForCausalLM) -> list[torch.nn.Parameter]:
    """Return what Muon trains: the matrices of the layers, not the embedding."""
    return [p for p in model.model.layers.parameters() if p.ndim == 2]


def _optimizers(model: Qwen3ForCausalLM, learning_rate: float) -> tuple[Optimizer, ...]:
    matrices = _matrices(model)
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    muon = torch.optim.Muon(
        matrices,
        lr=learning_rate,
        weight_decay=0.01,
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    adam = torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    return muon, adam


def _speed(done: float) -> float:
    """Return the share of the learning rate: a short rise, full for half the stage, a cosine."""
    rise = min(1.0, done / _WARM_UP)
    if done < _FULL_SPEED_UNTIL:
        return max(rise, _LOWEST_SHARE)
    fall = (done - _FULL_SPEED_UNTIL) / (1 - _FULL_SPEED_UNTIL)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, fall)))
    return cosine * (1 - _LOWEST_SHARE) + _LOWEST_SHARE


def _set_learning_rate(optimizers: tuple[Optimizer, ...], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def _step(model: Qwen3ForCausalLM, optimizers: tuple[Optimizer, ...], batch: Batch) -> float:
    loss = answer_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def answer_loss(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Return the loss of the next token, over the tokens that the assistant says."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ids, positions = batch.ids[:, :-1], batch.positions[:, :-1]
        hidden = model.model(
            input_ids=ids, position_ids=positions, **_past(model, batch.prefix, *ids.shape)
        ).last_hidden_state
        following = batch.labels[:, 1:]
        is_trained = following != UNTRAINED
        scores = model.lm_head(hidden[is_trained]).float()
        losses = functional.cross_entropy(scores, following[is_trained], reduction="none")
        is_first = batch.labels[:, :-1][is_trained] == UNTRAINED
        weights = torch.where(is_first, _WEIGHT_OF_FIRST, 1.0)
        # Now and then a batch of cut texts has no answer, whose mean would be no number.
        return (losses * weights).sum() / weights.sum().clamp(min=1)


def _past(model: Qwen3ForCausalLM, prefix: Tensor | None, count: int, length: int) -> dict[str, Any]:
    """Return what so many texts of this length see before them, and the mask that says so.

    The mask has to be named, or transformers takes a jump of positions for the start of another text
    and hides what comes before it; None is plain causal attention.
    """
    causal: dict[str, Any] = {"attention_mask": {"full_attention": None}}
    if prefix is None:
        return causal | {"use_cache": False}
    cache = DynamicCache(config=model.config)
    model.model(input_ids=prefix, past_key_values=cache, use_cache=True, **causal)
    cache.batch_repeat_interleave(count)
    seen = prefix.shape[1]
    mask = torch.ones(length, seen + length, dtype=torch.bool).tril(seen)[None, None]
    return {"attention_mask": {"full_attention": mask}, "past_key_values": cache, "use_cache": True}
