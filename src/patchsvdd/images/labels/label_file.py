"""Shared by the formats: what was read from a file of labels, and what is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import parse_qs, unquote, urlsplit

from patchsvdd.core.errors import ConfigError, DatasetError
from patchsvdd.images.labels.shapes import LabelledImage, Size

Format = Literal["coco", "labelme", "label-studio", "masks"]
DRIVE = re.compile(r"^[A-Za-z]:")


@dataclass
class Labels:
    """Labels of images, and what could not be used."""

    images: list[LabelledImage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What was skipped, one line each."""
    formats: list[Format] = field(default_factory=list)
    """Formats of the files that were read, each once."""

    most_pixels: int | None = None
    """Pixels that all masks in the files may have together; None for any number."""

    def spend(self, size: Size | None, source: str) -> None:
        """Count a mask of (height, width); raise DatasetError if there are more pixels than allowed."""
        if self.most_pixels is None or size is None:
            return
        self.most_pixels -= size[0] * size[1]
        if self.most_pixels < 0:
            raise DatasetError(f"the masks in '{source}' have too many pixels together; import fewer images at a time")

    def add(self, image: LabelledImage, source: object) -> None:
        """Add an image; one whose name is already there is reported and skipped."""
        if image.name in self._names:
            self.problems.append(f"{source}: {image.name} is labelled twice; the first is used")
            return
        self._names.add(image.name)
        self.images.append(image)

    def __post_init__(self) -> None:
        self._names = {image.name for image in self.images}


def as_format(name: str) -> Format:
    """Return the format of that name, or raise ConfigError."""
    for known in get_args(Format):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"`to` must be {', '.join(get_args(Format)[:-1])} or {get_args(Format)[-1]}; got '{name}'")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise DatasetError if it has none."""
    try:
        return parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise DatasetError(f"'{path}' cannot be read ({error.strerror}); check the path") from None


def parse_json(data: bytes, source: str) -> Any:
    """Return the content of JSON text; raise DatasetError if there is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"'{source}' is not a JSON file ({error})") from None


def image_name(text: object) -> str:
    """Return the name of an image from a path, an address or an upload; raise ValueError if there is none."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError("it names no image")
    name = text.strip()
    if "://" in name or name.startswith("/data/"):
        address = urlsplit(name)
        local = parse_qs(address.query).get("d")  # Label Studio's local files: …/?d=folder/image.png
        name = local[0] if local else unquote(address.path)
    parts = [part for part in DRIVE.sub("", name.replace("\\", "/")).split("/") if part not in ("", ".", "..")]
    if not parts:
        raise ValueError("it names no image")
    return "/".join(parts)


def entries(data: Any, name: str, source: str) -> Sequence[Any]:
    """Return the list ``name`` of an object; raise DatasetError if it is something else."""
    found = data.get(name, [])
    if not isinstance(found, list):
        raise DatasetError(f"'{source}': \"{name}\" is not a list; export the labels again")
    return found
