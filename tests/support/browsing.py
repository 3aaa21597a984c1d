"""Helpers for tests of the page in a real browser."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.apps.demo.dataset import RenderedImage, Shot, render_image
from support.serving import Process
from support.waiting import wait_until

CHROMIUM = "/usr/bin/chromium"
SIZE = 96
SECONDS = 120_000
"""Milliseconds that the page has for what requires computing; the machine may be busy."""

READY = ".result[data-state=ready]:not(.previous)"
"""Matches when picture, map and verdict of the current image are on screen."""

NEEDS_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="no Chromium: apt-get install chromium"),
]
"""Marks of a module of page tests."""


def until(page: Any, condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait for a condition that depends on handlers of the page's events or requests.

    Playwright runs these handlers only inside its own calls: ``wait_until`` alone would wait for them in vain.
    """

    def holds() -> Any:
        page.wait_for_timeout(20)
        return condition()

    wait_until(holds, seconds)


def drawn(split: str, defect: str, index: int) -> RenderedImage:
    return render_image(Shot(0, "washer", split, defect, index), SIZE)


@dataclass
class Server:
    """A service process that can be stopped and started again at the same port."""

    data: Path
    models: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()
    port: int = 0
    process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        options = ("--engine", "torch", "--search", "exact", "--port", str(self.port), *self.options)
        self.process = Process(self.data, *map(str, self.models), *options)
        self.port = self.process.port

    def stop(self) -> None:
        assert self.process is not None
        self.process.stop()

    def get(self, path: str) -> Any:
        assert self.process is not None
        return self.process.client.get(f"/v1/{path}").raise_for_status().json()


@dataclass
class Seen:
    """What a page said and asked for."""

    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    away: bool = False
    """Whether the service is stopped on purpose."""

    def watch(self, page: Any) -> None:
        page.on("console", lambda said: self.add(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.add(str(error)))
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2] if "://" in request.url else ""))

    def add(self, words: str) -> None:
        if not self.away:
            self.errors.append(words)


def inspect(page: Any, server: Server, *images: Path) -> None:
    """Give images to the page and wait for all verdicts."""
    page.goto(f"{server.url}#/inspect")
    page.wait_for_selector("#files", state="attached")
    if not page.locator("#model").input_value():  # several models, and none chosen yet
        page.locator("#model").select_option("washer")
    before = page.locator(".strip .thumb").count()
    page.set_input_files("#files", [str(image) for image in images])
    page.wait_for_selector(f".strip li:nth-child({before + len(images)})")
    page.wait_for_selector(READY)


def score_of(page: Any) -> float:
    """The score among the raw values."""
    return float(str(page.locator(".raw dd").first.text_content()))


def look(page: Any) -> NDArray[np.float32]:
    """Pixels of the stage."""
    with Image.open(io.BytesIO(page.locator(".canvas").screenshot())) as shot:
        return np.asarray(shot.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX), dtype=np.float32)


def set_slider(page: Any, selector: str, value: int) -> None:
    page.eval_on_selector(selector, "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", value)


def names_of_controls(page: Any) -> list[tuple[str, str]]:
    """Role and name of all that can be operated, as a screen reader is told."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    roles = {"button", "link", "textbox", "slider", "checkbox", "combobox", "radio", "spinbutton", "searchbox", "Date"}
    found = []
    for node in tree["nodes"]:
        role = node.get("role", {}).get("value")
        if role in roles and not node.get("ignored"):
            found.append((role, node.get("name", {}).get("value", "").strip()))
    return found
