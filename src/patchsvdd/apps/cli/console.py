"""Shared by all commands: options, printing, one-line errors, progress bars, stopping on Ctrl-C."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypeVar

import typer

from patchsvdd.core.errors import ConfigError, Interrupted, PatchSVDDError, with_settings

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, Task, TaskID
    from rich.table import Table

    from patchsvdd.detector.base import Detector
    from patchsvdd.detector.detector import PatchSVDD

P = ParamSpec("P")
R = TypeVar("R")

LOG_INTERVAL = 60.0
"""Seconds between two progress lines when stderr is not a terminal."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else to stdout.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]

EngineOption = Annotated[
    str, typer.Option(help="Inference engine on a CPU: auto (the fastest here), torch, openvino or onnxruntime.")
]
PrecisionOption = Annotated[str, typer.Option(help="float32, or float16 (openvino only; scores change slightly).")]
SearchOption = Annotated[
    str, typer.Option(help="Nearest-neighbour search: auto, exact, or graph (fast, approximate, CPU only).")
]
GoldenOption = Annotated[
    Literal["block", "warn"],
    typer.Option(
        help="A model that judges a golden image wrongly (see `check`) inspects nothing (block), or inspects with a "
        "warning (warn)."
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on a Ray cluster: auto (a running one, else this machine), local, host:6379 or ray://host:10001.",
    ),
]
RoiOption = Annotated[
    str | None,
    typer.Option(
        metavar="MASK_OR_POLYGONS",
        help="Region of interest: a mask image (white), a .json of polygons, or points 'x,y x,y x,y' (two: a box).",
    ),
]
ImageSizeOption = Annotated[
    str | None,
    typer.Option(
        help="auto, 256, 336x448 (width x height) or native; by default auto, 256 with --preset paper.",
    ),
]
CriticStepsOption = Annotated[int | None, typer.Option(help="Training steps of the critic.")]
MemoryOption = Annotated[
    str | None, typer.Option(help="Normal patches to keep: a fraction such as 10%, or a number per scale such as 5000.")
]
MinAreaOption = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        help="Ignore regions smaller than this many pixels of the original image. To go below the model's own value, "
        "run `calibrate --min-area`.",
    ),
]

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


NAMES = {"upload_bytes": "max_megabytes", "pixels": "max_megapixels"}
"""Settings whose option has another name and another unit."""


def with_options(message: str) -> str:
    """Return a message of the library with settings as options: `image_size` as --image-size."""
    from typer.main import get_current_context  # type: ignore[attr-defined]  # Click's in older versions

    context = get_current_context(silent=True)
    known = set() if context is None else _options(context.find_root().command)

    def spell(name: str, value: str | None) -> str:
        option = "--" + NAMES.get(name, name).strip("_").replace("_", "-")
        if option not in known:
            return name if value is None else f"{name} {value}"
        return option if value is None or value == "True" else f"{option} {value}"

    return with_settings(message, spell)


def _options(command: Any) -> set[str]:
    """Return the options of a command and of all commands below it."""
    own = {option for parameter in command.params for option in parameter.opts}
    return own.union(*(_options(below) for below in getattr(command, "commands", {}).values()))


def one_line_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command: print errors a user can cause as one line and exit with code 1."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except Interrupted as error:
            say(f"[yellow]interrupted:[/] {escape(with_options(str(error)))}")
            raise typer.Exit(INTERRUPTED) from None
        except PatchSVDDError as error:
            say(f"[red]error:[/] {escape(with_options(str(error)))}")
            raise typer.Exit(1) from None
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not re.search("(not enough|out of) memory", str(error)):
                raise
            say("[red]error:[/] not enough memory on this machine; use a smaller --image-size or fewer images")
            raise typer.Exit(1) from None
        except BrokenPipeError:  # "| head": Click exits quietly
            raise
        except OSError as error:  # not handled anywhere in the library
            where = f" ({error.filename})" if error.filename is not None else ""
            say(f"[red]error:[/] {escape(f'{error.strerror or error}{where}')}; check the file and the disk")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            say("[yellow]interrupted[/]")
            raise typer.Exit(INTERRUPTED) from None

    return wrapped


@functools.cache
def stderr() -> Console:
    """The console for progress, warnings and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


@functools.cache
def stdout() -> Console:
    """The console for results."""
    from rich.console import Console

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be UTF-8
    return Console(highlight=False, soft_wrap=True)


def check_share(name: str, value: float) -> None:
    """Raise ConfigError if ``value`` of the option ``name`` is not between 0 and 1."""
    if not 0 < value < 1:
        raise ConfigError(f"{name} is a share between 0 and 1 (0.01 is one in a hundred); got {value:g}")


def named_folders(given: Sequence[str] | None, option: str, example: str) -> dict[str, Path]:
    """Name → folder, of options NAME=FOLDER; the ``example`` is shown if one is not."""
    folders: dict[str, Path] = {}
    for one in given or ():
        name, equals, folder = one.partition("=")
        if not (name and equals and folder):
            raise typer.BadParameter(f"give a name and a folder, as in {example}; got {one}", param_hint=option)
        if name in folders:
            raise typer.BadParameter(f"{name} was given twice", param_hint=option)
        folders[name] = Path(folder)
    return folders


def new_password() -> str:
    """The new password: typed twice at a terminal, otherwise the first line of stdin; never an argument."""
    if sys.stdin.isatty():
        return str(typer.prompt("Password or PIN", hide_input=True, confirmation_prompt=True, err=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise ConfigError("there is no password; type one at a terminal, or send it as the first line of stdin")
    return line


def say(message: str) -> None:
    """Print a line on stderr; rich markup is allowed."""
    stderr().print(message)


def escape(text: str) -> str:
    """Escape square brackets, so that rich does not read them as markup."""
    from rich.markup import escape as rich_escape

    return rich_escape(text)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    typer.echo(json.dumps(data, indent=2))  # ASCII: file names that are not UTF-8 must not fail


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Print a titled list of names and values on stdout."""
    from rich.table import Table

    table = Table(
        title=escape(title), title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in facts.items():
        table.add_row(name, escape(value))
    stdout().print(table)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout; the first column is left-aligned, the others right-aligned."""
    stdout().print(make_table(columns, rows))


def make_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table; the first column is left-aligned, the others right-aligned."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def warn_of_skipped(errors: Sequence[object], shown: int = 5) -> None:
    """Report which files were skipped and why."""
    for error in errors[:shown]:
        say(f"[yellow]skipped:[/] {escape(with_options(str(error)))}")
    if len(errors) > shown:
        say(f"[yellow]skipped:[/] and {len(errors) - shown} more")


def load_any_detector(model: Path, device: str, engine: str, precision: str, search: str) -> Detector:
    """Load a Patch SVDD or a baseline from a model folder; the library validates the option values."""
    from patchsvdd.baselines.load import load_detector

    return load_detector(model, device, engine=engine, precision=precision, search=search)


def load_detector(
    model: Path, device: str, engine: str, precision: str, search: str, min_area: int | None = None
) -> PatchSVDD:
    """Load the detector of a model folder; the library validates the option values."""
    from patchsvdd.detector.detector import PatchSVDD

    options: dict[str, Any] = {"engine": engine, "precision": precision, "search": search}
    detector = PatchSVDD.load(model, device, **options)
    return detector if min_area is None else detector.with_min_area(min_area)


@contextmanager
def progress_bar(*columns: str, above: Callable[[], RenderableType | None] = lambda: None) -> Iterator[Progress]:
    """A live progress bar on stderr with elapsed and remaining time; ``columns`` are extra rich text columns.

    The field "below" of a task is shown under all bars: text beside a bar would squeeze it in a narrow terminal. In a
    terminal, the result of ``above`` is shown over the bars and re-evaluated at every refresh. When stderr is not a
    terminal, the bars are written once, at the end, and a progress line every ``LOG_INTERVAL`` seconds until then.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Bars(Progress):
        logged = time.monotonic()

        def update(self, task_id: TaskID, **changed: Any) -> None:
            super().update(task_id, **changed)
            if not stderr().is_terminal and time.monotonic() > self.logged + LOG_INTERVAL:
                self.logged = time.monotonic()
                say(next(_progress_line(task) for task in self.tasks if task.id == task_id))

        def get_renderables(self) -> Iterator[RenderableType]:
            headline = above() if stderr().is_terminal else None
            if headline is not None:
                yield headline
            yield self.make_tasks_table(self.tasks)
            below = [task.fields["below"] for task in self.tasks if task.fields.get("below")]
            if below:
                yield Text(below[-1], style="dim", no_wrap=True, overflow="ellipsis")

    parts = [
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        *[TextColumn(column) for column in columns],
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ]
    with Bars(*parts, console=stderr()) as progress:
        yield progress


def _progress_line(task: Task) -> str:
    """The progress of a task as one line of text."""
    left = f", {timedelta(seconds=round(task.time_remaining))} left" if task.time_remaining is not None else ""
    total = f" of {task.total:.0f}" if task.total is not None else ""
    elapsed = timedelta(seconds=round(task.elapsed or 0))
    return f"{task.description}: {task.completed:.0f}{total}, {elapsed} elapsed{left}"


class StageBars:
    """One progress bar per stage of a job, created when the stage first reports."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._tasks: dict[str, Any] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show ``done`` of ``total`` items of ``stage``."""
        if stage not in self._tasks:
            self._tasks[stage] = self.progress.add_task(stage, total=total)
        self.progress.update(self._tasks[stage], completed=done, total=total)

    def clear(self, but: Collection[str] = ()) -> None:
        """Remove all bars except those of the stages in ``but``."""
        for stage in [stage for stage in self._tasks if stage not in but]:
            self.progress.remove_task(self._tasks.pop(stage))

    def note(self, stage: str, text: str) -> None:
        """Show a line of text below the bars."""
        self.progress.update(self._tasks[stage], below=text)


class StopRequest:
    """Records a request to stop (SIGINT or SIGTERM); a second request stops immediately."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """Whether to stop after the current step."""
        return self.requested

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Catch SIGINT and SIGTERM inside the block."""
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Not through rich: a signal may arrive while it draws.
        os.write(2, b"\nstopping after the current step; press Ctrl-C again to stop now\n")
