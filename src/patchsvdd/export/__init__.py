"""Export a detector as one file for other software: pixels in, map, score and verdict out."""
