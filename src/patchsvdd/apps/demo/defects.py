"""The kinds of defect of each category: a good part and its photograph → photographs of it with a defect.

Scratches, stains, holes and wrong colours are drawn into the photograph (``critic/synthetic_defects.py``). For missing
pieces, the part is changed and photographed again with the same light, pose and material.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from math import pi
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.apps.demo.board import Board
from patchsvdd.apps.demo.drawing import Plane, halved
from patchsvdd.apps.demo.parts import Part, photograph
from patchsvdd.apps.demo.washer import BOLTS, Washer
from patchsvdd.apps.demo.weave import THREADS, Stretch, Weave
from patchsvdd.critic.synthetic_defects import Sizes, draw_defects

Rng = np.random.Generator
# The part, its photograph (3, size, size), the random generator, and the index that selects the missing piece → an
# endless stream of defective photographs, of which the caller uses the first with a clearly visible defect.
Defect = Callable[[Any, Plane, Rng, int], Iterator[Plane]]

CANDIDATES = 8
"""Photographs per batch."""
ON_THE_PART = 0.9
"""Smallest fraction of a change that must be on the part."""
CHANGED = 12
"""Pixels that change by more grey levels than this define the shape of a change."""
SLIM = 0.12
"""Largest ratio of a line's pixels to its squared length."""
SCRATCHED = 45
"""Smallest mean contrast of a scratch in grey levels; high, because a scratch is thin."""
GREYISH = 40
"""Largest difference between the colour channels of a scratch."""


def drawn(kind: str, smallest: float, largest: float, *, line: bool = False) -> Defect:
    """Defects of one kind on the part, all lines or none, with half-lengths of ``smallest`` to ``largest`` widths."""
    sizes = Sizes(smallest * 256, largest)

    def draw(part: Part, clean: Plane, rng: Rng, _turn: int) -> Iterator[Plane]:
        paintable = halved(part.surface(clean.shape[-1]).paintable)
        good = torch.from_numpy(clean)[None].expand(CANDIDATES, -1, -1, -1)
        while True:
            generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
            images = draw_defects(good, good[:1], generator, [kind], sizes=sizes, rounds=(1.0,)).images
            for defective in images.numpy():
                change = np.abs(defective - clean).max(axis=0)
                on_the_part = (change * paintable).sum() >= ON_THE_PART * change.sum()
                if on_the_part and _is_line(change > CHANGED) is line:
                    yield defective

    return draw


def _is_line(changed: NDArray[np.bool_]) -> bool:
    """Whether the changed area (size, size) is much longer than wide."""
    rows, columns = np.nonzero(changed)
    return len(rows) > 0 and bool(len(rows) < SLIM * (np.ptp(rows) ** 2 + np.ptp(columns) ** 2))


def scratch(part: Part, clean: Plane, rng: Rng, turn: int) -> Iterator[Plane]:
    """A thin, bright or dark line, straight or bent."""
    for defective in drawn("paint", 0.03, 1 / 4, line=True)(part, clean, rng, turn):
        change = np.abs(defective - clean).max(axis=0)
        changed = change > CHANGED
        if change[changed].mean() > SCRATCHED and np.ptp(defective[:, changed].mean(axis=1)) < GREYISH:
            yield defective


def undrilled_or_chipped(washer: Washer, clean: Plane, rng: Rng, turn: int) -> Iterator[Plane]:
    """A bolt hole that was never drilled, or a piece broken off the rim."""
    for number in count(turn):
        if number % 2 == 0:
            changed = replace(washer, undrilled=(int(rng.integers(BOLTS)),))
        else:
            chip = rng.uniform(0, 2 * pi), rng.uniform(0.07, 0.10), rng.uniform(0.038, 0.055)
            changed = replace(washer, chip=chip)
        yield _rephotograph(changed, clean)


def missing_component(board: Board, clean: Plane, _: Rng, turn: int) -> Iterator[Plane]:
    """A missing component: bare pads and the print around them."""
    for number in count(turn):
        component = board.components[1:7][number % 6]  # the larger ones, but not the processor
        yield _rephotograph(replace(board, missing=frozenset({component.name})), clean)


def missing_thread(weave: Weave, clean: Plane, rng: Rng, turn: int) -> Iterator[Plane]:
    """A missing stretch of a thread, alternately warp and weft, that leaves a slit between its neighbours."""
    for number in count(turn):
        thread = int(rng.integers(2, THREADS - 4))
        length = rng.uniform(6, THREADS)
        start = rng.uniform(0, THREADS - length)
        yield _rephotograph(replace(weave, gaps=(Stretch(number % 2 == 1, thread, start, start + length),)), clean)


def _rephotograph(part: Part, clean: Plane) -> Plane:
    """The photograph of a changed part, of the size of ``clean``."""
    return photograph(part.surface(clean.shape[-1]), part.station)


stain, hole, wrong_colour = drawn("stain", 0.08, 1 / 6), drawn("hole", 0.01, 1 / 8), drawn("colour", 0.1, 1 / 5)

DEFECTS: dict[str, dict[str, Defect]] = {
    "washer": {
        "scratch": scratch,
        "stain": stain,
        "hole": hole,
        "missing_part": undrilled_or_chipped,
        "wrong_colour": wrong_colour,
    },
    "board": {
        "scratch": scratch,
        "stain": stain,
        "hole": hole,
        "missing_part": missing_component,
        "wrong_colour": wrong_colour,
    },
    "weave": {
        "stain": stain,
        "hole": hole,
        "missing_part": missing_thread,
        "wrong_colour": wrong_colour,
    },
}
