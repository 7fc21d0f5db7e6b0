"""A model that has learned what it can hold goes on with one more layer."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

_PREFIX = "model.layers."
#: What a layer adds comes out of these; at nought, it adds nothing.
_OUTPUTS = ("o_proj.weight", "down_proj.weight")


def deepened(model: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
    """Return a model with another layer in its middle that says what this one says.

    The new layer is a copy of the one above it whose outputs are nought: it has something to start
    from and adds nothing until it is trained.
    """
    layers = model.config.num_hidden_layers
    middle = layers // 2
    settings = model.config.to_dict()
    settings.update(num_hidden_layers=layers + 1, layer_types=None)
    deeper = Qwen3ForCausalLM(Qwen3Config(**settings))
    deeper.generation_config = model.generation_config
    weights = {}
    for name, weight in model.state_dict().items():
        if not name.startswith(_PREFIX):
            weights[name] = weight
            continue
        number, _, rest = name.removeprefix(_PREFIX).partition(".")
        place = int(number)
        weights[f"{_PREFIX}{place + (place >= middle)}.{rest}"] = weight
        if place == middle:
            is_output = rest.endswith(_OUTPUTS)
            weights[f"{_PREFIX}{middle}.{rest}"] = torch.zeros_like(weight) if is_output else weight.clone()
    deeper.load_state_dict(weights)
    return deeper
