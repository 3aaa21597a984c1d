"""The paper's tables and figures, each reproduced by one function."""
