"""LoRA adapters: settings, weights, layers."""
