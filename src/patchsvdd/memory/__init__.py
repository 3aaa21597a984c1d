"""The embeddings of normal patches and the searches for the nearest one."""
