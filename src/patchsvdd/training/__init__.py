"""The encoder's losses, pairs, step, loop, checkpoints and fused kernels."""
