"""Settings, presets, errors, files, the device and regions of interest."""
