"""The patch grid, the networks and the engines that run them: pixels to embeddings."""
