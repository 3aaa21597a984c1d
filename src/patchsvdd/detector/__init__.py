"""PatchSVDD: fit, inspect, explain, save, update, recalibrate."""
