"""Pixels to embeddings: the patch grid, the networks and the engines that run them."""
