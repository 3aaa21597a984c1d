"""Uploads are decoded in separate processes with limits on pixels, memory and time.

Messages go through pipes: a line of JSON followed by binary data, in each direction. If an image crashes a process, the
service starts another one.
"""

from __future__ import annotations

import io
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from patchsvdd.apps.serve.png_rows import require_all_rows
from patchsvdd.core.config import Config
from patchsvdd.core.errors import ImageError
from patchsvdd.core.placement import place
from patchsvdd.images.decoding import (
    DECODING_ERRORS,
    FORMATS,
    Pixels,
    check_size,
    from_pil,
    open_image,
    place_pixels,
    to_uint8,
)

SPARE_BYTES = 1 << 30
"""Memory limit of a decoder in addition to the pixels."""
BYTES_PER_PIXEL = 24
"""Memory per pixel: in Pillow, in NumPy, converted, rotated and resized."""
MOST_PER_PIXEL = 12
"""Largest reply in bytes per pixel: three float32 channels."""
CHUNK = 1 << 20
"""Bytes written or read at a time."""
LINE = 1 << 16
"""Maximum bytes of a reply's first line."""
REASON = 500
"""Maximum characters of a reason."""
JPEG_QUALITY = 85
THUMBNAIL_SIDE = 256
"""Longest side of a thumbnail."""
VIEW_SIDE = 1600
"""Longest side of a view: an image as large as a screen needs it."""
SHOWN = ("PNG", "JPEG", "WEBP")
"""Formats that every browser can display, as Pillow names them."""
SMALL_FILE = 1 << 18
"""Maximum bytes of an image that is its own thumbnail."""
MOST_FRAMES = 100
"""Pages of a TIFF that are counted."""
MOST_PREVIEW_BYTES = 16 << 20
"""Largest thumbnail and view together."""

Data = bytes | bytearray


@dataclass(frozen=True)
class Previews:
    """Smaller versions of an image for display, as JPEG; None where the image itself will do."""

    thumbnail: bytes | None
    view: bytes | None


@dataclass(frozen=True)
class Decoded:
    """An uploaded image."""

    pixels: Pixels
    """(H, W, 3), resized for the model."""
    original_size: tuple[int, int]
    format: str
    """As Pillow names it."""
    frames: int
    """Frames or pages in the file, of which the first is decoded; MOST_FRAMES at most."""
    previews: Previews


class DecodingFailed(Exception):
    """Decoding took too long, or the process that did it died."""


class Decoders:
    """A pool of decoder processes; a killed process is replaced."""

    def __init__(self, count: int, seconds: float, max_pixels: int) -> None:
        self._seconds, self._max_pixels = seconds, max_pixels
        self._free: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        self._closed = False
        self._all: set[_Process] = set()
        self._lock = threading.Lock()
        for _ in range(count):
            self._free.put(None)

    def decode(self, data: Data, config: Config, name: str, *, previews: bool = True) -> Decoded:
        """Decode an image and resize it as ``config`` says; raises ImageError, or DecodingFailed if it is hostile."""
        order = {**_order(config, self._max_pixels), "previews": previews}
        reply, content = self._request(data, order, name)
        try:
            height, width = reply["size"]
            shape = [int(side) for side in reply["shape"]]
            pixels = np.frombuffer(content, reply["dtype"], count=int(np.prod(shape))).reshape(shape)
            made = _previews_of(reply, content)
            return Decoded(pixels, (int(height), int(width)), str(reply["format"]), int(reply["frames"]), made)
        except (KeyError, TypeError, ValueError):
            raise DecodingFailed("the decoder process sent an invalid reply") from None

    def previews(self, data: Data, name: str) -> Previews:
        """The smaller versions of an image."""
        reply, content = self._request(data, {"only_previews": True, "max_pixels": self._max_pixels}, name)
        try:
            return _previews_of(reply, content)
        except (KeyError, TypeError, ValueError):
            raise DecodingFailed("the decoder process sent an invalid reply") from None

    def jpeg(self, data: Data, side: int | None, name: str) -> bytes:
        """The image as a JPEG, downscaled to ``side`` pixels on the longer side if given."""
        return bytes(self._request(data, {"jpeg": True, "side": side, "max_pixels": self._max_pixels}, name)[1])

    def _request(self, data: Data, order: dict[str, Any], name: str) -> tuple[dict[str, Any], bytearray]:
        """The reply of a process. Tried twice, because the process may have died for another reason."""
        for last in (False, True):
            process = self._free.get()
            try:
                process = process or self._start()
                reply, content = process.ask(data, order, self._seconds)
            except (OSError, ValueError, KeyError, TypeError, TimeoutError) as error:
                if process is not None:
                    process.kill()
                    with self._lock:
                        self._all.discard(process)
                process = None
                if isinstance(error, TimeoutError):
                    raise DecodingFailed(f"decoding it took more than {self._seconds:g} seconds") from None
                if last or self._closed:
                    raise DecodingFailed("the decoder process died") from None
            else:
                if "error" in reply:
                    raise ImageError(name, str(reply["error"])[:REASON])
                return reply, content
            finally:
                self._free.put(process)
        raise AssertionError

    def _start(self) -> _Process:
        if self._closed:
            raise OSError("closed")
        process = _Process(SPARE_BYTES + BYTES_PER_PIXEL * self._max_pixels)
        with self._lock:
            self._all.add(process)
        return process

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        with self._lock:
            for process in self._all:
                process.kill()


def _order(config: Config, max_pixels: int) -> dict[str, Any]:
    size = list(config.image_size) if config.image_size is not None else None
    return {
        "size": size,
        "resize": config.resize,
        "fit": config.fit,
        "pixel_scale": config.pixel_scale,
        "max_pixels": max_pixels,
    }


def _previews_of(reply: dict[str, Any], content: bytearray) -> Previews:
    """The smaller versions at the end of a reply."""
    thumbnail, view = (int(size) for size in reply["previews"])
    end = len(content) - view
    start = end - thumbnail
    if min(thumbnail, view, start) < 0:
        raise ValueError("no reply")
    return Previews(bytes(content[start:end]) or None, bytes(content[end:]) or None)


class _Process:
    """One decoder process."""

    def __init__(self, max_bytes: int) -> None:
        command = [sys.executable, "-m", "patchsvdd.apps.serve.decoder_pool", str(max_bytes)]
        # A minimal environment: a decoder must not see secrets such as the database's password.
        kept = {name: os.environ[name] for name in ("PYTHONPATH", "PATH", "SYSTEMROOT") if name in os.environ}
        environment = {**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )

        self._in, self._out = self._process.stdin, self._process.stdout
        for pipe in (self._in, self._out):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)  # so that writing to a stopped process can time out too
            _widen(pipe)

    def ask(self, data: Data, order: dict[str, Any], seconds: float) -> tuple[dict[str, Any], bytearray]:
        """The reply to a request, and its binary data; raises TimeoutError after ``seconds``."""
        deadline = time.monotonic() + seconds
        self._write(json.dumps({**order, "bytes": len(data)}).encode() + b"\n", deadline)
        self._write(data, deadline)
        received = bytearray()
        while (end := received.find(b"\n")) < 0:
            if len(received) > LINE:
                raise ValueError("no reply")
            received += self._read(deadline, LINE)
        reply: dict[str, Any] = json.loads(received[:end])
        del received[: end + 1]
        count = int(reply["bytes"])
        if not 0 <= count <= order["max_pixels"] * MOST_PER_PIXEL + MOST_PREVIEW_BYTES:
            raise ValueError("no reply")
        while len(received) < count:
            received += self._read(deadline, min(count - len(received), CHUNK))
        return reply, received

    def _write(self, data: Data, deadline: float) -> None:
        assert self._in is not None
        left = memoryview(data)
        while left:
            _wait(self._in, selectors.EVENT_WRITE, deadline)
            left = left[os.write(self._in.fileno(), left[:CHUNK]) :]

    def _read(self, deadline: float, most: int) -> bytes:
        assert self._out is not None
        _wait(self._out, selectors.EVENT_READ, deadline)
        some = os.read(self._out.fileno(), most)
        if not some:
            raise OSError("the decoder has ended")
        return some

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _wait(pipe: IO[bytes], event: int, deadline: float) -> None:
    """Wait until a pipe is ready; raises TimeoutError after the deadline."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeoutError


def _widen(pipe: IO[bytes]) -> None:
    """Enlarge the pipe's buffer if the system supports it, to reduce context switches."""
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, CHUNK)


def write_message(stream: IO[bytes], head: dict[str, Any], content: Sequence[bytes | memoryview]) -> None:
    """Write a line of JSON and its binary data."""
    head = {**head, "bytes": sum(len(part) for part in content)}
    stream.write(json.dumps(head).encode() + b"\n")
    for part in content:
        stream.write(part)
    stream.flush()


def decode_upload(data: bytes, order: dict[str, Any]) -> tuple[dict[str, Any], Sequence[bytes | memoryview]]:
    """The reply of a decoder: a header, and the pixels or JPEGs."""
    name = "upload"
    try:
        if order.get("jpeg"):
            return _as_jpeg(data, order)
        with open_image(io.BytesIO(data)) as picture:
            _require_pixels(picture, order["max_pixels"])
            kind = str(picture.format)
            pixels = from_pil(picture, name)
            if kind == "PNG":
                require_all_rows(data, picture, name)
            frames = _frames(picture)
        size = check_size(pixels, name)
        wanted = order.get("previews") or order.get("only_previews")
        previews = _drawn_previews(pixels, kind, len(data)) if wanted else [b"", b""]
        facts = {"size": list(size), "format": kind, "frames": frames, "previews": [len(part) for part in previews]}
        if order.get("only_previews"):
            return facts, previews
        if order["size"] is not None:
            canvas = (order["size"][0], order["size"][1])
            pixels = place_pixels(pixels, place(size, canvas, order["fit"], order["pixel_scale"]), order["resize"])
    except UnidentifiedImageError:
        return _refusal("is not a PNG, JPEG, WebP, BMP or TIFF image" if data else "is empty")
    except ImageError as error:
        return _refusal(error.reason)
    except Image.DecompressionBombError:
        return _refusal(f"has more pixels than this service accepts ({order['max_pixels'] / 1e6:g} million)")
    except DECODING_ERRORS as error:
        return _refusal(f"is damaged and cannot be decoded ({type(error).__name__})")
    whole: NDArray[Any] = np.ascontiguousarray(pixels)
    return {**facts, "shape": list(whole.shape), "dtype": whole.dtype.str}, [whole.data.cast("B"), *previews]


def needs_thumbnail(longest: int, is_shown: bool, file_bytes: int) -> bool:
    """Whether an image cannot serve as its own thumbnail."""
    return longest > THUMBNAIL_SIDE or not is_shown or file_bytes > SMALL_FILE


def needs_view(longest: int, is_shown: bool) -> bool:
    """Whether an image cannot serve as its own view."""
    return longest > VIEW_SIDE or not is_shown


def _drawn_previews(pixels: Pixels, kind: str, file_bytes: int) -> list[bytes]:
    """The thumbnail and the view as JPEG; empty where the image itself will do."""
    longest, is_shown = max(pixels.shape[:2]), kind in SHOWN
    if not needs_thumbnail(longest, is_shown, file_bytes):
        return [b"", b""]
    image = Image.fromarray(pixels if pixels.dtype == np.uint8 else to_uint8(pixels))
    view = b""
    if needs_view(longest, is_shown):
        image.thumbnail((VIEW_SIDE, VIEW_SIDE), Image.Resampling.BOX, reducing_gap=1.0)
        view = _jpeg(image)
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX, reducing_gap=1.0)
    return [_jpeg(image), view]


def _frames(picture: Image.Image) -> int:
    """Frames or pages of a file, MOST_FRAMES at most."""
    if picture.format != "TIFF":
        return min(int(getattr(picture, "n_frames", 1)), MOST_FRAMES)
    count = 1
    with suppress(*DECODING_ERRORS):  # past the last page
        while count < MOST_FRAMES:
            picture.seek(count)
            count += 1
    return count


def _jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def _as_jpeg(data: bytes, order: dict[str, Any]) -> tuple[dict[str, Any], Sequence[bytes]]:
    side = order["side"]
    with open_image(io.BytesIO(data)) as picture:
        _require_pixels(picture, order["max_pixels"])
        if side is not None:
            picture.draft("RGB", (side, side))
        small = Image.fromarray(to_uint8(from_pil(picture, "upload")))
    if side is not None:
        small.thumbnail((side, side), Image.Resampling.BOX)
    return {}, [_jpeg(small)]


def _require_pixels(picture: Image.Image, most: int) -> None:
    width, height = picture.size
    if width * height > most:
        raise ImageError("upload", f"is {width}x{height} pixels; this service accepts {most / 1e6:g} million")


def _refusal(reason: str) -> tuple[dict[str, Any], Sequence[bytes]]:
    return {"error": reason}, []


def main() -> None:
    """Run the decoder process: decode requests until stdin is closed."""
    if sys.platform != "win32":
        import resource

        limit = int(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for name in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
            resource.setrlimit(name, (0, 0))  # it writes no files
    Image.init()
    assert set(FORMATS) <= set(Image.OPEN)
    while line := sys.stdin.buffer.readline():
        order = json.loads(line)
        data = sys.stdin.buffer.read(order["bytes"])
        write_message(sys.stdout.buffer, *decode_upload(data, order))


if __name__ == "__main__":
    main()
