"""``patchsvdd product``: which of several products an image shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    JsonOption,
    check_share,
    escape,
    load_detector,
    named_folders,
    one_line_errors,
    print_json,
    print_table,
    progress_bar,
    say,
    warn_of_skipped,
)
from patchsvdd.core.errors import ImageError

if TYPE_CHECKING:
    from patchsvdd.detector.detector import PatchSVDD

ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--product", metavar="NAME=MODEL", help="A product and its model folder; repeat for each product."),
]

product = typer.Typer(
    help="Find out which of several products an image shows, or that it shows none of them.",
    no_args_is_help=True,
    epilog="Example: patchsvdd product choose products.json photos --product plate=models/plate "
    "--product bracket=models/bracket",
)


@product.command(
    "calibrate",
    epilog="Example: patchsvdd product calibrate --product plate=models/plate --product bracket=models/bracket "
    "--out products.json",
)
@one_line_errors
def calibrate(
    models: ModelsOption = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The file to write.")] = None,
    good: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="Good images of a product that its model has not seen; without them, its memory serves.",
        ),
    ] = None,
    false_alarm_rate: Annotated[
        float, typer.Option(help="Share of good images of each product that may be called none of the products.")
    ] = 0.01,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Learn how far good images of each product are from it, for a line that chooses its product by the image."""
    from patchsvdd.detector.product_choice import ProductChooser
    from patchsvdd.images.mvtec_layout import find_good_images

    check_share("--false-alarm-rate", false_alarm_rate)
    if out is None:
        raise typer.BadParameter("name the file to write", param_hint="--out")
    errors: list[object] = []
    chooser = ProductChooser(_loaded(models, device))
    images = {
        name: find_good_images(folder).files
        for name, folder in named_folders(good, "--good", "plate=photos/plate").items()
    }
    with progress_bar() as progress:
        task = progress.add_task("products", total=len(chooser.images))
        found = chooser.calibrate(
            images,
            false_alarm_rate,
            on_error=lambda _, error: errors.append(error),
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    chooser.save(out)
    warn_of_skipped(errors)
    rows = [
        {"product": name, "images": len(one.distances), "rate": one.rate, "identity": one.identity}
        for name, one in found.items()
    ]
    if json:
        print_json({"out": str(out), "false_alarm_rate": false_alarm_rate, "products": rows, "skipped": len(errors)})
        return
    print_table(
        ("product", "images", "called none, at most"),
        [[str(row["product"]), str(row["images"]), f"{row['rate']:.1%}"] for row in rows],
    )
    say(f"wrote {escape(str(out))}; name it in a line's file as `file` of [choice]")


@product.command("choose", epilog=product.info.epilog)
@one_line_errors
def choose(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file that `product calibrate` wrote.")],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="An image or a folder of images.")],
    models: ModelsOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Print the product that each image shows."""
    from patchsvdd.detector.product_choice import ProductChooser
    from patchsvdd.images.image_files import find_images

    chooser = ProductChooser.load(file, _loaded(models, device))
    paths, unreadable = find_images(images) if images.is_dir() else ([images], [])
    errors: list[object] = list(unreadable)
    rows: list[dict[str, Any]] = []
    with progress_bar() as progress:
        task = progress.add_task("images", total=len(paths))
        for path in paths:
            try:
                found = chooser.choose(path)
                rows.append({"image": str(path), "product": found.product, "p_values": dict(found.p_values)})
            except ImageError as error:
                errors.append(error)
            progress.advance(task)
    warn_of_skipped(errors)
    if json:
        print_json({"images": rows, "skipped": len(errors)})
        return
    for row in rows[:50]:
        say(escape(f"{row['product'] or 'none'}  {row['image']}"))
    counts = Counter(row["product"] or "none" for row in rows)
    print_table(("product", "images"), [[name, str(count)] for name, count in counts.most_common()])


def _loaded(given: list[str] | None, device: str) -> dict[str, PatchSVDD]:
    folders = named_folders(given, "--product", "plate=models/plate")
    if not folders:
        hint = "name each product and its model, as in --product plate=models/plate"
        raise typer.BadParameter(hint, param_hint="--product")
    return {name: load_detector(folder, device, "auto", "float32", "auto") for name, folder in folders.items()}
