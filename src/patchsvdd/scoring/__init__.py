"""Distances to anomaly maps, regions, thresholds and results."""
