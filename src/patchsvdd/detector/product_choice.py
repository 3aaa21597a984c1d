"""Which product is in an image: the one whose good images it resembles, or none of the known ones.

The distance of an image from a product is that from the most similar one of some of its good images, or, if larger,
that by how those vary (``product_images``). The other good images of the product show how large that distance is when
the product is the right one, which sets a limit with a guaranteed rate. The limit is raised towards the distances of
the other products, because the guarantee holds for good images only: a defective part is still the product.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.core.files import atomic_write
from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.product_images import ProductDistance, ProductImages, describe_new, unit_of
from patchsvdd.images.image_set import ImageBatch, ImageLike, decoded, digest_of_pixels, load_image
from patchsvdd.images.loading import load_batches
from patchsvdd.scoring.conformal import guarantee_for, p_values, rank_for

FORMAT = "patchsvdd products"
FORMAT_VERSION = 2
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
    distances: Mapping[str, float]
    """Product → distance of the image from it; infinite if its model cannot inspect the image."""
    limits: Mapping[str, float]
    """Product → distance above which an image does not show it."""
    p_values: Mapping[str, float]
    """Product → probability that a good image of it is at least as far away from it."""


class ProductChooser:
    """Finds out which of several products an image shows.

    ```python
    chooser = ProductChooser({"bottle": PatchSVDD.load("models/bottle"), "screw": PatchSVDD.load("models/screw")})
    chooser.calibrate(false_alarm_rate=0.01)
    chooser.choose("new.png").product  # "bottle", "screw" or None
    ```
    """

    def __init__(
        self,
        models: Mapping[str, PatchSVDD | ProductImages],
        calibrations: Mapping[str, ProductCalibration] | None = None,
    ) -> None:
        """``models``: product → its model, or its pictures. Raise ModelError if ``calibrations`` are of others."""
        if not models:
            raise ConfigError("choosing a product requires at least one; name a model for each product")
        self.images = {
            product: model if isinstance(model, ProductImages) else ProductImages.of(product, model)
            for product, model in models.items()
        }
        self.calibrations = dict(calibrations or {})
        if calibrations is not None:
            require_identities(calibrations, {product: images.identity for product, images in self.images.items()})
        unit = unit_of([images.compared for images in self.images.values()])
        self._distances = {product: ProductDistance(images.compared, unit) for product, images in self.images.items()}

    def calibrate(
        self,
        good: Mapping[str, ImageBatch] | None = None,
        false_alarm_rate: float = 0.01,
        *,
        on_error: OnError | None = None,
        on_progress: OnProgress | None = None,
    ) -> dict[str, ProductCalibration]:
        """Learn how far good images of each product are from it.

        ``good``: product → good images that its model has not seen. Without them, or for a product that is not named,
        pictures in its model are used that nothing is compared with. An unusable image raises ImageError, or is passed
        to ``on_error`` and left out.
        """
        if not 0 < false_alarm_rate < 1:
            raise ConfigError(f"`false_alarm_rate` is a share between 0 and 1; got {false_alarm_rate:g}")
        given = dict(good or {})
        unknown = sorted(given.keys() - self.images.keys())
        if unknown:
            raise ConfigError(f"there is no product '{unknown[0]}'; there are {', '.join(self.images)}")
        found = {}
        for done, (product, images) in enumerate(self.images.items(), start=1):
            described = self._given(product, given[product], on_error) if product in given else images.others
            distances = tuple(self._distance(product, one) for one in described)
            nearest = self._nearest_other(product)
            found[product] = ProductCalibration(images.identity, false_alarm_rate, distances, nearest)
            if on_progress is not None:
                on_progress(done, len(self.images))
        self.calibrations = found
        return found

    def choose(self, image: ImageLike) -> ProductChoice:
        """Return the product in an image: of those within whose limit it is, the nearest one.

        None if it is above all limits: for a good image of a product with probability at most that product's ``rate``.
        """
        if not self.calibrations:
            raise ConfigError("the products are not calibrated yet; call `calibrate` first")
        pixels = decoded(image, _name(image))
        distances = {}
        described: dict[str, Tensor] = {}
        for product, images in self.images.items():
            try:
                seen = load_image(pixels, images.config).tensor
            except ImageError:  # of another shape than the product's region of interest
                distances[product] = math.inf
                continue
            digest = digest_of_pixels(seen)
            if digest not in described:  # most models see an image in the same size
                described[digest] = describe_new(seen)
            distances[product] = self._distance(product, described[digest])
        limits = {product: one.limit for product, one in self.calibrations.items()}
        p_values = {product: one.p_value(distances[product]) for product, one in self.calibrations.items()}
        return ProductChoice(nearest_product(distances, limits), distances, limits, p_values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibrations and the identities of the models to a JSON file, atomically."""
        if not self.calibrations:
            raise ConfigError("the products are not calibrated yet; call `calibrate` first")
        products = {product: asdict(one) for product, one in self.calibrations.items()}
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, "products": products}
        with atomic_write(Path(path)) as file:
            file.write(json.dumps({**content, "checksum": _checksum(content)}, indent=1).encode("ascii"))

    @classmethod
    def load(cls, path: str | os.PathLike[str], models: Mapping[str, PatchSVDD | ProductImages]) -> ProductChooser:
        """Restore a chooser for these models; raise ModelError if the file is damaged or a model was changed since."""
        return cls(models, read_calibrations(Path(path)))

    def _distance(self, product: str, described: Tensor) -> float:
        return self._distances[product](described)

    def _nearest_other(self, product: str) -> float | None:
        """Typical distance of the other product that is nearest."""
        typical = [
            statistics.median(self._distance(product, one) for one in images.compared[:OTHERS])
            for other, images in self.images.items()
            if other != product
        ]
        return min(typical, default=None)

    def _given(self, product: str, good: ImageBatch, on_error: OnError | None) -> list[Tensor]:
        images = self.images[product]
        described = []
        skip = None if on_error is None else lambda error: on_error(product, error)
        for batch in load_batches(good, images.config, 1, skip):
            if digest_of_pixels(batch[0].tensor) not in images.digests:
                described.append(describe_new(batch[0].tensor))
        if not described:
            raise DatasetError(
                f"there is no good image of '{product}' that its model has not seen; give others, or leave the product "
                f"out of `good` to use the pictures in its model"
            )
        return described


def nearest_product(distances: Mapping[str, float], limits: Mapping[str, float]) -> str | None:
    """Return the product with the lowest distance of those within their limit; None if there is none."""
    possible = [product for product, far in distances.items() if far <= limits[product]]
    return min(possible, key=lambda product: distances[product], default=None)


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
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        remedy = "update patchsvdd" if isinstance(version, int) and version > FORMAT_VERSION else AGAIN
        raise ModelError(f"'{path}' has format version {version}, not {FORMAT_VERSION}; {remedy}")
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
