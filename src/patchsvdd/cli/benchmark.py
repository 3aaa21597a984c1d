"""``patchsvdd benchmark``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.cli.console import (
    CriticStepsOption,
    DeviceOption,
    JsonOption,
    MemoryOption,
    StageBars,
    StopRequest,
    escape,
    make_table,
    one_line_errors,
    print_json,
    print_table,
    progress_bar,
    say,
    stderr,
    stdout,
)
from patchsvdd.errors import ConfigError, Interrupted
from patchsvdd.presets import DEFAULT

if TYPE_CHECKING:
    from patchsvdd.evaluation.benchmark import Benchmark

EXAMPLE = "Example: patchsvdd benchmark mvtec --categories bottle,pill --preset paper --seeds 0,1,2 --out benchmark"

CategoriesOption = Annotated[
    str | None, typer.Option(help="Comma-separated names; every category of the data set if not given.")
]
CacheOption = Annotated[
    Path | None, typer.Option(help="Folder of trained encoders and test results; OUT/runs if not given.")
]
FuseOption = Annotated[
    bool, typer.Option("--fuse", help="Compile the training step: a fifth faster on a GPU; takes a C compiler.")
]


@one_line_errors
def benchmark(
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="Folder of categories in MVTec layout, or one category.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("benchmark"),
    categories: CategoriesOption = None,
    preset: Annotated[str, typer.Option(help="best, encoder, auto or paper.")] = DEFAULT,
    seeds: Annotated[str, typer.Option(help="Comma-separated.")] = "0",
    steps: Annotated[int | None, typer.Option(help="Training steps instead of the preset's.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of 100 samples per image instead of the preset's.")] = None,
    image_size: Annotated[str | None, typer.Option(help="256, 336x448 (width x height) or native.")] = None,
    resize: Annotated[str | None, typer.Option(help="nearest, area or bicubic.")] = None,
    memory: MemoryOption = None,
    critic_steps: CriticStepsOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    fuse: FuseOption = False,
    json: JsonOption = False,
) -> None:
    """Train and test every category of a data set and compare with the paper.

    Writes results.json, results.csv, results.md and index.html. Interrupted, it goes on where it stopped
    when the same command is given again. Test images and labels are looked at after training only.
    """
    from patchsvdd import presets as settings
    from patchsvdd.evaluation.benchmark import Benchmark, run_benchmark, write_tables
    from patchsvdd.evaluation.dataset import find_categories
    from patchsvdd.evaluation.experiment import ExperimentStore
    from patchsvdd.files import require_writable
    from patchsvdd.output.benchmark_page import write_benchmark_page

    config = settings.preset(preset, steps=steps, epochs=epochs, image_size=image_size, resize=resize, memory=memory)
    config = settings.with_critic_steps(config, critic_steps)
    folders = find_categories(dataset, parse_names(categories))
    numbers = parse_seeds(seeds)
    for number in numbers:
        config.replace(seed=number)  # refused now rather than after the first trainings
    require_writable(out)
    require_writable(cache or out / "runs")
    found = Benchmark(dataset.resolve().name, config, tuple(numbers), tuple(folder.name for folder in folders))
    stop = StopRequest()
    with stop.listening(), progress_bar(above=lambda: make_table(COLUMNS, _rows(found))) as progress:
        bars = StageBars(progress)
        store = ExperimentStore(cache or out / "runs", device=device, fuse=fuse, on_stage=bars, should_stop=stop)
        order = [f"{folder.name}, seed {seed}" for seed in numbers for folder in folders]

        def show_runs(done: int) -> None:
            bars.clear()
            bars("runs", done, len(order))
            bars.note("runs", order[done] if done < len(order) else "")

        show_runs(0)
        try:
            for done, (name, seed) in enumerate(run_benchmark(found, folders, store), start=1):
                write_tables(found, out)
                show_runs(done)
                if not progress.console.is_terminal:
                    say(escape(_line(found, name, seed)))
        except Interrupted as error:
            raise Interrupted(f"{error}; what is done is kept in {out}: the same command goes on from there") from None
    page = write_benchmark_page(found, folders, out)
    _report(found, page, json)


def parse_names(text: str | None) -> list[str] | None:
    """ "a,b" → ["a", "b"]."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise ConfigError(f"--categories takes names like bottle,pill; got '{text}'")
    return names


def parse_seeds(text: str) -> list[int]:
    """ "0,1,2" → [0, 1, 2]."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--seeds takes whole numbers like 0,1,2; got '{text}'")
    return list(dict.fromkeys(map(int, parts)))


COLUMNS = ("category", "detection", "paper", "segmentation", "paper", "AUPRO", "seeds")


def _rows(found: Benchmark) -> list[tuple[str, ...]]:
    """The short table: ours beside the paper's."""
    from patchsvdd.evaluation.benchmark import HEADLINE, cell
    from patchsvdd.evaluation.published import published

    rows: list[tuple[str, ...]] = []
    for name in found.categories:
        theirs = published("patch_svdd", name)
        values = [cell(found.values(name, metric)) for metric in HEADLINE]
        paper = [f"{theirs[metric]:.3f}" if metric in theirs else "" for metric in HEADLINE[:2]]
        done = "failed" if name in found.failed else f"{len(found.results.get(name, {}))} of {len(found.seeds)}"
        rows.append((name, values[0], paper[0], values[1], paper[1], values[2], done))
    return rows


def _line(found: Benchmark, name: str, seed: int) -> str:
    """The newest result in one line, for a log."""
    from patchsvdd.evaluation.benchmark import HEADLINE, cell

    if name in found.failed:
        return f"{name}: {found.failed[name]}"
    metrics = found.results[name][seed].metrics
    return f"{name}, seed {seed}: " + ", ".join(
        f"{metric} {cell([metrics[metric]]) if metric in metrics else '–'}" for metric in HEADLINE
    )


def _report(found: Benchmark, page: Path, json: bool) -> None:
    if json:
        print_json({**found.to_json(), "page": str(page)})
    else:
        if not (stdout().is_terminal and stderr().is_terminal):  # else it stands above the bars already
            print_table(COLUMNS, _rows(found))
        say(f"report: {escape(str(page))}")
    for name in found.categories:
        for metric, reason in found.missing(name).items():
            say(f"[yellow]{escape(name)}, no {metric}:[/] {escape(reason)}")
    if found.failed:
        raise typer.Exit(1)
