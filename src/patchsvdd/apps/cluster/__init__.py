"""The package on many machines, with Ray. Nothing outside this folder imports Ray."""
