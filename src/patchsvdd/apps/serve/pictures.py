"""Stored images for display: as they were sent, as a thumbnail, or at another size."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import sqlalchemy as sa
from starlette.requests import ClientDisconnect

from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.decoder_pool import (
    THUMBNAIL_SIDE,
    VIEW_SIDE,
    Data,
    Decoders,
    DecodingFailed,
    Previews,
    needs_thumbnail,
    needs_view,
)
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.settings import Limits
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.tables import inspections
from patchsvdd.core.errors import OutputError

LOG = logging.getLogger("patchsvdd.apps.serve")
SHOWN = ("image/png", "image/jpeg", "image/webp")
"""Media types that every browser can display."""
JPEG = "image/jpeg"
JPEG_END = b"\xff\xd9"
"""Last bytes of a whole JPEG; a file that a power failure cut off lacks them."""
WAITING = 32
"""Images that may wait to be decoded for display."""
RETRY_SECONDS = 2.0

Picture = tuple[bytes, str]
"""A file and its media type."""
HungUp = Callable[[], Awaitable[None]]
"""Returns when the client has closed its connection."""


class Pictures:
    """Reads stored images; decodes those that have no file of the requested size, one at a time.

    A decoder of its own, so that a page of thumbnails does not delay inspections.
    """

    def __init__(self, store: Store, blobs: Blobs, limits: Limits, owner: str) -> None:
        self._store, self._blobs, self._owner = store, blobs, owner
        self.decoders = Decoders(1, limits.decode_seconds, limits.pixels)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="viewing")
        self._waiting = 0

    def close(self) -> None:
        """Stop decoding."""
        self._threads.shutdown(cancel_futures=True)
        self.decoders.close()

    def write_previews(self, picture: str, previews: Previews) -> dict[str, Any]:
        """Store the smaller versions of a stored image; returns the columns of its inspection.

        They are not synced to disk, which would cost more than drawing them: lost ones can be drawn again.
        """
        thumbnail, view = previews.thumbnail, previews.view
        return {
            "thumbnail": picture if thumbnail is None else self._blobs.put(thumbnail, sync=False),
            "view": None if view is None else self._blobs.put(view, sync=False),
            "view_bytes": len(thumbnail or b"") + len(view or b""),
        }

    def missing(self, row: Row, what: str) -> Problem:
        """The problem for a file that is not in the data folder."""
        if row[what] is not None and row.get("owner") not in (None, self._owner):
            return Problem("not-found", "this file is stored by another service on the same database; ask that one")
        return Problem("not-found", f"the {'map' if what == 'map' else 'image'} has been deleted")

    def read(self, row: Row, side: int | None) -> Picture | None:
        """The image, if a file has it at that size; None if it has to be decoded. Raises Problem if it is deleted."""
        if row["picture"] is None:
            raise self.missing(row, "picture")
        for name, kind in _files(row, side):
            data = self._blobs.get(name)
            if data is not None and (name == row["picture"] or data.endswith(JPEG_END)):
                return data, kind
        return None

    async def decoded(self, row: Row, side: int | None, hung_up: HungUp | None) -> Picture:
        """The image as a JPEG that has to be decoded first; not if the client hangs up before its turn.

        Raises Problem if too many wait.
        """
        if self._waiting >= WAITING:
            words = f"{self._waiting} images are waiting to be decoded for display; retry later"
            raise Problem("overloaded", words, retry_after=RETRY_SECONDS)
        self._waiting += 1
        work = asyncio.wrap_future(self._threads.submit(partial(self._decode, row, side)))
        gone = asyncio.ensure_future(hung_up()) if hung_up is not None else None
        try:
            waited: set[asyncio.Future[Any]] = {work} if gone is None else {work, gone}
            done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if work not in done:
                raise ClientDisconnect
            return work.result()
        except DecodingFailed as error:
            raise Problem("invalid-image", f"{row['name']}: {error}") from None
        finally:
            self._waiting -= 1
            work.cancel()  # if it waits, it is never begun
            if gone is not None and not gone.cancel():
                gone.exception()

    def _decode(self, row: Row, side: int | None) -> Picture:
        if row["thumbnail"] is None and side in (THUMBNAIL_SIDE, VIEW_SIDE):
            return self._first_view(row, side)
        if side is not None and side < VIEW_SIDE and row["view"] is not None:  # large enough, and quicker to decode
            data = self._blobs.get(row["view"])
            if data is not None and data.endswith(JPEG_END):
                return self.decoders.jpeg(data, side, row["name"]), JPEG
        return self.decoders.jpeg(self._content(row, row["picture"]), side, row["name"]), JPEG

    def _first_view(self, row: Row, side: int) -> Picture:
        """An image of an inspection from before thumbnails were stored: store them now."""
        row = self._store.inspection(row["id"])  # another request may have been quicker
        found = self.read(row, side) if row["thumbnail"] is not None else None
        if found is not None:
            return found
        previews = self.decoders.previews(self._content(row, row["picture"]), row["name"])
        try:
            columns = self.write_previews(row["picture"], previews)
            still_there = (inspections.c.id == row["id"]) & (inspections.c.picture == row["picture"])
            change = sa.update(inspections).where(still_there).values(**columns)
            self._store.write(lambda connection: connection.execute(change).rowcount)
        except (OutputError, StoreUnavailable) as error:
            LOG.warning("a thumbnail could not be stored: %s", error)
        data = previews.thumbnail if side == THUMBNAIL_SIDE else previews.view
        if data is None:  # the image itself will do
            return bytes(self._content(row, row["picture"])), row["media_type"]
        return data, JPEG

    def _content(self, row: Row, name: str | None) -> Data:
        data = self._blobs.get(name) if name is not None else None
        if data is None:
            raise self.missing(row, "picture")
        return data


def nearest_side(side: int | None) -> int | None:
    """The side of the file that is sent for a requested one: thumbnails have one size."""
    return None if side is None else max(side, THUMBNAIL_SIDE)


def _files(row: Row, side: int | None) -> list[tuple[str, str]]:
    """Names and media types of the files that show an inspection at a size, if there are any."""
    longest, is_shown = max(row["width"], row["height"]), row["media_type"] in SHOWN
    itself, found = (row["picture"], row["media_type"]), []
    if side is None:
        if is_shown:
            found.append(itself)
        elif longest <= VIEW_SIDE and row["view"] is not None:
            found.append((row["view"], JPEG))
    elif side <= THUMBNAIL_SIDE:
        if not needs_thumbnail(longest, is_shown, row["picture_bytes"]):
            found.append(itself)
        elif row["thumbnail"] is not None:
            found.append((row["thumbnail"], JPEG))
    elif is_shown and longest <= side:
        found.append(itself)
    elif row["view"] is not None and (side == VIEW_SIDE or (not needs_view(longest, True) and longest <= side)):
        found.append((row["view"], JPEG))
    return found
