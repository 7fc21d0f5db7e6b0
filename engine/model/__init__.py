"""Loading a checkpoint: weights, quantisation, CPU kernels."""
