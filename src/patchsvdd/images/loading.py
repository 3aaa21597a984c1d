"""Load good images for training, and decode new images ahead while earlier ones are inspected."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from patchsvdd.core.config import FEWEST_IMAGES, Config, is_large
from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.core.progress import OnStage, stage
from patchsvdd.images.duplicates import find_duplicates
from patchsvdd.images.image_set import (
    ImageBatch,
    ImageLike,
    ImageSet,
    LoadedImage,
    each_image,
    load_image,
    load_image_set,
)
from patchsvdd.images.mvtec_layout import find_good_images
from patchsvdd.images.sizing import with_chosen_size


def good_sources(images: ImageBatch) -> list[tuple[str, ImageLike]]:
    """(name, image) pairs of the good images in a folder, a category or arrays."""
    if isinstance(images, str | os.PathLike):
        return list(find_good_images(Path(images)).named())
    return list(each_image(images))


def load_good_images(
    images: ImageBatch, config: Config, on_stage: OnStage | None = None, leave_out: Collection[str] = ()
) -> ImageSet:
    """Decode and resize the good images of a folder, a category or arrays; broken files go to ``skipped``.

    Images with a name in ``leave_out`` are not read. Raises DatasetError for a name that no image has.
    """
    broken: tuple[ImageError, ...] = ()
    location = ""
    if isinstance(images, str | os.PathLike):
        location = f" in '{os.fspath(images)}'"
        good = find_good_images(Path(images))
        sources: list[tuple[str, ImageLike]] = list(good.named())
        broken = good.broken
    else:
        sources = list(each_image(images))
    sources = _without(sources, leave_out)
    if not sources:
        raise DatasetError(f"there is no image to learn from; give at least {_fewest(config)}")
    loaded = load_image_set(sources, config, stage(on_stage, "images"))
    if len(loaded) < config.fewest_images:
        raise DatasetError(
            f"training requires at least {_fewest(config)}, better 60 or more; "
            f"got {len(loaded)} usable of {len(sources)}{location}"
        )
    return replace(loaded, skipped=(*broken, *loaded.skipped), left_out=tuple(sorted(leave_out)))


def _without(sources: list[tuple[str, ImageLike]], leave_out: Collection[str]) -> list[tuple[str, ImageLike]]:
    """The images without those to leave out."""
    unknown = sorted(set(leave_out) - {name for name, _ in sources})
    if unknown:
        example = f"; names are relative to the folder of good images, such as '{sources[0][0]}'" if sources else ""
        raise DatasetError(f"`leave_out`: there is no good image named '{unknown[0]}'{example}")
    return [source for source in sources if source[0] not in leave_out]


def sized_for(images: ImageBatch, config: Config) -> Config:
    """The settings with a size for the good images of a folder, a category or arrays; unchanged if it is given."""
    return with_chosen_size(config, good_sources(images))[0] if config.auto_size else config


def load_training_images(
    images: ImageBatch, config: Config, on_stage: OnStage | None = None, leave_out: Collection[str] = ()
) -> tuple[ImageSet, Config]:
    """``load_distinct_images``, and the settings with the image size that was chosen if they leave it open."""
    if isinstance(images, Iterator):
        images = list(images)  # it is read twice
    sources = good_sources(images) if config.auto_size else []
    config, choice = with_chosen_size(config, [source for source in sources if source[0] not in leave_out])
    loaded = load_distinct_images(images, config, on_stage, leave_out)
    return (loaded if choice is None else replace(loaded, sizing=choice.to_json())), config


def load_distinct_images(
    images: ImageBatch, config: Config, on_stage: OnStage | None = None, leave_out: Collection[str] = ()
) -> ImageSet:
    """``load_good_images`` without near-duplicates: the first of each group is kept, ``copies`` lists the others.

    If a copy were used for training and its original for the threshold, the threshold would be invalid.
    """
    loaded = load_good_images(images, config, on_stage, leave_out)
    first = find_duplicates(loaded.pixels, stage(on_stage, "copies"))
    kept = [index for index, same in enumerate(first) if index == same]
    if len(kept) < config.fewest_images:
        alike = f"all {len(loaded)} images show the same"
        few = f"only {len(kept)} of the {len(loaded)} images differ, the others are copies of them"
        raise DatasetError(
            f"{alike if len(kept) == 1 else few}; training requires at least {_fewest(config, 'different good')}, "
            f"better 60"
        )
    copies = tuple((loaded.names[index], loaded.names[same]) for index, same in enumerate(first) if index != same)
    return replace(loaded.subset(kept), copies=copies)


def _fewest(config: Config, kind: str = "good") -> str:
    """The fewest images that training accepts, in words."""
    other = "" if config.aim == "few-alarms" else f" (`aim=few-alarms` accepts {FEWEST_IMAGES})"
    return f"{config.fewest_images} {kind} images{other}"


def load_batches(
    images: ImageBatch,
    config: Config,
    batch_size: int,
    on_error: Callable[[ImageError], None] | None,
    readers: int | None = None,
) -> Iterator[list[LoadedImage]]:
    """Yield decoded images in order, in batches of equal size; unusable images go to ``on_error`` or are raised.

    ``readers`` threads decode in parallel. Use more than the number of cores for remote storage.
    """
    readers = readers or min(4, os.cpu_count() or 1)
    batch: list[LoadedImage] = []
    for loaded in _load_ahead(each_image(images), config, max(2 * batch_size, readers), readers):
        if isinstance(loaded, ImageError):
            if on_error is None:
                raise loaded
            on_error(loaded)
            continue
        if batch and batch[0].pixels.shape != loaded.pixels.shape:
            yield batch
            batch = []
        batch.append(loaded)
        if len(batch) == batch_size or is_large(*loaded.pixels.shape[:2]):
            yield batch
            batch = []
    if batch:
        yield batch


def _load_ahead(
    images: Iterable[tuple[str, ImageLike]], config: Config, ahead: int, readers: int
) -> Iterator[LoadedImage | ImageError]:
    """Yield images in order, decoding up to ``ahead`` of them in advance; large images are not decoded in advance."""

    def load(name: str, image: ImageLike) -> LoadedImage | ImageError:
        try:
            return load_image(image, config, name)
        except ImageError as error:
            return error

    waiting: deque[Future[LoadedImage | ImageError]] = deque()
    room = 0  # until the size of the first image is known
    with ThreadPoolExecutor(max_workers=readers) as pool:
        for name, image in images:
            while len(waiting) > room:
                loaded = waiting.popleft().result()
                if isinstance(loaded, LoadedImage):
                    room = 0 if is_large(*loaded.pixels.shape[:2]) else ahead
                yield loaded
                del loaded  # do not keep a large image alive while the next is loaded
            waiting.append(pool.submit(load, name, image))
        while waiting:
            yield waiting.popleft().result()
