"""``patchsvdd labels``: labels as labelling tools exchange them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.apps.cli.console import (
    JsonOption,
    StageBars,
    one_line_errors,
    print_facts,
    print_json,
    progress_bar,
    warn_of_skipped,
)

if TYPE_CHECKING:
    from patchsvdd.images.labels.shapes import LabelledImage

LabelsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="LABELS",
        help="COCO or Label Studio JSON, LabelMe file or folder of them, or a category with ground_truth masks.",
    ),
]
ImagesOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the images: gives their sizes, and reports images without labels."),
]

labels = typer.Typer(help="Read and convert labels of COCO, LabelMe and Label Studio.", no_args_is_help=True)


@labels.command("convert", epilog="Example: patchsvdd labels convert coco.json masks --to masks --images photos")
@one_line_errors
def convert(
    source: LabelsArgument,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="File to write (coco, label-studio), or folder (labelme, masks).")
    ],
    to: Annotated[str, typer.Option(help="coco, labelme, label-studio, or masks (ground_truth as in MVTec).")],
    images: ImagesOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    json: JsonOption = False,
) -> None:
    """Convert labels between COCO, LabelMe, Label Studio and masks. The format of LABELS is recognised."""
    from patchsvdd.images.labels.files import match_images, read_labels, write_labels
    from patchsvdd.images.labels.label_file import as_format

    chosen = as_format(to)
    with progress_bar() as progress:
        bars = StageBars(progress)
        read = read_labels(source, lambda done, total: bars("reading", done, total))
        without: list[str] = []
        if images is not None:
            read, without = match_images(read, images)
        written, unwritten = write_labels(
            read, out, chosen, overwrite=overwrite, on_progress=lambda done, total: bars("writing", done, total)
        )
    problems = [*read.problems, *unwritten]
    warn_of_skipped(problems)
    counted = _counts(read.images)
    if json:
        written_to = {"out": str(out), "to": chosen, "written": written}
        print_json({**written_to, **counted, "problems": problems, "without_label": without})
        return
    facts = {"format": f"{', '.join(read.formats)} to {chosen}", **_facts(counted), "written": str(written)}
    if images is not None:
        facts["without label"] = f"{len(without)} images in {images}"
    print_facts(f"Converted {source} to {out}", facts)


@labels.command("show", epilog="Example: patchsvdd labels show annotations.json --images photos")
@one_line_errors
def show(source: LabelsArgument, images: ImagesOption = None, json: JsonOption = False) -> None:
    """Show what a file or folder of labels contains, and what in it cannot be used."""
    from patchsvdd.images.labels.files import match_images, read_labels

    with progress_bar() as progress:
        bars = StageBars(progress)
        read = read_labels(source, lambda done, total: bars("reading", done, total))
        without: list[str] = []
        if images is not None:
            read, without = match_images(read, images)
    warn_of_skipped(read.problems)
    counted = _counts(read.images)
    if json:
        print_json({"formats": read.formats, **counted, "problems": read.problems, "without_label": without})
        return
    facts = {"format": ", ".join(read.formats), **_facts(counted)}
    if images is not None:
        facts["without label"] = f"{len(without)} images in {images}"
    print_facts(f"Labels in {source}", facts)


def _counts(images: Iterable[LabelledImage]) -> dict[str, object]:
    """Numbers of images and shapes."""
    found = list(images)
    shapes = Counter(shape.kind for image in found for shape in image.shapes)
    return {
        "images": len(found),
        "good": sum(not image.is_defect for image in found),
        "defective": sum(image.is_defect for image in found),
        "shapes": dict(sorted(shapes.items())),
    }


def _facts(counted: dict[str, object]) -> dict[str, str]:
    shapes = counted["shapes"]
    assert isinstance(shapes, dict)
    return {
        "images": f"{counted['images']}: {counted['good']} good, {counted['defective']} with defects",
        "shapes": ", ".join(f"{number} {kind}" for kind, number in shapes.items()) or "none",
    }
