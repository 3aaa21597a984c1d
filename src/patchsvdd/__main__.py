"""``python -m patchsvdd``."""

from patchsvdd.cli import main

main()
