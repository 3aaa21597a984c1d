"""An inspection line: cameras in, one verdict per part out, over a field bus."""
