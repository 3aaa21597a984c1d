"""Read labels from a file or folder whose format is recognised, and write them in any format."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from patchsvdd.core.errors import DatasetError, ImageError, OutputError
from patchsvdd.core.files import atomic_write
from patchsvdd.core.progress import OnProgress
from patchsvdd.images.image_files import files_below, find_images
from patchsvdd.images.labels.coco import is_coco, read_coco, write_coco
from patchsvdd.images.labels.label_file import Format, Labels, read_json
from patchsvdd.images.labels.label_studio import is_label_studio, read_label_studio, write_label_studio
from patchsvdd.images.labels.labelme import is_labelme, read_labelme, write_labelme
from patchsvdd.images.labels.mask_folder import is_mask_folder, read_mask_folder, size_of, write_mask_folder
from patchsvdd.images.labels.names import ImageNames
from patchsvdd.images.labels.shapes import LabelledImage

EXPECTED = "COCO instances, LabelMe files, Label Studio's JSON export, or a folder with test and ground_truth"


def read_labels(path: Path, on_progress: OnProgress | None = None) -> Labels:
    """Read a file or a folder of labels; raise DatasetError if there are none. Broken entries are in ``problems``."""
    labels = Labels()
    if path.is_dir():
        if is_mask_folder(path):
            read_mask_folder(path, labels, on_progress)
            labels.formats.append("masks")
        else:
            _read_folder(path, labels, on_progress)
    elif path.exists():
        parse_labels(read_json(path), str(path), labels, on_progress)
    else:
        raise DatasetError(f"there is no file or folder '{path}'; give {EXPECTED}")
    if not labels.images:
        reason = f" ({labels.problems[0]})" if labels.problems else ""
        raise DatasetError(f"'{path}' has no labelled image{reason}; give {EXPECTED}")
    return labels


def parse_labels(
    data: Any, source: str, labels: Labels, on_progress: OnProgress | None = None, folder: str = ""
) -> None:
    """Add the labels of a JSON file's content; raise DatasetError if it is in none of the formats.

    ``folder`` is where the file is, for LabelMe, which names images relative to it.
    """
    found: Format
    if is_coco(data):
        found = "coco"
        read_coco(data, source, labels, on_progress)
    elif is_labelme(data):
        found = "labelme"
        read_labelme(data, source, labels, folder)
    elif is_label_studio(data):
        found = "label-studio"
        read_label_studio(data, source, labels, on_progress)
    else:
        raise DatasetError(f"'{source}' holds no labels in a known format; give {EXPECTED}")
    if found not in labels.formats:
        labels.formats.append(found)


def _read_folder(folder: Path, labels: Labels, on_progress: OnProgress | None) -> None:
    """Add the labels of every JSON file below a folder."""
    files = sorted(file for file in files_below(folder) if file.suffix.lower() == ".json")
    if not files:
        raise DatasetError(f"there is no JSON file in '{folder}'; give {EXPECTED}")
    for number, file in enumerate(files, start=1):
        try:
            parse_labels(read_json(file), str(file), labels, folder=file.parent.relative_to(folder).as_posix())
        except DatasetError as error:
            labels.problems.append(str(error))
        if on_progress is not None:
            on_progress(number, len(files))


def match_images(labels: Labels, folder: Path, found: Sequence[Path] | None = None) -> tuple[Labels, list[str]]:
    """Return labels with the names and sizes of the images in a folder, and images that have no label.

    Labels without an image, with several, or of an image of another size are in ``problems``. ``found`` are the images,
    if they are known.
    """
    broken: list[ImageError] = []
    if found is None:
        found, broken = find_images(folder)
    files = {file.relative_to(folder).as_posix(): file for file in found}
    matched = Labels(problems=[*labels.problems, *map(str, broken)], formats=labels.formats)
    for image, name in label_matches(labels, ImageNames(files), matched.problems):
        try:
            size = size_of(files[name])
        except ImageError as error:
            matched.problems.append(str(error))
            continue
        if image.size not in (None, size):
            matched.problems.append(_other_size(image, size))
            continue
        matched.add(replace(image, name=name, size=size), folder)
    labelled = {image.name for image in matched.images}
    return matched, [name for name in files if name not in labelled]


def label_matches(labels: Labels, names: ImageNames, problems: list[str]) -> list[tuple[LabelledImage, str]]:
    """Return each label with the one image that its name matches; other labels are added to ``problems``."""
    pairs = []
    for image in labels.images:
        matches = names.matches(image.name)
        if len(matches) == 1:
            pairs.append((image, matches[0]))
        elif matches:
            shown = ", ".join(matches[:3])
            problems.append(f"{image.name}: {len(matches)} images have this name ({shown}); its labels are not used")
        else:
            problems.append(f"{image.name}: there is no image of this name; its labels are not used")
    return pairs


def _other_size(image: LabelledImage, size: tuple[int, int]) -> str:
    shown = image.size or (0, 0)
    return (
        f"{image.name}: it was labelled at {shown[1]} x {shown[0]} pixels, and the image has {size[1]} x {size[0]}; "
        f"its labels are not used"
    )


def write_labels(
    labels: Labels, out: Path, to: Format, *, overwrite: bool = False, on_progress: OnProgress | None = None
) -> tuple[int, list[str]]:
    """Write labels in a format; return how many images were written, and what could not be.

    ``out`` is a file for COCO and Label Studio, a folder for LabelMe and masks.
    """
    is_folder = to in ("labelme", "masks")
    if out.exists() and not overwrite and not (is_folder and out.is_dir() and not any(out.iterdir())):
        raise OutputError(f"'{out}' exists; choose another name, or replace it with `overwrite=True`")
    if out.exists() and out.is_dir() != is_folder:
        raise OutputError(f"'{out}' is a {'file' if is_folder else 'folder'}; {to} needs the other")
    total = len(labels.images)

    def step(done: int) -> None:
        if on_progress is not None:
            on_progress(done, total)

    if to == "masks":
        return write_mask_folder(labels.images, out, step)
    known = [image for image in labels.images if image.size is not None or (to != "coco" and not image.shapes)]
    names = {image.name for image in known}
    problems = [
        f"{image.name}: the size of the image is not known; give the folder of the images"
        for image in labels.images
        if image.name not in names
    ]
    if to == "labelme":
        return _write_labelme(known, out, step, problems), problems
    content = write_coco(known) if to == "coco" else write_label_studio(known)
    with atomic_write(out) as file:
        file.write(to_bytes(content))
    step(total)
    return len(known), problems


def _write_labelme(images: list[LabelledImage], out: Path, step: Callable[[int], None], problems: list[str]) -> int:
    """Write one file per image, in the folders that the images are in."""
    written: set[Path] = set()
    for number, image in enumerate(images, start=1):
        path = out / Path(image.name).with_suffix(".json")
        if path in written:
            problems.append(f"{image.name}: another image has the same name but for its ending; it was not written")
        else:
            with atomic_write(path, sync=False) as file:
                file.write(to_bytes(write_labelme(image)))
            written.add(path)
        step(number)
    return len(written)


def to_bytes(content: Any) -> bytes:
    """Return content as JSON in UTF-8; names that are not Unicode are escaped."""
    return json.dumps(content, indent=1).encode("ascii")
