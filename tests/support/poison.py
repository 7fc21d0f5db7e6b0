"""A token that makes the model compute numbers that are none, while it is switched on."""

import random
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tests.support.engines import VOCABULARY, Bench

POISON = VOCABULARY - 1


def switch_always() -> bool:
    return True


class Poison:
    """Hooks into an engine's model. `switch` is asked once for each pass, on the engine thread."""

    def __init__(self, bench: Bench, switch: Callable[[], bool] = switch_always) -> None:
        network = bench.network
        self.on = True
        self.hits = 0
        """Passes in which numbers became none."""
        self._switch = switch
        self._rows: Tensor | None = None
        network.get_input_embeddings().register_forward_hook(self._strike_embeddings)
        network.get_decoder().layers[0].register_forward_hook(self._strike_layer)
        self.deep = False
        """The first layer's keys and values are still right."""

    def _strike_embeddings(self, _module: object, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        self._rows = None
        poisoned = inputs[0] == POISON
        if not self.on or not bool(poisoned.any()) or not self._switch():
            return output
        self.hits += 1
        self._rows = poisoned
        return output if self.deep else self._spoil(output)

    def _strike_layer(self, _module: object, _inputs: object, output: Any) -> Any:
        if self._rows is None or not self.deep:
            return output
        if isinstance(output, tuple):
            return (self._spoil(output[0]), *output[1:])
        return self._spoil(output)

    def _spoil(self, hidden: Tensor) -> Tensor:
        assert self._rows is not None
        return hidden.masked_fill(self._rows[..., None], float("nan"))


def gather_blocks(bench: Bench) -> None:
    """Has a CPU attend as a GPU without a kernel does: over whole blocks."""
    executor: Any = bench.executor
    executor._input_builder._contiguous_cache = None


def at_random(seed: int, chance: float) -> Callable[[], bool]:
    dice = random.Random(seed)
    return lambda: dice.random() < chance


def clean(tokens: list[int]) -> list[int]:
    """The same without the poison."""
    return [token % POISON for token in tokens]
