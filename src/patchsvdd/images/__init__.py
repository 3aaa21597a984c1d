"""Files to pixels: decoding, loading, the MVTec layout, normalisation, near-duplicates."""
