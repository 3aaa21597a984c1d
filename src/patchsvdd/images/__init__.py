"""Image files to pixels: decoding, loading, the MVTec layout, normalisation and near-duplicate detection."""
