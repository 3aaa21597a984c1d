"""A candidate in a separate process: it inspects stored images, on one core and only while nothing else wants it.

It reads its order and then the images as lines of JSON from standard input, and writes a line of JSON for each. When
standard input ends, so does the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

LOWEST = 19
NICE = int(os.environ.get("PATCHSVDD_CANDIDATE_NICE", LOWEST))
"""How far the process gives way to others; 0 for not at all."""


def main() -> None:
    """Load the model that is named on standard input, then inspect the images that are named there."""
    order = json.loads(sys.stdin.readline())
    give_way()
    from patchsvdd.core.errors import PatchSVDDError

    try:
        _inspect_all(order)
    except (PatchSVDDError, OSError) as error:
        _send(error=str(error))


def give_way() -> None:
    """Use one core, and only while no other process wants it."""
    if NICE <= 0:
        return
    with suppress(OSError, AttributeError):
        os.nice(NICE)
    if NICE >= LOWEST:
        with suppress(OSError, AttributeError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError, AttributeError):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _inspect_all(order: dict[str, Any]) -> None:
    import numpy as np
    import torch

    from patchsvdd.apps.serve.model_registry import private_copy
    from patchsvdd.core.errors import ImageError
    from patchsvdd.detector.detector import PatchSVDD
    from patchsvdd.images.image_set import load_image

    torch.set_num_threads(1)
    with private_copy(Path(order["model"]), Path(order["loading"])) as copy:
        detector = PatchSVDD.load(copy, order["device"], engine=order["engine"], search=order["search"])
        detector.inspect(np.full((*detector.image_size, 3), 128, np.uint8))  # selects engines, warms caches
    _send(identity=detector.identity)
    for line in sys.stdin:
        image, start = json.loads(line), time.monotonic()
        try:
            loaded = load_image(Path(image["path"]), detector.config, image["name"])
            found = detector.inspect_loaded([loaded])[0]
        except (ImageError, OSError) as error:
            _send(failed=str(error))
            continue
        result = {"score": found.score, "threshold": found.threshold, "verdict": found.verdict}
        _send(**result, identity=detector.identity, seconds=time.monotonic() - start)


def _send(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
