"""A detector as one file that other software runs: pixels in, map, score and verdict out."""
