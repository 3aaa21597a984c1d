"""Measuring a detector against labelled test images."""
