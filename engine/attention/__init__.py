"""Attention over paged keys and values: reference, gather and GPU kernels."""
