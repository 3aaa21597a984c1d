"""Fixtures of the page's tests: a browser, a small model, a service.

A test module uses them with ``pytest_plugins = ("support.browser_fixtures",)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.demo.dataset import RenderedImage
from patchsvdd.core.scales import Scale
from patchsvdd.detector.detector import PatchSVDD
from support.browsing import CHROMIUM, SECONDS, SIZE, Seen, Server, drawn
from support.serving import copy_model, png


@pytest.fixture(scope="session")
def pictures() -> dict[str, RenderedImage]:
    found = {f"good{index}": drawn("train", "good", index) for index in range(10)}
    return {**found, "stain": drawn("test", "stain", 0), "fine": drawn("test", "good", 1)}


@pytest.fixture(scope="session")
def files(pictures: dict[str, RenderedImage], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pictures")
    found = {}
    for name, picture in pictures.items():
        found[name] = folder / f"{name}.png"
        found[name].write_bytes(png(picture.image))
    return found


@pytest.fixture(scope="session")
def washer(pictures: dict[str, RenderedImage], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model; tests that change it copy it first."""
    folder = tmp_path_factory.mktemp("washer") / "washer"
    good = [pictures[f"good{index}"].image for index in range(10)]
    scales = (Scale(32, 8), Scale(64, 16))
    settings: dict[str, Any] = {"image_size": SIZE, "steps": 2, "batch_size": 1, "pairs_per_crop": 16, "crop_size": 96}
    detector = PatchSVDD.fit(
        good,
        preset="encoder",
        device="cpu",
        stop="end",
        scales=scales,
        search="exact",
        synthetic_defects=24,
        **settings,
    )
    detector.save(folder)
    return folder


@pytest.fixture(scope="module")
def server(washer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service process that the tests of a module share, with its own copy of the model."""
    folder = tmp_path_factory.mktemp("service")
    running = Server(folder / "data", (copy_model(washer, folder / "washer"),))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; closed after a module, because Playwright keeps an event loop running in this thread."""
    arguments = ["--no-sandbox", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def page(browser: Any, server: Server, seen: Seen) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(SECONDS)
    seen.watch(opened)
    yield opened
    context.close()
    assert seen.errors == []  # a violation of the content security policy is among them
    assert seen.hosts <= {f"127.0.0.1:{server.port}", ""}
