"""Evaluation of detectors on labelled test images."""
