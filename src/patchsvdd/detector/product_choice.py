"""Which product is in an image: the one whose good images it resembles, or none of the known ones.

An image is compared with each model's memory at the scale of the largest patches. Its distance from a product is a
quantile of the distances of its patches, so that a defect, which covers few patches, hardly changes it. The good images
of a product, each compared with the others, show how large that distance is when the product is the right one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchsvdd.core.device import reproducible
from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.core.files import atomic_write
from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.encoder.patch_grid import PatchGrid, trim
from patchsvdd.encoder.untrained import MixedEncoder
from patchsvdd.images.image_set import ImageBatch, ImageLike, decoded, digest_of_pixels, load_image
from patchsvdd.images.loading import load_batches
from patchsvdd.memory.bank import ScaleMemory
from patchsvdd.scoring.conformal import guarantee_for, p_values, rank_for

FORMAT = "patchsvdd products"
FORMAT_VERSION = 1
QUANTILE = 0.5
"""The distance of an image is this quantile of the distances of its patches."""
COMPARED = 4096
"""Patches of a memory that an image is compared with."""
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

    @property
    def limit(self) -> float:
        """An image that is further away does not show this product."""
        return sorted(self.distances)[rank_for(len(self.distances), self.false_alarm_rate) - 1]

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
        self._references = {product: _Reference.of(product, model) for product, model in models.items()}
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
        named, the patches in its memory are used, those of each image compared with those of the others. An unusable
        image raises ImageError, or is passed to ``on_error`` and left out.
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
                distances = reference.without_themselves()
            identity = self.models[product].identity
            if identity is None:
                raise ModelError(f"the model of '{product}' is not saved; save it first: model.save(folder)")
            found[product] = ProductCalibration(identity, false_alarm_rate, tuple(distances))
            if on_progress is not None:
                on_progress(done, len(self.models))
        self.calibrations = found
        return found

    def choose(self, image: ImageLike) -> ProductChoice:
        """Return the product in an image: of those it may show, the one with the highest p-value.

        Equal p-values are decided by the distance in multiples of the product's limit. A good image of a product gets
        None with probability at most that product's ``rate``.
        """
        if not self.calibrations:
            raise ConfigError("the products are not calibrated yet; call `calibrate` first")
        pixels = decoded(image, _name(image))
        values, relative = {}, {}
        for product, calibration in self.calibrations.items():
            distance = self._distance(product, pixels)
            values[product] = calibration.p_value(distance) if np.isfinite(distance) else 0.0
            relative[product] = distance / calibration.limit if calibration.limit > 0 else float("inf")
        return ProductChoice(most_likely(values, relative), values, relative)

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


def most_likely(p_values: Mapping[str, float], distances: Mapping[str, float]) -> str | None:
    """Return the product with the highest p-value of those within their limit; None if there is none.

    ``distances`` are in multiples of the products' limits, and the lower one decides between equal p-values.
    """
    possible = [product for product, distance in distances.items() if distance <= 1]
    return min(possible, key=lambda product: (-p_values[product], distances[product]), default=None)


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


@dataclass(frozen=True)
class _Reference:
    """The part of a model's memory that images are compared with."""

    product: str
    model: PatchSVDD = field(repr=False)
    size: int
    """Patch size in pixels: the largest one."""
    sample: ScaleMemory = field(repr=False)

    @classmethod
    def of(cls, product: str, model: PatchSVDD) -> _Reference:
        size = max(model.memory.scales)
        memory = model.memory.scales[size]
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(memory.embeddings), generator=generator)[:COMPARED].sort().values
        return cls(product, model, size, memory.of_rows(chosen))

    def distance(self, pixels: Tensor) -> float:
        """The distance of an image from the product, given its pixels (3, H, W) in 0 … 255."""
        embedder = self.model.embedder
        with torch.inference_mode(), reproducible():
            images = embedder.normalization(pixels[None].to(self.model.device))
            grids: list[PatchGrid] = [
                grid
                for grid in embedder.grids((images.shape[2], images.shape[3]))
                if grid.scale.patch_size == self.size
            ]
            if grids[0].kept is not None:
                grids, down, across = trim(grids)
                images = images[:, :, down, across].contiguous()
            return self._of(embedder.encoder.embed(images, grids)[0][0])

    def without_themselves(self) -> list[float]:
        """The distance of each image in the memory from the others."""
        config, memory = self.model.config, self.model.memory.scales[self.size]
        if not config.memory_size.is_whole:
            raise ConfigError(
                f"the memory of '{self.product}' is a coreset, which lacks most patches of its images; give good "
                f"images of the product as `images`"
            )
        column = memory.origins[:, 0].cpu()
        numbers = sorted(set(column.tolist()))
        if not _is_untrained(self.model, self.size):
            held_out = set(self.model.provenance["data"]["held_out"])
            numbers = [number for number in numbers if number in held_out]
        if len(numbers) < 2:
            raise ConfigError(
                f"the encoder of '{self.product}' was trained on all its images; give good images of the product that "
                f"it has not seen as `images`"
            )
        with torch.inference_mode(), reproducible():
            return [self._of(_rows_of(memory, column, number), number) for number in numbers]

    def _of(self, patches: Tensor, without_image: int | None = None) -> float:
        return float(self.sample.nearest(patches, without_image)[0].quantile(QUANTILE))


def _rows_of(memory: ScaleMemory, column: Tensor, number: int) -> Tensor:
    return memory.embeddings[(column == number).to(memory.embeddings.device)]


def _is_untrained(model: PatchSVDD, size: int) -> bool:
    """Whether the embeddings of patches of this size come from an encoder that was not trained."""
    encoder = model.encoder
    return not encoder.trainable or (isinstance(encoder, MixedEncoder) and size != min(encoder.patch_sizes))


def _name(image: ImageLike) -> str:
    return os.fspath(image) if isinstance(image, str | os.PathLike) else "image"


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()
