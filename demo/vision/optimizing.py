"""How weights are trained: Muon for matrices, AdamW for the rest, a rate that rises and falls."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

_WARM_UP = 0.03
_FULL_SPEED_UNTIL = 0.4
_LOWEST_SHARE = 0.02


class Optimizers:
    """Takes steps on named weights."""

    def __init__(self, parameters: Iterable[tuple[str, torch.nn.Parameter]], learning_rate: float) -> None:
        """Only what needs gradients is trained."""
        named = [(name, p) for name, p in parameters if p.requires_grad]
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        chosen = {id(p) for p in matrices}
        rest = [p for _, p in named if id(p) not in chosen]
        self._rate = learning_rate
        self._all = matrices + rest
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices, lr=learning_rate, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(rest, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def step(self, loss: Tensor, done: float) -> None:
        """Take a step at a rate for this share of the training."""
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._all, 1.0)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self._rate * speed(done)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def speed(done: float) -> float:
    """Return the share of the learning rate: a short rise, full for a while, a cosine."""
    if done < _FULL_SPEED_UNTIL:
        return max(min(1.0, done / _WARM_UP), _LOWEST_SHARE)
    fall = min(1.0, (done - _FULL_SPEED_UNTIL) / (1 - _FULL_SPEED_UNTIL))
    return 0.5 * (1 + math.cos(math.pi * fall)) * (1 - _LOWEST_SHARE) + _LOWEST_SHARE
