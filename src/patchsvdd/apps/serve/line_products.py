"""Finds out which product of a line an image shows."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.apps.line.inspector import InspectionFailed
from patchsvdd.apps.line.line_file import LineSettings
from patchsvdd.apps.line.sources.source import Frame
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.service import Service
from patchsvdd.core.errors import ConfigError, ModelError, PatchSVDDError
from patchsvdd.detector.product_choice import ProductChooser


class LineProducts:
    """Compares an image of the first view with the models of all products, between inspections."""

    def __init__(self, settings: LineSettings, service: Service, file: Path) -> None:
        """Read the calibrated choice; raise ConfigError if it does not fit the served models."""
        self._seconds, self._service = settings.parts.timeout, service
        view = settings.views[0]
        names = {}
        for product, folders in settings.products.items():
            if view not in folders:
                raise ConfigError(f"the view '{view}' shows which product it is, and '{product}' has no model for it")
            names[product] = folders[view].resolve().name
        self._first = next(iter(names.values()))
        try:
            models = {product: service.models.named(name).detector for product, name in names.items()}
            self._chooser = ProductChooser.load(file, models)
        except (ModelError, Problem) as error:
            raise ConfigError(f"`choice.file`: {error}") from None

    def __call__(self, frame: Frame) -> str | None:
        """The product in an image; None if it is none of them. Raise InspectionFailed if it cannot be used."""
        model, end = self._service.models.named(self._first), time.monotonic() + self._seconds
        try:
            pixels = _pixels(frame)
            return self._service.queue.compute(model, lambda: self._chooser.choose(pixels), end).result().product
        except (PatchSVDDError, Problem, OSError) as error:
            raise InspectionFailed(f"{frame.name}: {error}") from None


def _pixels(frame: Frame) -> NDArray[np.uint8]:
    if frame.pixels is not None:
        return frame.pixels
    with Image.open(io.BytesIO(frame.data or b"")) as picture:
        return np.asarray(picture.convert("RGB"))
