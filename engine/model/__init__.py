"""Loading a checkpoint: weights, quantization, CPU kernels, LoRA adapters."""
