"""``python -m patchsvdd``."""

from patchsvdd.apps.cli import main

main()
