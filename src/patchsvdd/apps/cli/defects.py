"""``patchsvdd defects``."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.console import (
    JsonOption,
    StageBars,
    escape,
    one_line_errors,
    print_json,
    print_table,
    progress_bar,
    stdout,
    warn_of_skipped,
)
from patchsvdd.core.image_size import AUTO

if TYPE_CHECKING:
    from patchsvdd.core.errors import ImageError

EXAMPLE = "Example: patchsvdd defects photos/good --out defects.png --kinds hole,crack"
SUFFIXES = (".png", ".jpg", ".jpeg")
FEWEST_SOURCES = 16
"""Fewest good images to load as sources of foreign texture, if the folder has that many."""


@one_line_errors
def defects(
    good: Annotated[
        Path, typer.Argument(metavar="GOOD_OR_CATEGORY", help="Folder of good images, or an MVTec category.")
    ],
    out: Annotated[Path, typer.Option(help="Contact sheet to write: a .png or .jpg file.")],
    kinds: Annotated[
        str | None, typer.Option(help="Comma-separated kinds of defects, such as blend,hole (default: all).")
    ] = None,
    columns: Annotated[int, typer.Option(min=1, max=50, help="Images of each kind on the sheet.")] = 6,
    per_kind: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Images to generate of each kind (default: --columns).")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Folder to also save images and masks in, as test/ and ground_truth/.")
    ] = None,
    image_size: Annotated[str, typer.Option(help="auto, 256, 336x448 (width x height) or native.")] = AUTO,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files of --out and --save.")] = False,
    json: JsonOption = False,
) -> None:
    """Draw synthetic defects into good images and show them on a contact sheet.

    Settings are chosen on these defects and the critic is trained on them. Look at the sheet to judge whether they
    resemble real defects of the part. With --save they make a test set for `evaluate`; in that case, use good images
    that the model was not trained on.
    """
    from patchsvdd.core.files import require_writable
    from patchsvdd.core.presets import preset
    from patchsvdd.critic.synthetic_defects import KINDS
    from patchsvdd.images.image_set import load_image_set
    from patchsvdd.images.loading import sized_for
    from patchsvdd.report.defect_sheet import draw_defect_sheet, draw_examples, require_free, save_examples, save_good
    from patchsvdd.report.overlay import save_image

    names, count = _parse_kinds(kinds, KINDS), per_kind or columns
    config = preset(image_size=image_size)
    _check_sheet(out, overwrite)
    files, broken = _sample_images(good, max(count, FEWEST_SOURCES), seed)
    require_writable(out.parent)
    if save is not None:
        require_free(save, names, count, len(files), overwrite)
        require_writable(save)
    with progress_bar() as progress:
        bars = StageBars(progress)
        config = sized_for(good, config)
        images = load_image_set(files, config, lambda done, total: bars("images", done, total))
        shown, drawn = [], {}
        for done, kind in enumerate(names, start=1):
            examples = draw_examples(images.pixels, kind, count, seed)
            if save is not None:
                save_examples(examples, save, config.pixel_scale)
            shown.append(examples.first(columns))
            drawn[kind] = examples.to_json()
            bars("drawing", done, len(names))
        if save is not None:
            save_good(images.pixels, save, config.pixel_scale)
        save_image(draw_defect_sheet(shown, title=f"Synthetic defects: {good.resolve().name}", columns=columns), out)
    skipped = (*broken, *images.skipped)
    warn_of_skipped(skipped)
    if json:
        print_json(
            {
                "sheet": str(out),
                "saved": None if save is None else str(save),
                "images": len(images),
                "skipped": [str(error) for error in skipped],
                "image_size": list(images.size),
                "seed": seed,
                "kinds": drawn,
            }
        )
        return
    print_table(("kind", "images", "visible", "fraction of the image"), [_row(*item) for item in drawn.items()])
    stdout().print(f"contact sheet: {escape(str(out))}")
    if save is not None:
        stdout().print(f"To test a model on them: patchsvdd evaluate MODEL {escape(str(save))}")


def _parse_kinds(kinds: str | None, known: Sequence[str]) -> list[str]:
    """The kinds to draw, without duplicates, in the order given."""
    from patchsvdd.core.errors import ConfigError

    if kinds is None:
        return list(known)
    names = list(dict.fromkeys(part.strip() for part in kinds.split(",") if part.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ConfigError(f"--kinds must be some of {', '.join(known)}; got '{', '.join(unknown) or kinds}'")
    return names


def _check_sheet(out: Path, overwrite: bool) -> None:
    """Raise an error if the contact sheet cannot be written to ``out``."""
    from patchsvdd.core.errors import ConfigError, OutputError

    if out.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--out is the file of the contact sheet and must end in {', '.join(SUFFIXES)}; got '{out}'")
    if out.is_dir():
        raise OutputError(f"{out} is a folder; choose another --out, such as {out / 'defects.png'}")
    if out.exists() and not overwrite:
        raise OutputError(f"{out} already exists; choose another --out, or replace it with --overwrite")


def _sample_images(good: Path, count: int, seed: int) -> tuple[list[tuple[str, Path]], tuple[ImageError, ...]]:
    """(name, file) of ``count`` good images (all, if there are fewer), and the files that are not images."""
    from patchsvdd.images.mvtec_layout import find_good_images

    images = find_good_images(good)
    named = images.named()
    return sorted(random.Random(seed).sample(named, min(count, len(named)))), images.broken


def _row(kind: str, drawn: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A row of the table."""
    area = drawn["area"]
    sizes = "–" if area["median"] is None else f"{area['smallest']:.2%} – {area['largest']:.2%}"
    return kind, str(drawn["drawn"]), f"{drawn['visible']:.0%}", sizes
