"""Synthetic defects and the segmentation network trained on them."""
