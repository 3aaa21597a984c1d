"""Distances to anomaly maps, scores, regions, thresholds and results."""
