"""Which product is in an image: the one whose good images it resembles, or none of the known ones.

An image is compared with some good images of each product, by patches at the scale of the largest ones: how far each of
its patches is from the nearest one of the good image, and the reverse, on average. The distance from a product is that
from the most similar good image. A defect covers few patches, so it changes the distance little.

Other good images of the product show how large its distance is when the product is the right one, which sets a limit
with a guaranteed rate. The limit is raised towards the distances of the other products, because the guarantee holds for
good images only: a defective part is still the product.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.core.files import atomic_write
from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.product_images import ProductImages
from patchsvdd.images.image_set import ImageBatch, ImageLike, decoded, digest_of_pixels, load_image
from patchsvdd.images.loading import load_batches
from patchsvdd.scoring.conformal import guarantee_for, p_values, rank_for

FORMAT = "patchsvdd products"
FORMAT_VERSION = 1
OTHERS = 8
"""Good images of each other product that show how far other products are."""
AGAIN = "calibrate the choice again"

OnError = Callable[[str, ImageError], None]
"""Called with a product and what is wrong with an image of it."""


@dataclass(frozen=True)
class ProductCalibration:
    """How far good images of a product are from it."""

    identity: str
    """Of the product's model."""
    false_alarm_rate: float
    """The requested rate of good images of the product that are not recognised."""
    distances: tuple[float, ...]
    """Of good images."""
    nearest_other: float | None = None
    """Typical distance of the other product that is nearest to this one; None if it is not known."""

    @property
    def guaranteed_limit(self) -> float:
        """The lowest limit with the requested rate."""
        return sorted(self.distances)[rank_for(len(self.distances), self.false_alarm_rate) - 1]

    @property
    def limit(self) -> float:
        """An image that is further away does not show this product: halfway to the nearest other one, by ratio."""
        lowest = self.guaranteed_limit
        return lowest if self.nearest_other is None else max(lowest, math.sqrt(lowest * self.nearest_other))

    @property
    def rate(self) -> float:
        """Upper bound of the probability that the next good image of the product is not recognised."""
        return guarantee_for(len(self.distances), self.false_alarm_rate).rate

    def p_value(self, distance: float) -> float:
        """Probability that a good image of the product is at least this far away."""
        return float(p_values([distance], self.distances)[0])


@dataclass(frozen=True)
class ProductChoice:
    """The product in an image."""

    product: str | None
    """None if the image shows none of the products."""
    p_values: Mapping[str, float]
    """Product → probability that a good image of it is at least as far away from it."""
    distances: Mapping[str, float]
    """Product → distance in multiples of its limit; above 1 means that the image does not show it."""


class ProductChooser:
    """Finds out which of several products an image shows.

    ```python
    chooser = ProductChooser({"bottle": PatchSVDD.load("models/bottle"), "screw": PatchSVDD.load("models/screw")})
    chooser.calibrate(false_alarm_rate=0.01)
    chooser.choose("new.png").product  # "bottle", "screw" or None
    ```
    """

    def __init__(
        self, models: Mapping[str, PatchSVDD], calibrations: Mapping[str, ProductCalibration] | None = None
    ) -> None:
        """``models``: product → its model, saved. Raise ModelError if the calibrations were made with others."""
        if not models:
            raise ConfigError("choosing a product requires at least one; name a model for each product")
        self.models = dict(models)
        self._references = {product: ProductImages.of(product, model) for product, model in models.items()}
        self.calibrations = dict(calibrations or {})
        if calibrations is not None:
            require_identities(calibrations, {product: model.identity for product, model in models.items()})

    def calibrate(
        self,
        images: Mapping[str, ImageBatch] | None = None,
        false_alarm_rate: float = 0.01,
        *,
        on_error: OnError | None = None,
        on_progress: OnProgress | None = None,
    ) -> dict[str, ProductCalibration]:
        """Learn how far good images of each product are from it.

        ``images``: product → good images that its model has not seen. Without them, or for a product that is not
        named, images in its memory are used that nothing was trained on and nothing is compared with. An unusable image
        raises ImageError, or is passed to ``on_error`` and left out.
        """
        if not 0 < false_alarm_rate < 1:
            raise ConfigError(f"`false_alarm_rate` is a share between 0 and 1; got {false_alarm_rate:g}")
        given = dict(images or {})
        unknown = sorted(given.keys() - self.models.keys())
        if unknown:
            raise ConfigError(f"there is no product '{unknown[0]}'; there are {', '.join(self.models)}")
        found = {}
        for done, (product, reference) in enumerate(self._references.items(), start=1):
            if product in given:
                distances = self._of_images(product, given[product], on_error)
            else:
                distances = reference.of_others_in_memory()
            identity = self.models[product].identity
            if identity is None:
                raise ModelError(f"the model of '{product}' is not saved; save it first: model.save(folder)")
            nearest = self._nearest_other(product)
            found[product] = ProductCalibration(identity, false_alarm_rate, tuple(distances), nearest)
            if on_progress is not None:
                on_progress(done, len(self.models))
        self.calibrations = found
        return found

    def choose(self, image: ImageLike) -> ProductChoice:
        """Return the product that an image is nearest to, in multiples of the products' limits.

        None if it is above all limits: for a good image of a product with probability at most that product's ``rate``.
        """
        if not self.calibrations:
            raise ConfigError("the products are not calibrated yet; call `calibrate` first")
        pixels = decoded(image, _name(image))
        values, relative = {}, {}
        for product, calibration in self.calibrations.items():
            distance = self._distance(product, pixels)
            values[product] = calibration.p_value(distance) if np.isfinite(distance) else 0.0
            relative[product] = distance / calibration.limit if calibration.limit > 0 else float("inf")
        return ProductChoice(nearest_product(relative), values, relative)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibrations and the identities of the models to a JSON file, atomically."""
        if not self.calibrations:
            raise ConfigError("the products are not calibrated yet; call `calibrate` first")
        products = {product: asdict(one) for product, one in self.calibrations.items()}
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, "products": products}
        with atomic_write(Path(path)) as file:
            file.write(json.dumps({**content, "checksum": _checksum(content)}, indent=1).encode("ascii"))

    @classmethod
    def load(cls, path: str | os.PathLike[str], models: Mapping[str, PatchSVDD]) -> ProductChooser:
        """Restore a chooser for these models; raise ModelError if the file is damaged or a model was changed since."""
        return cls(models, read_calibrations(Path(path)))

    def _distance(self, product: str, pixels: Any) -> float:
        try:
            loaded = load_image(pixels, self.models[product].config)
        except ImageError:  # of another shape than the product's region of interest
            return float("inf")
        return self._references[product].distance(loaded.tensor)

    def _nearest_other(self, product: str) -> float | None:
        """Typical distance of the nearest other product, by the pictures in its model."""
        typical = []
        for other, model in self.models.items():
            if other != product and model.pictures is not None:
                shown = range(0, len(model.pictures), max(1, len(model.pictures) // OTHERS))
                distances = [self._distance(product, model.pictures[number]) for number in shown]
                typical.append(float(np.median(distances)))
        nearest = min(typical, default=math.inf)
        return nearest if math.isfinite(nearest) else None

    def _of_images(self, product: str, images: ImageBatch, on_error: OnError | None) -> list[float]:
        model, reference = self.models[product], self._references[product]
        known = set(model.provenance.get("data", {}).get("digests", ()))
        distances = []
        skip = None if on_error is None else lambda error: on_error(product, error)
        for batch in load_batches(images, model.config, 1, skip):
            if digest_of_pixels(batch[0].tensor) not in known:
                distances.append(reference.distance(batch[0].tensor))
        if not distances:
            raise DatasetError(
                f"there is no good image of '{product}' that its model has not seen; give others, or leave the product "
                f"out of `images` to use those in its memory"
            )
        return distances


def nearest_product(distances: Mapping[str, float]) -> str | None:
    """Return the product with the lowest distance, in multiples of its limit; None if all are above 1."""
    nearest = min(distances, key=lambda product: distances[product], default=None)
    return None if nearest is None or distances[nearest] > 1 else nearest


def require_identities(calibrations: Mapping[str, ProductCalibration], identities: Mapping[str, str | None]) -> None:
    """Raise ModelError if a product has another model than its calibration was made with, or there is none."""
    for product in calibrations.keys() | identities.keys():
        if product not in calibrations or product not in identities:
            lacking = "calibration" if product in identities else "model"
            raise ModelError(f"there is no {lacking} for the product '{product}'; {AGAIN}")
        before, now = calibrations[product].identity, identities[product]
        if before != now:
            raise ModelError(
                f"the model of '{product}' was changed since the choice of products was calibrated (it was {before} "
                f"and is {now}); {AGAIN}"
            )


def read_calibrations(path: Path) -> dict[str, ProductCalibration]:
    """Return the calibration of each product in a file; raise ModelError if it is missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"'{path}' cannot be read ({error}); restore it from a copy, or {AGAIN}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelError(f"'{path}' is no choice of products; check the path")
    if content.get("format_version") != FORMAT_VERSION:
        raise ModelError(
            f"'{path}' has format version {content.get('format_version')}, not {FORMAT_VERSION}; update patchsvdd"
        )
    if content.pop("checksum", None) != _checksum(content):
        raise ModelError(f"'{path}' was altered: its checksum does not match; restore it from a copy, or {AGAIN}")
    return {
        product: ProductCalibration(**{**one, "distances": tuple(one["distances"])})
        for product, one in content["products"].items()
    }


def _name(image: ImageLike) -> str:
    return os.fspath(image) if isinstance(image, str | os.PathLike) else "image"


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()
