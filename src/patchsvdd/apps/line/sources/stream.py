"""Video streams and files: RTSP, USB cameras and videos, through PyAV."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import quote, urlsplit

import numpy as np

from patchsvdd.apps.line.sources.clock import CameraClock, since_1970
from patchsvdd.apps.line.sources.source import Frame, SourceEnded, SourceError
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.extras import require

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer

StreamTrigger = Literal["none", "software"]
Transport = Literal["tcp", "udp"]

STARTING = 5.0
"""Seconds to open a stream, at least: a server may have to start a camera first."""
NOTHING_YET = 0.005
"""Seconds between two looks at a USB camera."""
LIVE = {"fpsprobesize": "0"}
"""Options of FFmpeg for streams: no second is spent on measuring the frame rate."""


class StreamSource:
    """A video stream (``rtsp://…``), a USB camera (``/dev/video0``) or a video file.

    ``Frame.number`` is the position in the stream since it was opened. ``Frame.captured`` comes from the time stamps of
    a stream, and is late by its shortest delay less ``delay``. With a software trigger, a stream gives the first image
    taken after the trigger and discards the others; a file gives its next image for each trigger.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        trigger: StreamTrigger = "none",
        options: Mapping[str, str] | None = None,
        transport: Transport = "tcp",
        stall: float = 5.0,
        every: int = 1,
        loop: bool = False,
        delay: float = 0.0,
        password: str | None = None,
    ) -> None:
        """``options``: of FFmpeg, such as ``video_size`` of a USB camera. ``stall``: seconds without an image after
        which a stream is lost; ``read`` may wait so long. ``every``: gives every n-th image only, unless the source
        waits for triggers. ``loop``: begins a file again at its end. ``delay``: seconds from taking an image to its
        arrival, where they are known. ``password``: of the user in the address.
        """
        require("av", "stream", "a video stream")
        for setting, chosen, allowed in (
            ("trigger", trigger, get_args(StreamTrigger)),
            ("transport", transport, get_args(Transport)),
        ):
            if chosen not in allowed:
                raise ConfigError(f"`{setting}` must be one of {', '.join(allowed)}; got '{chosen}'")
        if stall <= 0:
            raise ConfigError(f"`stall` must be more than 0 seconds; got {stall:g}")
        if every < 1:
            raise ConfigError(f"`every` must be at least 1; got {every}")
        self.name = name
        self._address = _with_password(address, password)
        self._shown = _without_password(address)
        self._is_usb = address.startswith("/dev/")
        self._is_file = not self._is_usb and "://" not in address
        if loop and not self._is_file:
            raise ConfigError(f"`loop` is for video files only; '{self._shown}' is a stream")
        self._waits = trigger == "software"
        self._options, self._transport = dict(options or {}), transport
        self._stall, self._every, self._loop, self._delay = stall, every, loop, delay
        self._container: InputContainer | None = None
        self._frames: Iterator[tuple[VideoFrame, float] | None] = iter(())
        self._decoded, self._seen, self._lost = 0, 0, 0
        self._intra_only = False
        self._needs_key = False
        self._clock = CameraClock()
        self._last = 0.0
        self._triggered = threading.Condition()
        self._triggers: list[float] = []

    def open(self) -> None:
        """Connect and start; raises SourceError."""
        import av

        self.close()
        if self._is_file and not Path(self._address).is_file():
            raise SourceError(f"{self}: there is no such file; check the path")
        if self._is_usb and not Path(self._address).exists():
            raise SourceError(f"{self}: there is no such camera; check the cable")
        options = dict(self._options)
        if not self._is_file:
            options = LIVE | options
        if self._address.startswith("rtsp"):
            options = {"rtsp_transport": self._transport} | options
        if self._is_usb:  # otherwise a driver that stalls would block for ever
            options = options | {"fflags": "nonblock"}
        try:
            self._container = av.open(
                self._address,
                format="v4l2" if self._is_usb else None,
                options=options,
                timeout=(max(STARTING, self._stall), self._stall),
            )
        except (av.FFmpegError, OSError, ValueError) as error:
            raise SourceError(f"{self} cannot be opened: {self._reason(error)}") from None
        if not self._container.streams.video:
            self.close()
            raise SourceError(f"{self} has no video; check the address")
        video = self._container.streams.video[0]
        video.thread_type = "AUTO" if self._is_file else "SLICE"  # threads that work on whole frames delay them
        self._intra_only = bool(video.codec_context.codec.intra_only)
        self._needs_key = not (self._is_file or self._intra_only)
        self._seen = self._decoded = 0
        self._clock = CameraClock()
        self._last = time.monotonic()
        self._frames = self._decode()

    def read(self, seconds: float) -> Frame | None:
        """The next image; None if none came within ``seconds``, or, from a stream that stalls, within ``stall``."""
        end = time.monotonic() + seconds
        if self._container is None:
            raise SourceError(f"{self} is not open")
        while True:
            if self._is_file and self._waits and not self._wait_for_trigger(end):
                return None
            frame = self._next(end)
            if frame is not None:
                return frame
            if time.monotonic() >= end:
                return None

    def trigger(self) -> None:
        """Give the next image, if the source waits for a software trigger."""
        if self._waits:
            with self._triggered:
                self._triggers.append(time.monotonic())
                self._triggered.notify()

    def flush(self) -> None:
        """Discard triggers that were not answered. A stream has no images to discard: it gives them as they arrive."""
        with self._triggered:
            self._triggers.clear()

    def close(self) -> None:
        """Disconnect."""
        container, self._container = self._container, None
        self._frames = iter(())
        if container is not None:
            container.close()

    @property
    def lost(self) -> int:
        """Images that could not be decoded since the source was created."""
        return self._lost

    def __str__(self) -> str:
        return f"stream '{self.name}' ({self._shown})"

    def _next(self, end: float) -> Frame | None:
        """The next image that is wanted; None if one was left out or none came."""
        import av

        try:
            decoded = next(self._frames)
        except StopIteration:
            self._begin_again()
            return None
        except BlockingIOError:  # a USB camera has no image yet
            self._frames = self._decode()
            if time.monotonic() - self._last > self._stall:
                raise self._stalled() from None
            time.sleep(max(0.0, min(NOTHING_YET, end - time.monotonic())))
            return None
        except av.error.ExitError:
            raise self._stalled() from None
        except (av.FFmpegError, OSError) as error:
            raise SourceError(f"{self}: {self._reason(error)}") from None
        if decoded is None:
            return None
        image, arrived = decoded
        self._last = time.monotonic()
        number = self._seen
        self._seen += 1
        captured = arrived
        if not self._is_file and image.time is not None:
            captured = self._clock.captured(image.time, arrived)
        captured -= self._delay
        if not self._is_wanted(number, captured):
            return None
        pixels = np.asarray(image.to_ndarray(format="rgb24"), np.uint8)
        name = f"{self.name}-{number:06d}.png"
        return Frame(self.name, number, since_1970(captured), arrived, name, pixels)

    def _decode(self) -> Iterator[tuple[VideoFrame, float] | None]:
        """Images with the time at which they arrived; None for an image that was left out."""
        import av

        container = self._container
        assert container is not None
        packets = container.demux(container.streams.video[0])
        while True:
            asked = time.monotonic()
            packet = next(packets, None)
            if packet is None:
                return
            arrived = time.monotonic()
            if arrived - asked >= self._stall and not self._is_file:  # FFmpeg gives what it had kept
                raise self._stalled()
            if (self._intra_only and self._skips(packet)) or (self._needs_key and not self._is_key(packet)):
                yield None
                continue
            try:
                images = packet.decode()
            except av.error.InvalidDataError:
                self._damaged()
                images = []
            for image in images:
                if image.is_corrupt:
                    self._damaged()
                else:
                    self._decoded += 1
                    yield image, arrived
                    self._last = time.monotonic()  # the reader may have been busy
            if time.monotonic() - self._last > self._stall and not self._is_file:
                raise self._stalled()

    def _skips(self, packet: Packet[Any]) -> bool:
        """Whether an image is not wanted and no later one needs it, so that it need not be decoded."""
        if packet.size == 0 or (self._triggers if self._waits else self._seen % self._every == 0):
            return False
        self._seen += 1
        self._last = time.monotonic()
        return True

    def _is_key(self, packet: Packet[Any]) -> bool:
        """Whether images of a stream can be decoded from here on: others than key frames need earlier ones."""
        self._last = time.monotonic()
        self._needs_key = not packet.is_keyframe
        if self._needs_key and self._decoded:
            self._lost += 1
        return not self._needs_key

    def _damaged(self) -> None:
        """Count an image that cannot be decoded; in a stream, those that need it are lost too."""
        self._lost += 1
        self._needs_key = not (self._is_file or self._intra_only)

    def _is_wanted(self, number: int, captured: float) -> bool:
        """Whether an image is given. An image of a stream answers all triggers before it was taken."""
        if not self._waits:
            return number % self._every == 0
        with self._triggered:
            answered = 1 if self._is_file else sum(one <= captured for one in self._triggers)
            del self._triggers[:answered]
        return answered > 0

    def _wait_for_trigger(self, end: float) -> bool:
        """Whether a trigger came in time: a file is read only then."""
        with self._triggered:
            return self._triggered.wait_for(lambda: bool(self._triggers), max(0.0, end - time.monotonic()))

    def _begin_again(self) -> None:
        """Begin a file again if it is repeated; otherwise raise the error of a source that ended."""
        if not self._is_file:
            raise SourceError(f"{self} ended the connection")
        if not self._decoded:
            raise SourceError(f"{self} has no image that can be decoded; check the file")
        if not self._loop:
            raise SourceEnded(f"{self} has no more images")
        assert self._container is not None
        self._container.seek(0)
        self._frames = self._decode()

    def _stalled(self) -> SourceError:
        return SourceError(f"{self} sent no image for {self._stall:g} s")

    def _reason(self, error: Exception) -> str:
        """The reason in an error of FFmpeg, without the address, which may contain a password."""
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return str(text).replace(self._address, self._shown)


def _with_password(address: str, password: str | None) -> str:
    """The address with a password after its user."""
    if password is None:
        return address
    parts = urlsplit(address)
    if not parts.username or parts.password:
        raise ConfigError("`password` is for an address like rtsp://user@host/path, with a user and without a password")
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username}:{quote(password, safe='')}@{host}").geturl()


def _without_password(address: str) -> str:
    """The address as it may be shown."""
    if "://" not in address:
        return address
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
