"""Shared code of the service benchmarks: a real server process and its resource usage."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from patchsvdd import PatchSVDD

PROGRAM = (sys.executable, "-c", "from patchsvdd.apps.cli import main; main()")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"}
SIZE = 80


class Server:
    """A ``patchsvdd serve`` process."""

    def __init__(self, data: Path, models: list[Path], *arguments: str, patience: float = 300) -> None:
        self.data, self.log = data, data.parent / f"{data.name}.log"
        begun = self.log.stat().st_size if self.log.exists() else 0
        command = [*PROGRAM, "serve", *map(str, models), "--data", str(data), "--port", "0", *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + patience
        found = None
        while found is None:
            said = self.log.read_bytes()[begun:].replace(b"\n", b"")
            found = re.search(rb"http://\S+?:(\d+)/", said)
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start:\n{self.log.read_text()}")
            time.sleep(0.05)
        self.url = f"http://127.0.0.1:{int(found[1])}"
        while not self.answers():
            time.sleep(0.05)

    def answers(self) -> bool:
        with suppress(OSError):
            return bool(urllib.request.urlopen(f"{self.url}/healthz", timeout=10).status == 200)
        return False

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as answer:
            return json.load(answer)

    def tree(self) -> list[int]:
        """The process and its children."""
        found, waiting = [], [self.process.pid]
        while waiting:
            number = waiting.pop()
            found.append(number)
            with suppress(OSError):
                for task in Path(f"/proc/{number}/task").iterdir():
                    waiting += [int(one) for one in (task / "children").read_text().split()]
        return found

    def resident(self) -> dict[str, float]:
        """Megabytes in memory: of the server, and of its children together."""
        found = [resident(number) for number in self.tree()]
        return {"server": round(found[0], 1), "decoders": round(sum(found[1:]), 1)}

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


def resident(number: int) -> float:
    """Megabytes of a process; 0 if it has ended."""
    with suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{number}/status").read_text())
        return int(found[1]) / 1e3 if found else 0.0
    return 0.0


def images_in(folder: Path, most: int | None = None) -> list[Path]:
    """Image files in a folder and its subfolders."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise SystemExit(f"no images in {folder}")
    return found[:most]


def picture(seed: int) -> bytes:
    """A PNG of a part; every seventh has a spot."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(120, 132, (SIZE, SIZE, 3), dtype=np.uint8)
    pixels[16:64, 16:64] = (60, 90, 60 + seed % 8)
    if seed % 7 == 0:
        top, left = rng.integers(20, 50, 2)
        pixels[top : top + 9, left : left + 9] = (240, 30, 30)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def train(folder: Path, first: int = 1) -> Path:
    """A small model of such parts."""
    good = [np.asarray(Image.open(io.BytesIO(picture(7 * seed + first)))) for seed in range(8)]
    settings: dict[str, Any] = {"image_size": 64, "steps": 20, "batch_size": 1, "stop": "end"}
    settings |= {"aim": "few-alarms", "synthetic_defects": 0}
    detector = PatchSVDD.fit(good, preset="encoder", device="cpu", **settings)
    detector.save(folder)
    return folder


def machine_load() -> float:
    """Load average of the machine over the last minute."""
    return round(os.getloadavg()[0], 2)
