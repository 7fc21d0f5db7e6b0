"""One step on a model: inputs built, forward pass, CUDA graphs."""
