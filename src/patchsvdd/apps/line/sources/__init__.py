"""Where a line's images come from."""
