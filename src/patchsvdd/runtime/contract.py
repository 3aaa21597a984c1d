"""The format of an exported detector: inputs and outputs, metadata, and the checksum of the file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from patchsvdd.core.errors import ModelError
from patchsvdd.core.onnx_writer import metadata_entry
from patchsvdd.core.placement import Fit, Placement, place
from patchsvdd.scoring.calibration import Calibration

IMAGES, THRESHOLD = "images", "threshold"
"""Inputs: (N, H, W, 3) uint8 RGB and () float32."""
MAP, SCORE, IS_ANOMALOUS = "map", "score", "is_anomalous"
"""Outputs: (N, H, W) float32, (N,) float32, (N,) bool."""
FORMAT = "patchsvdd export"
FORMAT_VERSION = 3
"""Since 2, the calibration holds an aim, and regions may be bounded above the threshold. Since 3, images may keep their
aspect ratio."""
READABLE = ("1", "2", "3")
"""Format versions that this software reads."""
CHECKSUM = "sha256"
"""The last metadata entry of an ONNX file: the hash of all bytes before it."""
XML, BIN, ABOUT = "model.xml", "model.bin", "about.json"
"""Members of the archive that holds an OpenVINO model."""
REMEDY = "export the model again"
UNRESIZED = "none"
"""Instead of a resize filter: images must already have the right size."""


@dataclass(frozen=True)
class About:
    """Metadata of an exported file."""

    identity: str
    """Identity of the model it was exported from."""
    image_size: tuple[int, int]
    """(height, width) of its input images."""
    resize: str
    """Filter for resizing images to that size; "none" if they must already have it."""
    fit: Fit
    """Whether images are stretched to that size, or keep their aspect ratio and are mirrored to fill it."""
    pixel_scale: float | None
    """letterbox: the common factor of all images; None for the largest that fits."""
    memory: str
    """The number of patches in the memory, in words."""
    search: str
    """How near patches are found: "exact", or "cells" if only the nearest cells of the memory are visited."""
    calibration: Calibration | None
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    versions: Mapping[str, str]
    """Versions of the software that wrote it."""

    def placement(self, original: tuple[int, int]) -> Placement:
        """Where an image of (height, width) lies on the input."""
        return place(original, self.image_size, self.fit, self.pixel_scale)

    @property
    def threshold(self) -> float:
        """The default threshold: scores above it are anomalous."""
        return self.calibration.threshold if self.calibration is not None else math.inf

    @property
    def miss_rate(self) -> float | None:
        """Estimated share of defects that the default threshold misses; None if it was not estimated."""
        return self.calibration.miss_rate if self.calibration is not None else None

    def to_metadata(self) -> dict[str, str]:
        """Metadata entries for the file."""
        calibration = self.calibration
        height, width = self.image_size
        return {
            "format": FORMAT,
            "format_version": str(FORMAT_VERSION),
            "identity": self.identity,
            "inputs": f"{IMAGES}: uint8 (N, {height}, {width}, 3), RGB; {THRESHOLD}: float32 ()",
            "outputs": f"{MAP}: float32 (N, {height}, {width}); {SCORE}: float32 (N,); {IS_ANOMALOUS}: bool (N,)",
            "height": str(height),
            "width": str(width),
            "resize": self.resize,
            "fit": self.fit,
            "pixel_scale": "" if self.pixel_scale is None else repr(self.pixel_scale),
            "threshold": repr(self.threshold),
            "outline": "" if calibration is None or calibration.outline is None else repr(calibration.outline),
            "outline_share": "" if calibration is None else repr(calibration.region_share),
            "aim": "" if calibration is None else calibration.aim,
            "false_alarm_rate": "" if calibration is None else repr(calibration.false_alarm_rate),
            "estimated_miss_rate": "" if self.miss_rate is None else repr(self.miss_rate),
            "calibration": json.dumps(None if calibration is None else calibration.to_json()),
            "memory": self.memory,
            "search": self.search,
            "config": json.dumps(self.config),
            "provenance": json.dumps(self.provenance),
            "versions": json.dumps(self.versions),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], name: str) -> About:
        """Read what ``to_metadata`` wrote; raise ModelError if the metadata is not valid."""
        if metadata.get("format") != FORMAT:
            raise ModelError(f"'{name}' is not an exported detector; make one with `patchsvdd export`")
        version = metadata.get("format_version", "")
        if version not in READABLE:
            raise ModelError(
                f"'{name}' has format version {version}; this software reads {', '.join(READABLE)}; update it"
            )
        try:
            calibration = json.loads(metadata["calibration"])
            return cls(
                identity=metadata["identity"],
                image_size=(int(metadata["height"]), int(metadata["width"])),
                resize=metadata["resize"],
                fit="letterbox" if metadata.get("fit") == "letterbox" else "stretch",  # not in version 2
                pixel_scale=float(metadata["pixel_scale"]) if metadata.get("pixel_scale") else None,
                memory=metadata["memory"],
                search=metadata.get("search", "exact"),  # earlier files have no other
                calibration=None if calibration is None else Calibration.from_json(calibration),
                config=json.loads(metadata["config"]),
                provenance=json.loads(metadata["provenance"]),
                versions=json.loads(metadata["versions"]),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise ModelError(f"the metadata of '{name}' is damaged ({error}); {REMEDY}") from None


def checksum_entry(pieces: Iterable[bytes | memoryview]) -> bytes:
    """The last bytes of an ONNX file: a metadata entry with the checksum of all bytes before it."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return metadata_entry(CHECKSUM, digest.hexdigest())


def check_bytes(data: bytes, name: str) -> None:
    """Raise ModelError if an ONNX file was truncated or modified."""
    length = len(metadata_entry(CHECKSUM, "0" * 64))
    body = memoryview(data)[:-length]
    if checksum_entry([body]) != data[-length:]:
        raise ModelError(f"'{name}' is truncated, modified or not an exported detector (wrong checksum); {REMEDY}")
