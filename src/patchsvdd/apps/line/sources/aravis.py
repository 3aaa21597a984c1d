"""Aravis, the library for GenICam cameras, and the cameras that it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from patchsvdd.apps.line.sources.source import SourceError
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.extras import require

PURPOSE = "a GenICam camera"


@dataclass(frozen=True)
class CameraInfo:
    """A camera that answered."""

    id: str
    vendor: str
    model: str
    serial: str
    address: str
    """An IP address, or the USB path."""
    protocol: str
    """GigEVision or USB3Vision."""


def list_cameras() -> list[CameraInfo]:
    """Return the GenICam cameras that answer on USB and on every network of this machine; takes about a second."""
    aravis = load_aravis()
    aravis.update_device_list()
    return [
        CameraInfo(
            id=aravis.get_device_id(index),
            vendor=aravis.get_device_vendor(index) or "",
            model=aravis.get_device_model(index) or "",
            serial=aravis.get_device_serial_nbr(index) or "",
            address=aravis.get_device_address(index) or "",
            protocol=aravis.get_device_protocol(index) or "",
        )
        for index in range(aravis.get_n_devices())
    ]


def first_camera() -> str:
    """Return the identifier of the first camera that answers; raises SourceError if there is none."""
    cameras = list_cameras()
    if not cameras:
        raise SourceError("no GenICam camera answers; check its cable and power, or give its IP address as `camera`")
    return cameras[0].id


def load_aravis() -> Any:
    """Import and return Aravis; raises ConfigError with the command that installs it."""
    gi = require("gi", "genicam", PURPOSE)
    try:
        gi.require_version("Aravis", "0.8")
        return require("gi.repository.Aravis", "genicam", PURPOSE)
    except ValueError:
        raise ConfigError(
            "Aravis is not installed, which a GenICam camera needs; install it, on Debian: "
            "apt install gir1.2-aravis-0.8"
        ) from None


def camera_error() -> type[Any]:
    """Return the exception that Aravis raises."""
    error: type[Any] = require("gi.repository.GLib", "genicam", PURPOSE).Error
    return error
