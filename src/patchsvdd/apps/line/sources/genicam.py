"""GenICam cameras: GigE Vision and USB3 Vision, through Aravis."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal, get_args

from patchsvdd.apps.line.sources.aravis import camera_error, first_camera, load_aravis
from patchsvdd.apps.line.sources.clock import CameraClock, by_monotonic, since_1970
from patchsvdd.apps.line.sources.frame_counter import FrameCounter
from patchsvdd.apps.line.sources.pixel_formats import FORMATS, present_name, to_pixels
from patchsvdd.apps.line.sources.source import Frame, SourceError
from patchsvdd.core.errors import ConfigError

CameraTrigger = Literal["none", "software", "hardware"]
Feature = bool | int | float | str

LOOK = 0.25
"""Seconds between two looks at whether the camera is still there."""


class GenicamSource:
    """A GenICam camera.

    ``Frame.number`` is the camera's own count; a 16-bit count goes on after 65,535. ``Frame.captured`` comes from the
    camera's clock and is late by the exposure and a few milliseconds. Images with missing packets are counted as lost
    and never returned.
    """

    def __init__(
        self,
        name: str,
        camera: str | None = None,
        *,
        trigger: CameraTrigger = "none",
        trigger_line: str = "Line1",
        exposure_us: float | None = None,
        gain: float | None = None,
        pixel_format: str | None = None,
        frame_rate: float | None = None,
        packet_size: int | None = None,
        packet_delay_ns: int | None = None,
        buffers: int = 8,
        features: Mapping[str, Feature] | None = None,
    ) -> None:
        """``camera``: its identifier or IP address; None for the first that answers. What is None stays as the camera
        has it. ``features``: further GenICam features, set in this order before the others.
        """
        _choice("trigger", trigger, get_args(CameraTrigger))
        for setting, value, least in (
            ("exposure_us", exposure_us, 0),
            ("frame_rate", frame_rate, 0),
            ("packet_size", packet_size, 576 - 1),
            ("buffers", buffers, 1),
        ):
            if value is not None and value <= least:
                raise ConfigError(f"`{setting}` must be more than {least}; got {value:g}")
        if pixel_format is not None:
            _choice("pixel_format", present_name(pixel_format), FORMATS)
        load_aravis()
        self.name = name
        self._id, self._trigger, self._trigger_line = camera, trigger, trigger_line
        self._exposure_us, self._gain, self._frame_rate = exposure_us, gain, frame_rate
        self._pixel_format, self._packet_size, self._packet_delay_ns = pixel_format, packet_size, packet_delay_ns
        self._buffers, self._features = buffers, dict(features or {})
        self._camera: Any = None
        self._stream: Any = None
        self._handler: int | None = None
        self._format = ""
        self._gone = threading.Event()
        self._counter, self._clock = FrameCounter(), CameraClock()

    def open(self) -> None:
        """Connect, configure and start the camera; raises SourceError."""
        aravis = load_aravis()
        self.close()
        self._gone, self._clock = threading.Event(), CameraClock()
        self._counter.restart()
        try:
            with self._errors():
                self._camera = aravis.Camera.new(self._id or first_camera())
                self._configure(aravis)
                self._start(aravis)
        except SourceError:
            self.close()
            raise

    def read(self, seconds: float) -> Frame | None:
        """The next complete image; None if none came within ``seconds``."""
        end = time.monotonic() + seconds
        while True:
            if self._stream is None or self._gone.is_set():
                raise SourceError(f"{self} does not answer any more")
            left = max(0.0, end - time.monotonic())
            buffer = self._stream.timeout_pop_buffer(int(min(left, LOOK) * 1e6))
            if buffer is not None and (frame := self._frame(buffer)) is not None:
                return frame
            if time.monotonic() >= end:
                return None

    def trigger(self) -> None:
        """Take one image now, if the camera waits for a software trigger; raises SourceError if it does not answer."""
        camera = self._camera
        if self._trigger == "software" and camera is not None and not self._gone.is_set():
            gone = self._gone
            try:
                with self._errors():
                    camera.software_trigger()
            except SourceError:
                gone.set()
                raise

    def flush(self) -> None:
        """Discard images that were taken but not read."""
        while self._stream is not None and (buffer := self._stream.try_pop_buffer()) is not None:
            self._count(buffer)
            self._stream.push_buffer(buffer)

    def close(self) -> None:
        """Stop and disconnect; takes some seconds if the camera does not answer."""
        camera, stream = self._camera, self._stream
        self._camera = self._stream = None
        if camera is None:
            return
        with suppress(camera_error()):
            if stream is not None and not self._gone.is_set():
                camera.stop_acquisition()
        if self._handler is not None:
            camera.get_device().disconnect(self._handler)
            self._handler = None

    @property
    def lost(self) -> int:
        """Images that the camera or the network lost since the source was created."""
        return self._counter.lost

    def __str__(self) -> str:
        return f"camera '{self.name}' ({self._id or 'first found'})"

    def _configure(self, aravis: Any) -> None:
        camera, device = self._camera, self._camera.get_device()
        if camera.is_gv_device() and not device.is_controller():
            raise SourceError(f"{self} is used by another program; close that program")
        for feature, value in self._features.items():
            _set_feature(camera, feature, value)
        camera.set_acquisition_mode(aravis.AcquisitionMode.CONTINUOUS)
        self._format = self._choose_format(camera)
        if self._frame_rate is not None:  # before the trigger, which setting a frame rate switches off
            self._check_bounds("frame_rate", self._frame_rate, camera.get_frame_rate_bounds())
            camera.set_frame_rate(self._frame_rate)
        if self._exposure_us is not None:
            if camera.is_exposure_auto_available():
                camera.set_exposure_time_auto(aravis.Auto.OFF)
            self._check_bounds("exposure_us", self._exposure_us, camera.get_exposure_time_bounds())
            camera.set_exposure_time(self._exposure_us)
        if self._gain is not None:
            if camera.is_gain_auto_available():
                camera.set_gain_auto(aravis.Auto.OFF)
            self._check_bounds("gain", self._gain, camera.get_gain_bounds())
            camera.set_gain(self._gain)
        if camera.is_gv_device():
            if self._packet_size is not None:
                camera.gv_set_packet_size(self._packet_size)
            if self._packet_delay_ns is not None:
                camera.gv_set_packet_delay(self._packet_delay_ns)
        self._set_trigger(camera)

    def _choose_format(self, camera: Any) -> str:
        """Set the requested pixel format, or check the present one; returns its name."""
        offered = list(camera.dup_available_pixel_formats_as_strings())
        if self._pixel_format is None:
            chosen = str(camera.get_pixel_format_as_string())
        else:
            wanted = present_name(self._pixel_format)
            chosen = next((name for name in offered if present_name(name) == wanted), self._pixel_format)
        if present_name(chosen) not in FORMATS or chosen not in offered:
            usable = [name for name in offered if present_name(name) in FORMATS]
            raise SourceError(
                f"{self} cannot send the pixel format {chosen} in a form that can be converted; it offers "
                f"{', '.join(offered)}; set `pixel_format` to {' or '.join(usable) or 'none of these: none is usable'}"
            )
        camera.set_pixel_format_from_string(chosen)
        return chosen

    def _set_trigger(self, camera: Any) -> None:
        if self._trigger == "none":
            camera.clear_triggers()
            return
        source = "Software" if self._trigger == "software" else self._trigger_line
        offered = list(camera.dup_available_trigger_sources())
        if source not in offered:
            setting = "trigger" if self._trigger == "software" else "trigger_line"
            raise SourceError(f"{self} has no trigger source {source}; set `{setting}`: it has {', '.join(offered)}")
        camera.set_trigger(source)

    def _start(self, aravis: Any) -> None:
        camera = self._camera
        self._stream = camera.create_stream(None, None)
        if self._stream is None:
            raise SourceError(f"{self} has no image stream; check that nothing else uses it")
        if camera.is_gv_device():
            self._stream.set_property("socket-buffer", aravis.GvStreamSocketBuffer.AUTO)
        payload = camera.get_payload()
        for _ in range(self._buffers):
            self._stream.push_buffer(aravis.Buffer.new_allocate(payload))
        gone = self._gone  # without a reference to this object, which would keep the camera open
        self._handler = camera.get_device().connect("control-lost", lambda *_: gone.set())
        camera.start_acquisition()

    def _frame(self, buffer: Any) -> Frame | None:
        """The image in a buffer, which is given back; None if it is incomplete."""
        number = self._count(buffer)
        arrived = by_monotonic(buffer.get_system_timestamp() / 1e9)
        camera_time = buffer.get_timestamp() / 1e9
        if number is None:
            self._stream.push_buffer(buffer)
            return None
        data: bytes = buffer.get_image_data()
        width, height = buffer.get_image_width(), buffer.get_image_height()
        padding = buffer.get_image_padding()[0]
        self._stream.push_buffer(buffer)
        try:
            pixels = to_pixels(data, width, height, self._format, padding)
        except ValueError as error:
            raise SourceError(f"{self}: {error}") from None
        taken = self._clock.captured(camera_time, arrived) if camera_time > 0 else arrived
        return Frame(self.name, number, since_1970(taken), arrived, f"{self.name}-{number:06d}.png", pixels)

    def _count(self, buffer: Any) -> int | None:
        """The number of the image in a buffer; None if it is incomplete, which counts as lost."""
        status = buffer.get_status().value_nick
        if status in ("aborted", "cleared"):
            return None
        number = self._counter.count(buffer.get_frame_id())
        if status != "success":
            self._counter.lost += 1
            return None
        return number

    def _check_bounds(self, setting: str, value: float, bounds: Any) -> None:
        if not bounds.min <= value <= bounds.max:
            raise SourceError(f"{self} accepts `{setting}` from {bounds.min:g} to {bounds.max:g}; got {value:g}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of the camera as SourceError."""
        try:
            yield
        except camera_error() as error:
            raise SourceError(f"{self}: {error.message}") from None


def _set_feature(camera: Any, feature: str, value: Feature) -> None:
    if isinstance(value, bool):
        camera.set_boolean(feature, value)
    elif isinstance(value, int):
        camera.set_integer(feature, value)
    elif isinstance(value, float):
        camera.set_float(feature, value)
    else:
        camera.set_string(feature, value)


def _choice(setting: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"`{setting}` must be one of {', '.join(allowed)}; got '{value}'")
