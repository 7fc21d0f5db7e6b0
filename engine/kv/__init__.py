"""The KV cache: tensors of blocks, contiguous copies for decoding, sizes."""
