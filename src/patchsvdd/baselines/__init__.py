"""The methods that the paper compares itself with, as detectors: Deep SVDD and two autoencoders."""
