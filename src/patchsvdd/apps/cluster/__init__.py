"""On many machines: Ray runs what the rest of the package computes. Nothing outside this folder imports Ray."""
