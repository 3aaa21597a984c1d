"""``patchsvdd paper``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from patchsvdd.apps.cli.benchmark import CacheOption, CategoriesOption, parse_names, parse_seeds
from patchsvdd.apps.cli.console import (
    DeviceOption,
    ImageSizeOption,
    JsonOption,
    StageBars,
    StopRequest,
    escape,
    one_line_errors,
    print_json,
    progress_bar,
    say,
)
from patchsvdd.core.errors import ConfigError, Interrupted

EXAMPLE = "Example: patchsvdd paper losses mvtec --categories bottle,toothbrush --out paper"
NAMES = "methods, losses, hierarchy, lambda, dimension, baselines, tsne, intrinsic-dimension, maps or all"


@one_line_errors
def paper(
    item: Annotated[str, typer.Argument(metavar="ITEM", help=f"{NAMES}.")],
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="Folder of categories in MVTec layout, or one category.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("paper"),
    categories: CategoriesOption = None,
    preset: Annotated[str, typer.Option(help="paper or encoder.")] = "paper",
    steps: Annotated[int | None, typer.Option(help="Training steps instead of the preset's.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of 100 samples per image instead of the preset's.")] = None,
    image_size: ImageSizeOption = None,
    resize: Annotated[str | None, typer.Option(help="nearest, area or bicubic.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N,N…", help="Seeds of the paper's method and of L_SVDD' alone, instead of --seed."),
    ] = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    json: JsonOption = False,
) -> None:
    """Reproduce a table or figure of the paper, or all of them, next to the published values.

    Writes ITEM.json, ITEM.html and figures. Trained encoders are cached and shared by all items and by
    `benchmark` (use the same --cache for both), so no encoder is trained twice. After an interruption,
    run the same command again to resume.
    """
    from patchsvdd.core import presets as settings
    from patchsvdd.core.files import require_writable
    from patchsvdd.evaluation.dataset import find_categories
    from patchsvdd.evaluation.experiment_store import ExperimentStore
    from patchsvdd.evaluation.paper.items import ITEMS, LIBRARIES, NEEDS_LIBRARIES, write_all, write_item
    from patchsvdd.evaluation.paper.study import Study
    from patchsvdd.report.figures import have_matplotlib

    if item != "all" and item not in ITEMS:
        raise ConfigError(f"unknown item '{item}'; choose one of: {', '.join(ITEMS)}, all")
    chosen = list(ITEMS) if item == "all" else [item]
    if not all(map(find_spec, LIBRARIES)) and any(name in NEEDS_LIBRARIES for name in chosen):
        raise ConfigError(f"'{item}' requires more libraries: pip install 'patchsvdd[paper]'")
    if not have_matplotlib():
        remedy = escape("pip install 'patchsvdd[paper]' and run the same command")
        say(f"[yellow]note:[/] no charts without matplotlib: {remedy}")
    every = tuple(parse_seeds(seeds)) if seeds is not None else (seed,)
    config = settings.preset(preset, steps=steps, epochs=epochs, image_size=image_size, resize=resize, seed=every[0])
    folders = find_categories(dataset, parse_names(categories))
    require_writable(out)
    require_writable(cache or out / "runs")
    stop = StopRequest()
    reports = []
    with stop.listening(), progress_bar() as progress:
        bars = StageBars(progress)
        store = ExperimentStore(cache or out / "runs", device=device, on_stage=bars, should_stop=stop)
        study = Study(store, tuple(folders), config, out, every)
        for done, name in enumerate(chosen):
            bars.clear()
            bars("items", done, len(chosen))
            bars.note("items", name)
            study.used.clear()  # the report of an item names only the results it used
            try:
                report = ITEMS[name](study)
            except Interrupted as error:
                raise Interrupted(
                    f"{error} of '{name}'; finished results are in {store.folder}: run the same command to resume"
                ) from None
            page = write_item(study, report)
            reports.append(report)
        bars("items", len(chosen), len(chosen))
    if item == "all":
        page = write_all(study, reports)
    verdicts = [(report.item, one) for report in reports for one in report.section.verdicts]
    if json:
        print_json(
            {
                "page": str(page),
                "items": {report.item: report.data for report in reports},
                "verdicts": [
                    {"item": name, "result": one.result, "holds": one.holds, "words": one.words}
                    for name, one in verdicts
                ],
            }
        )
        return
    for name, one in verdicts:
        colour = {True: "green", False: "yellow", None: "dim"}[one.holds]
        say(f"{name}: [{colour}]{one.result}[/]  {escape(one.words)}")
    say(f"report: {escape(str(page))}")
