"""Golden images on the page: the results of the check on Models, and a failed one on Inspect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.golden_images import FOLDER, add_golden_images
from support.browsing import NEEDS_BROWSER, Server
from support.serving import copy_model

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)


@pytest.fixture(scope="module")
def server(washer: Path, files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service whose model has a golden image."""
    folder = tmp_path_factory.mktemp("golden")
    model = copy_model(washer, folder / "washer")
    detector = PatchSVDD.load(model, "cpu", engine="torch", search="exact")
    add_golden_images(model, detector, [files["fine"]], detector.inspect(files["fine"]).verdict)
    running = Server(folder / "data", (model,))
    running.start()
    yield running
    running.stop()


def test_a_failed_check_is_shown_where_it_matters(page: Any, server: Server) -> None:
    page.goto(f"{server.url}#/models")
    section = page.get_by_role("region", name="Golden images")
    section.get_by_text("The golden image is judged as expected.").wait_for()
    (server.models[0] / FOLDER / "fine.png").unlink()
    section.get_by_role("button", name="Check now").click()
    section.get_by_text("inspects nothing until it passes: Golden image 'fine.png' cannot be read").wait_for()
    page.goto(f"{server.url}#/inspect")
    page.get_by_text("This model failed its check").wait_for()
    for width in (320, 820, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto(f"{server.url}#/audit")
    page.get_by_text("Model checked").wait_for()
