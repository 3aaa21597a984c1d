"""Inspect images as they arrive in a folder, each exactly once even after a crash, and deliver the results."""
