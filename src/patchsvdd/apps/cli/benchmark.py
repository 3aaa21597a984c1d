"""``patchsvdd benchmark``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.apps.cli.console import (
    ClusterOption,
    CriticStepsOption,
    DeviceOption,
    ImageSizeOption,
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
from patchsvdd.core.errors import ConfigError, Interrupted
from patchsvdd.core.presets import DEFAULT

if TYPE_CHECKING:
    from patchsvdd.evaluation.benchmark import Benchmark
    from patchsvdd.evaluation.remote_run import Running

EXAMPLE = "Example: patchsvdd benchmark mvtec --categories bottle,pill --preset paper --seeds 0,1,2 --out benchmark"

CategoriesOption = Annotated[
    str | None, typer.Option(help="Comma-separated categories (default: all in the data set).")
]
CacheOption = Annotated[
    Path | None, typer.Option(help="Folder of trained encoders and test results (default: OUT/runs).")
]


@one_line_errors
def benchmark(
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="Folder of categories in MVTec layout, or one category.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("benchmark"),
    categories: CategoriesOption = None,
    preset: Annotated[
        str,
        typer.Option(
            help="best, encoder, paper, deep-svdd, l2-ae, ssim-ae; several, comma-separated, each get a folder in OUT."
        ),
    ] = DEFAULT,
    seeds: Annotated[str, typer.Option(help="Comma-separated random seeds.")] = "0",
    steps: Annotated[int | None, typer.Option(help="Training steps instead of the preset's.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of 100 samples per image instead of the preset's.")] = None,
    image_size: ImageSizeOption = None,
    resize: Annotated[str | None, typer.Option(help="nearest, area or bicubic.")] = None,
    memory: MemoryOption = None,
    critic_steps: CriticStepsOption = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    cluster: ClusterOption = None,
    gpus_per_run: Annotated[
        float | None, typer.Option(help="With --cluster: GPUs per run, such as 0.25 (default: 1 if there are GPUs).")
    ] = None,
    cpus_per_run: Annotated[
        int | None, typer.Option(help="With --cluster: CPUs per run. Use this machine's threads for identical results.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train and test every category of a data set and compare with the paper.

    Writes results.json, results.csv, results.md and index.html. After an interruption, run the same command
    again to resume. Test images and labels are only read after training.
    """
    from patchsvdd.core import presets as settings
    from patchsvdd.core.files import require_writable
    from patchsvdd.evaluation.benchmark import Benchmark
    from patchsvdd.evaluation.benchmark_page import write_benchmark_page
    from patchsvdd.evaluation.dataset import find_categories

    names = parse_presets(preset)
    folders = find_categories(dataset, parse_names(categories))
    numbers = parse_seeds(seeds)
    plans: list[Plan] = []
    for name in names:
        config = settings.preset(name, steps=steps, epochs=epochs, image_size=image_size, resize=resize, memory=memory)
        if config.critic is not None or len(names) == 1:
            config = settings.with_critic_steps(config, critic_steps)
        for number in numbers:
            config.replace(seed=number)  # fail now rather than after the first runs
        results = Benchmark(dataset.resolve().name, config, tuple(numbers), tuple(folder.name for folder in folders))
        plans.append(Plan(results, out / name if len(names) > 1 else out))
    for folder in [*(plan.out for plan in plans), cache or out / "runs"]:
        require_writable(folder)
    if cluster is None and (gpus_per_run is not None or cpus_per_run is not None):
        raise ConfigError("--gpus-per-run and --cpus-per-run require --cluster ADDRESS")
    runs, stop = cache or out / "runs", StopRequest()
    with stop.listening(), progress_bar(above=lambda: make_table(COLUMNS, _all_rows(plans))) as progress:
        if cluster is None:
            finished = _run_locally(plans, folders, runs, StageBars(progress), device=device, stop=stop)
        else:
            share = (cpus_per_run, gpus_per_run)
            finished = _run_on_cluster(
                cluster, plans, folders, runs, StageBars(progress), device=device, stop=stop, share=share
            )
        try:
            for plan, name, seed in finished:
                plan.write()
                if not progress.console.is_terminal:
                    say(escape(_line(plan.benchmark, name, seed)))
        except Interrupted as error:
            raise Interrupted(f"{error}; finished results are in {out}: run the same command to resume") from None
    _report(plans, [write_benchmark_page(plan.benchmark, folders, plan.out) for plan in plans], json)


@dataclass(frozen=True)
class Plan:
    """A benchmark of one preset, and the folder it is written to."""

    benchmark: Benchmark
    out: Path

    def write(self) -> None:
        """Write the tables with the results so far."""
        from patchsvdd.evaluation.benchmark import write_tables

        write_tables(self.benchmark, self.out)


def _run_locally(
    plans: Sequence[Plan],
    folders: Sequence[Path],
    runs: Path,
    bars: StageBars,
    *,
    device: str,
    stop: StopRequest,
) -> Iterator[tuple[Plan, str, int]]:
    """Run sequentially on this machine; yields each run when its result is available."""
    from patchsvdd.evaluation.benchmark import run_benchmark
    from patchsvdd.evaluation.experiment_store import ExperimentStore

    store = ExperimentStore(runs, device=device, on_stage=bars, should_stop=stop)
    several = len(plans) > 1
    labels = [
        f"{folder.name}, seed {seed}{f', {plan.benchmark.config.preset}' if several else ''}"
        for plan in plans
        for seed in plan.benchmark.seeds
        for folder in folders
    ]

    def show_runs(done: int) -> None:
        bars.clear()
        bars("runs", done, len(labels))
        bars.note("runs", labels[done] if done < len(labels) else "")

    show_runs(0)
    done = 0
    for plan in plans:
        for name, seed in run_benchmark(plan.benchmark, folders, store):
            done += 1
            yield plan, name, seed
            show_runs(done)


def _run_on_cluster(
    cluster: str,
    plans: Sequence[Plan],
    folders: Sequence[Path],
    runs: Path,
    bars: StageBars,
    *,
    device: str,
    stop: StopRequest,
    share: tuple[int | None, float | None],
) -> Iterator[tuple[Plan, str, int]]:
    """Run concurrently on a Ray cluster; yields each run when its result is available."""
    from patchsvdd.apps.cluster.ray_benchmark import run_benchmarks, share_of_run
    from patchsvdd.apps.cluster.ray_connection import connected
    from patchsvdd.evaluation.experiment_store import ExperimentStore

    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device must be auto, cpu or cuda with --cluster; got '{device}'")
    total = sum(len(plan.benchmark.seeds) for plan in plans) * len(folders)
    done = 0

    def on_running(running: Mapping[str, Running]) -> None:
        stages = {f"{name}: {now.stage}": now for name, now in running.items()}
        bars.clear(but={"runs", *stages})
        for stage, now in stages.items():
            bars(stage, now.done, now.total)

    bars("runs", 0, total)
    with connected(cluster), stop.listening():  # Ray replaces the signal handlers
        store = ExperimentStore(runs, device="cpu", should_stop=stop)  # nothing is computed in this process
        plan_of = {id(plan.benchmark): plan for plan in plans}
        resources = share_of_run(*share, device)
        work = [(plan.benchmark, folders) for plan in plans]
        for results, name, seed in run_benchmarks(work, store, resources, device=device, on_running=on_running):
            done += 1
            bars("runs", done, total)
            yield plan_of[id(results)], name, seed
    bars.clear(but={"runs"})


def parse_presets(text: str) -> list[str]:
    """ "encoder,best" → ["encoder", "best"]."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise ConfigError(f"--preset must be a name like best, or several like encoder,best; got '{text}'")
    return list(dict.fromkeys(names))


def parse_names(text: str | None) -> list[str] | None:
    """ "a,b" → ["a", "b"]."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise ConfigError(f"--categories must be names like bottle,pill; got '{text}'")
    return names


def parse_seeds(text: str) -> list[int]:
    """ "0,1,2" → [0, 1, 2]."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--seeds must be whole numbers like 0,1,2; got '{text}'")
    return list(dict.fromkeys(map(int, parts)))


COLUMNS = ("category", "detection", "paper", "segmentation", "paper", "AUPRO", "seeds")


def _rows(results: Benchmark) -> list[tuple[str, ...]]:
    """Rows of the short table: our results next to the paper's."""
    from patchsvdd.evaluation.benchmark import HEADLINE, cell
    from patchsvdd.evaluation.published import published_for

    rows: list[tuple[str, ...]] = []
    for name in results.categories:
        theirs = published_for(results.config.preset, name)
        values = [cell(results.values(name, metric)) for metric in HEADLINE]
        paper = [f"{theirs[metric]:.3f}" if metric in theirs else "" for metric in HEADLINE[:2]]
        done = "failed" if name in results.failed else f"{len(results.results.get(name, {}))} of {len(results.seeds)}"
        rows.append((name, values[0], paper[0], values[1], paper[1], values[2], done))
    return rows


def _all_rows(plans: Sequence[Plan]) -> list[tuple[str, ...]]:
    """Rows of the short tables of all presets."""
    if len(plans) == 1:
        return _rows(plans[0].benchmark)
    return [(f"{row[0]}, {plan.benchmark.config.preset}", *row[1:]) for plan in plans for row in _rows(plan.benchmark)]


def _line(results: Benchmark, name: str, seed: int) -> str:
    """The newest result as one line, for a log."""
    from patchsvdd.evaluation.benchmark import HEADLINE, cell

    if name in results.failed:
        return f"{name}: {results.failed[name]}"
    metrics = results.results[name][seed].metrics
    return f"{name}, seed {seed}: " + ", ".join(
        f"{metric} {cell([metrics[metric]]) if metric in metrics else '–'}" for metric in HEADLINE
    )


def _report(plans: Sequence[Plan], pages: Sequence[Path], json: bool) -> None:
    data = [{**plan.benchmark.to_json(), "page": str(page)} for plan, page in zip(plans, pages, strict=True)]
    if json:
        print_json(data[0] if len(plans) == 1 else {"presets": {results["preset"]: results for results in data}})
    else:
        if not (stdout().is_terminal and stderr().is_terminal):  # otherwise it is already shown above the bars
            print_table(COLUMNS, _all_rows(plans))
        for page in pages:
            say(f"report: {escape(str(page))}")
    for plan in plans:
        for name in plan.benchmark.categories:
            for metric, reason in plan.benchmark.missing(name).items():
                say(f"[yellow]{escape(name)}, no {metric}:[/] {escape(reason)}")
    if any(plan.benchmark.failed for plan in plans):
        raise typer.Exit(1)
