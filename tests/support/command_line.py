"""Helpers for tests of the command line: tiny images, commands to run, readers for their output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from patchsvdd.apps.cli import app, console
from patchsvdd.core.files import LOCK
from support.parts import save_category

BRIEF = ("--steps", "1", "--image-size", "64", "--device", "cpu")
"""The shortest training of an encoder."""
NO_ESTIMATE = ("--aim", "few-alarms", "--synthetic-defects", "0")
"""Options of ``train``: a threshold by rank, and no synthetic defects to estimate what it misses."""
QUICK = ("--preset", "encoder", *BRIEF, *NO_ESTIMATE)
"""The quickest training: an encoder and no critic."""
PLAIN: dict[str, str | None] = {"COLUMNS": "200", "FORCE_COLOR": None, "PY_COLORS": None, "GITHUB_ACTIONS": None}
"""An environment without colours, whatever terminal the tests run in."""


@dataclass(frozen=True)
class Ended:
    """The result of a finished command."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        """The JSON object on stdout; fails unless the exit code is 0."""
        assert self.code == 0, self.stderr
        found = json.loads(self.stdout)
        assert isinstance(found, dict)
        return found

    def error(self) -> str:
        """The error line on stderr; fails unless the exit code is 1 and the line is the last one."""
        assert self.code == 1, (self.code, self.stderr)
        assert "Traceback" not in self.stderr, self.stderr
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        assert len(errors) == 1, self.stderr
        assert lines[-1] == errors[0], self.stderr
        return errors[0]


def run(*arguments: object) -> Ended:
    """Run a command in this process; an exception that it does not handle is raised."""
    console.stdout.cache_clear()  # otherwise a console lives as long as its process
    console.stderr.cache_clear()
    result = CliRunner(env=PLAIN).invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    return Ended(result.exit_code, result.stdout, result.stderr)


def start(*arguments: object, before: str = "", **environment: str) -> subprocess.Popen[str]:
    """Start a command in a new process, after the Python code ``before``."""
    # Tests in the background ignore Ctrl-C, and so would the processes that they start.
    heard = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heard}\n{before}\nfrom patchsvdd.apps.cli import main\nmain()\n"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={name: value for name, value in os.environ.items() if name not in PLAIN} | {"COLUMNS": "80"} | environment,
    )


def finish(process: subprocess.Popen[str], seconds: float = 120) -> Ended:
    """Wait for a started command and return its result."""
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return Ended(process.returncode, stdout, stderr)


def part(seed: int, *, defect: bool = False, size: int = 72) -> tuple[Image.Image, Image.Image]:
    """An image of a part, with a red spot if ``defect``, and the mask of the spot."""
    rng = np.random.default_rng(seed)
    picture = Image.fromarray(rng.integers(120, 132, (size, size, 3), dtype=np.uint8))
    mask = Image.new("L", (size, size))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((12, 12, size - 12, size - 12), fill=(60, 90, 60 + int(rng.integers(8))))
    if defect:
        left, top = (int(corner) for corner in rng.integers(20, size - 30, 2))
        spot = (left, top, left + 9, top + 9)
        draw.rectangle(spot, fill=(240, 30, 30))
        ImageDraw.Draw(mask).rectangle(spot, fill=255)
    return picture, mask


def draw_parts(folder: Path, count: int = 4, *, first: int = 0, defect: bool = False, suffix: str = ".png") -> Path:
    """Write images 000.png, 001.png, … and return ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        part(first + index, defect=defect)[0].save(folder / f"{index:03d}{suffix}")
    return folder


def draw_category(folder: Path, *, first: int = 0, train: int = 6, test: int = 3) -> Path:
    """Write a category in MVTec layout with ``test`` good and ``test`` spotted images, and return ``folder``."""
    spotted = [part(first + 200 + index, defect=True) for index in range(test)]
    spots = [(np.asarray(picture), np.asarray(mask)) for picture, mask in spotted]
    good = [np.asarray(part(first + 100 + index)[0]) for index in range(test)]
    learned = [np.asarray(part(first + index)[0]) for index in range(train)]
    return save_category(folder, learned, good, {"spot": spots})


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of results.jsonl, in the order of the file."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def images(folder: Path) -> list[str]:
    """The sorted names of the images in results.jsonl."""
    return sorted(row["image"] for row in rows(folder))


def files(folder: Path) -> dict[str, bytes]:
    """The content of every file below ``folder``, hidden files included, its lock excluded."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
