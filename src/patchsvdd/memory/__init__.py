"""The memory bank of normal patch embeddings, and nearest-neighbour search in it."""
