"""Alarms whose picture and heat map tell by their pixels which they are; stored without a model."""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.tables import inspections, jobs, reviews
from support.serving import png, row

BLOCKS, BLOCK = 4, 8
SIDE = BLOCKS * BLOCK
BITS = BLOCKS * BLOCKS

READ = (
    f"(element) => {{ const [blocks, block] = [{BLOCKS}, {BLOCK}];"
    + """
  const visible = { opacityProperty: true, visibilityProperty: true };
  if (!element?.naturalWidth || !element.checkVisibility(visible)) return null;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = blocks * block;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(element, 0, 0, canvas.width, canvas.height);
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
  let code = 0;
  for (let bit = 0; bit < blocks * blocks; bit += 1) {
    const [x, y] = [bit % blocks, Math.floor(bit / blocks)].map((one) => one * block + block / 2);
    const at = 4 * (y * canvas.width + x);
    if (data[at + 3] > 40 && data[at] > 128) code |= 1 << bit;
  }
  return code || null;
}"""
)
"""JavaScript: the code in the pixels that an image element shows; null if it shows none."""


def blocks(code: int) -> NDArray[np.bool_]:
    """(SIDE, SIDE) the bits of ``code`` as squares."""
    bits = np.array([code >> bit & 1 for bit in range(BITS)], dtype=bool).reshape(BLOCKS, BLOCKS)
    return bits.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)


def store_alarms(service: Service, model: str, codes: Sequence[int], **values: Any) -> dict[int, str]:
    """Replace all inspections and jobs of ``model`` by alarms, the first code the newest; returns their ids by code."""
    rows, now = [], time.time()
    for age, code in enumerate(codes):
        assert 0 < code < 1 << BITS
        picture = png(np.where(blocks(code)[..., None], 255, 0).astype(np.uint8).repeat(3, axis=-1))
        file = io.BytesIO()
        np.save(file, np.where(blocks(code), 3.0, 0.0).astype(np.float32))
        facts = {"model": model, "name": f"part-{code:05}.png", "verdict": "anomalous", "width": SIDE, "height": SIDE}
        region = {"box": [2, 2, 20, 20], "area": 200, "peak": 1.5, "peak_at": [8, 8], "score": 1.5}
        files = {"picture": _put(service, picture), "picture_bytes": len(picture)}
        files |= {"map": _put(service, file.getvalue()), "map_bytes": len(file.getvalue())}
        rows.append(row(now - age, **{**facts, **files, "regions": [region], **values}))

    def write(connection: sa.Connection) -> None:
        old = sa.select(inspections.c.id).where(inspections.c.model == model)
        connection.execute(sa.delete(reviews).where(reviews.c.inspection.in_(old)))
        connection.execute(sa.delete(inspections).where(inspections.c.model == model))
        connection.execute(sa.delete(jobs).where(jobs.c.model == model))
        if rows:
            connection.execute(sa.insert(inspections), rows)

    service.store.write(write)
    return {code: one["id"] for code, one in zip(codes, rows, strict=True)}


def _put(service: Service, data: bytes) -> str:
    """Store a file as the service does, but without waiting for the disk."""
    name = hashlib.sha256(data).hexdigest()
    path = service.blobs.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return name


class Slow:
    """An application with latency: each request takes up to ``most`` seconds, on its way there and back."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.most = 0.0
        self.late: dict[str, float] = {}
        """Seconds by what the path ends with."""
        self._random = random.Random(3)

    def delay(self, path: str) -> float:
        """Seconds that a request takes: in steps of 5 ms, short ones more often than long ones."""
        chosen = [seconds for ending, seconds in self.late.items() if path.endswith(ending)]
        return max(chosen, default=0.005 * int(self.most / 0.005 * self._random.random() ** 3))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        delay, there = self.delay(scope["path"]), self._random.random()

        async def send_late(message: Any) -> None:
            if message["type"] == "http.response.start":
                await asyncio.sleep(delay * (1 - there))
            await send(message)

        await asyncio.sleep(delay * there)
        await self.app(scope, receive, send_late)
