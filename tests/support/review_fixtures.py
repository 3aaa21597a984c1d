"""Fixtures of the tests of the view Review: ``bench`` and ``open_page``.

A test module uses them with ``pytest_plugins = ("support.browser_fixtures", "support.review_fixtures")``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browsing import SECONDS
from support.coded_alarms import Slow
from support.review_bench import MODELS, Bench, OpenPage
from support.serving import copy_model, running, settings


@pytest.fixture(scope="module")
def bench(washer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("review")
    models = [f"line-{number}" for number in range(MODELS)]
    copies = [copy_model(washer, folder / name) for name in models]
    slow: Slow | None = None

    def around(app: Any) -> Slow:
        nonlocal slow
        slow = Slow(app)
        return slow

    with running(settings(folder / "data", *copies), around) as server:
        assert slow is not None
        yield Bench(server, slow, models)


@pytest.fixture
def open_page(browser: Any, bench: Bench) -> Iterator[OpenPage]:
    """Open pages, each in a browser profile of its own."""
    contexts = []

    def make(view: str = "", model: str | None = None, **how: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **how})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SECONDS)
        if model is not None:  # the model that is chosen at the start
            context.add_init_script(f"localStorage.setItem('patchsvdd.model', '{model}')")
        page.goto(f"{bench.url}{view}")
        return page

    yield make
    bench.slow.most = 0.0
    bench.slow.late.clear()
    for context in contexts:
        context.close()
