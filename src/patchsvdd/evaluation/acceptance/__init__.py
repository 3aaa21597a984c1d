"""Acceptance test of a model: error rates with exact bounds, repeatability, agreement with inspectors, and a record."""
