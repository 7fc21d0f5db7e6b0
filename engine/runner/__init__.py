"""One step on a model: inputs built, forward pass, static shapes and CUDA graphs."""
