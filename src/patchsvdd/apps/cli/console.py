"""What the commands share: printing, one-line errors, progress bars, stopping on request."""

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
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from patchsvdd.core.errors import ConfigError, Interrupted, PatchSVDDError, with_settings

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, Task, TaskID
    from rich.table import Table

    from patchsvdd.detector.detector import PatchSVDD

P = ParamSpec("P")
R = TypeVar("R")

SILENCE = 60.0
"""Most seconds without a word where progress is written to a file."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else to stdout.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]

EngineOption = Annotated[
    str, typer.Option(help="What computes embeddings on a CPU: auto (the quickest here), torch, openvino, onnxruntime.")
]
PrecisionOption = Annotated[str, typer.Option(help="float32, or float16 (openvino alone; scores change a little).")]
SearchOption = Annotated[
    str, typer.Option(help="How the nearest patches are found: auto, exact, or graph (quick, approximate, on a CPU).")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="On a Ray cluster: auto (the running one, else this machine's cores), local, host:6379 or ray://host:10001.",
    ),
]
RoiOption = Annotated[
    str | None,
    typer.Option(
        metavar="MASK_OR_POLYGONS",
        help="The part that counts: a mask image (white), a .json of polygons, or points 'x,y x,y x,y'; two are a box.",
    ),
]
CriticStepsOption = Annotated[int | None, typer.Option(help="Training steps of the critic.")]
MemoryOption = Annotated[
    str | None, typer.Option(help="Normal patches to keep: a share like 10%, or a number per scale like 5000.")
]
MinAreaOption = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        help="Pass over what is smaller, in pixels of the original images. More than the model's own can only lower "
        "scores: its promise about false alarms holds. For less, calibrate with it.",
    ),
]

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


NAMES = {"upload_bytes": "max_megabytes", "pixels": "max_megapixels"}
"""Settings whose option has another name and another unit."""


def with_options(message: str) -> str:
    """Return a message of the library with settings as options: `image_size` as --image-size."""
    from typer.main import get_current_context  # older versions of Typer use Click's, newer ones their own  # type: ignore[attr-defined]

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
    """The command with errors a user can cause printed as one line, exit code 1."""

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
            say("[red]error:[/] this machine's memory does not suffice; give a smaller --image-size or fewer images")
            raise typer.Exit(1) from None
        except BrokenPipeError:  # "| head": Click ends quietly
            raise
        except OSError as error:  # what no part of the library foresaw
            where = f" ({error.filename})" if error.filename is not None else ""
            say(f"[red]error:[/] {escape(f'{error.strerror or error}{where}')}; check the file and the disk")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            say("[yellow]interrupted[/]")
            raise typer.Exit(INTERRUPTED) from None

    return wrapped


@functools.cache
def stderr() -> Console:
    """Where people read: progress, warnings, errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


@functools.cache
def stdout() -> Console:
    """Where results go."""
    from rich.console import Console

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be UTF-8
    return Console(highlight=False, soft_wrap=True)


def check_share(name: str, value: float) -> None:
    """The option ``name`` is a share; ConfigError if ``value`` is none."""
    if not 0 < value < 1:
        raise ConfigError(f"{name} is a share between 0 and 1 (0.01 is one in a hundred); got {value:g}")


def say(message: str) -> None:
    """A line for people, on stderr; takes rich markup."""
    stderr().print(message)


def escape(text: str) -> str:
    """Text in which square brackets are not markup."""
    from rich.markup import escape as rich_escape

    return rich_escape(text)


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(data, indent=2))  # ASCII: names that are not UTF-8 must not stop it


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """A titled list of facts on stdout."""
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
    """A table on stdout; the first column is left, the others right-aligned."""
    stdout().print(make_table(columns, rows))


def make_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table; the first column is left, the others right-aligned."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def warn_of_skipped(errors: Sequence[object], shown: int = 5) -> None:
    """Say which files were skipped and why."""
    for error in errors[:shown]:
        say(f"[yellow]skipped:[/] {escape(with_options(str(error)))}")
    if len(errors) > shown:
        say(f"[yellow]skipped:[/] and {len(errors) - shown} more")


def load_detector(
    model: Path, device: str, engine: str, precision: str, search: str, min_area: int | None = None
) -> PatchSVDD:
    """The detector of a model folder; words from the command line are checked by the library."""
    from patchsvdd.detector.detector import PatchSVDD

    options: dict[str, Any] = {"engine": engine, "precision": precision, "search": search}
    detector = PatchSVDD.load(model, device, **options)
    return detector if min_area is None else detector.with_min_area(min_area)


@contextmanager
def progress_bar(*columns: str, above: Callable[[], RenderableType | None] = lambda: None) -> Iterator[Progress]:
    """A live bar on stderr with time spent and left; ``columns`` are extra rich text columns.

    The field "below" of a task is shown under all bars: words beside a bar squeeze it in a narrow terminal. In a
    terminal, what ``above`` returns is shown over them, anew at every refresh. Elsewhere, in a file that someone may be
    reading, bars are written once, at the end, and until then a line at times.
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
        spoke = time.monotonic()

        def update(self, task_id: TaskID, **changed: Any) -> None:
            super().update(task_id, **changed)
            if not stderr().is_terminal and time.monotonic() > self.spoke + SILENCE:
                self.spoke = time.monotonic()
                say(next(_in_words(task) for task in self.tasks if task.id == task_id))

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


def _in_words(task: Task) -> str:
    """How far something has come."""
    left = f", {timedelta(seconds=round(task.time_remaining))} left" if task.time_remaining is not None else ""
    total = f" of {task.total:.0f}" if task.total is not None else ""
    return f"{task.description}: {task.completed:.0f}{total}, {timedelta(seconds=round(task.elapsed or 0))} spent{left}"


class StageBars:
    """One progress line per stage of a job, made when the stage first reports."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._tasks: dict[str, Any] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show ``done`` of ``total`` items of ``stage``."""
        if stage not in self._tasks:
            self._tasks[stage] = self.progress.add_task(stage, total=total)
        self.progress.update(self._tasks[stage], completed=done, total=total)

    def clear(self, but: Collection[str] = ()) -> None:
        """Remove every line, for the next of several jobs, ``but`` some."""
        for stage in [stage for stage in self._tasks if stage not in but]:
            self.progress.remove_task(self._tasks.pop(stage))

    def note(self, stage: str, text: str) -> None:
        """Show a line of words below the bars."""
        self.progress.update(self._tasks[stage], below=text)


class StopRequest:
    """Whether the user asked to stop (Ctrl-C, or a polite kill); a second request stops at once."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """Whether to stop at the next good moment."""
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
        os.write(2, b"\nstopping at the next good moment; once more stops at once\n")
