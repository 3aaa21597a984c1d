"""Cameras without hardware: Aravis' GigE Vision camera, and an RTSP server of GStreamer."""

from __future__ import annotations

import fcntl
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from support.waiting import wait_until

FAKE_CAMERA = "arv-fake-gv-camera-0.8"
ADDRESS = "127.0.0.1"
CONTROL_PORT = 3956
"""Of every GigE Vision camera, so that only one can run on an address."""
DISCOVERY = bytes.fromhex("4201000200000001")
"""The packet that asks a GigE Vision camera who it is."""
LOCK = Path(tempfile.gettempdir()) / "patchsvdd-fake-camera.lock"

Codec = Literal["h264", "mjpeg"]


def fake_camera_missing() -> str | None:
    """The reason why the fake camera cannot be used, or None if it can."""
    if shutil.which(FAKE_CAMERA) is None:
        return "aravis-tools is not installed"
    return _typelib_missing("Aravis", "0.8")


def rtsp_server_missing() -> str | None:
    """The reason why the RTSP server cannot be used, or None if it can."""
    return _typelib_missing("GstRtspServer", "1.0")


@cache
def _typelib_missing(namespace: str, version: str) -> str | None:
    try:
        import gi

        gi.require_version(namespace, version)
    except (ImportError, ValueError) as error:
        return f"{namespace} cannot be used from Python ({error})"
    return None


class Process:
    """A program that can be paused, killed and started again."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.process: subprocess.Popen[str] | None = None

    def pause(self) -> None:
        """Stop the program without ending it: it answers nothing, and its connections stay open."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused program go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the program at once, as a power cut does."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _launch(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        return self.process


class FakeCamera(Process):
    """A GigE Vision camera with 512 x 512 pixels on 127.0.0.1."""

    address = ADDRESS

    def __init__(self, serial: str, lost_per_thousand: int) -> None:
        super().__init__([FAKE_CAMERA, "-i", ADDRESS, "-s", serial, "-r", str(lost_per_thousand)])

    def start(self) -> None:
        """Start the camera, or switch it on again after ``kill``; returns when it answers."""
        self._launch()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.settimeout(0.05)
            probe.bind((ADDRESS, 0))
            wait_until(lambda: self._answers(probe), 20)

    def _answers(self, probe: socket.socket) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{FAKE_CAMERA} ended: is another camera on {ADDRESS}?"
        try:
            probe.sendto(DISCOVERY, (ADDRESS, CONTROL_PORT))
            return bool(probe.recv(1024))
        except OSError:
            return False


@contextmanager
def fake_camera(serial: str = "GV01", *, lost_per_thousand: int = 0) -> Iterator[FakeCamera]:
    """A running fake camera. One runs at a time on a machine: another process that wants one waits.

    ``lost_per_thousand``: network packets that it does not send.
    """
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        camera = FakeCamera(serial, lost_per_thousand)
        try:
            camera.start()
            yield camera
        finally:
            camera.kill()


def fake_image(number: int, height: int = 512, width: int = 512) -> NDArray[np.uint8]:
    """The grey image that the fake camera draws with a frame number, at its own exposure and gain."""
    rows, columns = np.mgrid[:height, :width]
    return np.asarray((rows + columns + number) % 255, np.uint8)


class RtspServer(Process):
    """An RTSP server on 127.0.0.1 with the stream ``/test``: a white ball that moves on black."""

    def __init__(self, codec: Codec, rate: int, width: int, height: int) -> None:
        script = Path(__file__).with_name("rtsp_server.py")
        super().__init__([sys.executable, str(script), codec, str(rate), str(width), str(height)])
        self.port = 0

    @property
    def url(self) -> str:
        """The address of the stream."""
        return f"rtsp://{ADDRESS}:{self.port}/test"

    def start(self) -> None:
        """Start the server, again on the same port after ``kill``; returns when it listens."""
        self.command = [*self.command[:6], str(self.port)]
        process = self._launch()
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the RTSP server did not start"
        self.port = int(line)


@contextmanager
def rtsp_server(codec: Codec = "h264", *, rate: int = 25, width: int = 160, height: int = 120) -> Iterator[RtspServer]:
    """A running RTSP server."""
    server = RtspServer(codec, rate, width, height)
    try:
        server.start()
        yield server
    finally:
        server.kill()
