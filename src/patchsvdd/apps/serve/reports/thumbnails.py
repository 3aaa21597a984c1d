"""Small images for reports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.store import Row

SIDE = 256
SECONDS = 30.0
"""Time for all thumbnails of a report; those that take longer are left out."""
AT_A_TIME = 4


async def thumbnails(service: Service, rows: Sequence[Row]) -> dict[str, bytes]:
    """Id → JPEG of the inspections whose image is still kept."""
    found: dict[str, bytes] = {}
    waiting = iter([row for row in rows if row["picture"]])

    async def fetch() -> None:
        for row in waiting:
            try:
                found[row["id"]] = (await service.picture(row, SIDE))[0]
            except Problem:
                continue

    try:
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(fetch() for _ in range(AT_A_TIME)))
    except TimeoutError:
        pass
    return found
