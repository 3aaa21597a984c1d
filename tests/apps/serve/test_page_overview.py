"""The overview and the API's documentation in a real browser."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.serve.auth import add_key
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Store
from support.browsing import NEEDS_BROWSER, Seen, Server
from support.waiting import wait_until

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

WIDTHS = (1920, 1440, 820, 390, 320)


@pytest.fixture(scope="module")
def used(server: Server, files: dict[str, Path]) -> Server:
    """The service with three inspections, at two stations."""
    assert server.process is not None
    for name in ("stain", "fine", "good1"):
        with files[name].open("rb") as file:
            server.process.client.post("/v1/models/washer/inspect", files={"file": (f"{name}.png", file)})
    with sqlite3.connect(server.data / "inspections.sqlite") as database:
        database.execute("UPDATE inspections SET line = 'L1', station = 'S' || (verdict = 'good'), draw = 0.5")
    return server


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A service that needs a key and has no model, and the key of an administrator."""
    data = tmp_path_factory.mktemp("bare") / "data"
    store = Store(Settings((), data).url)
    key = add_key(store, "boss", "admin")
    store.close()
    server = Server(data, options=("--require-key",))
    server.start()
    yield server, key
    server.stop()


@pytest.fixture
def alone(browser: Any, bare: tuple[Server, str]) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(120_000)
    yield opened
    context.close()


def tile(page: Any, name: str) -> str:
    found: str = page.locator(f".over-tile:has(.name:text-is('{name}')) strong").inner_text()
    return found


def axe(page: Any) -> list[str]:
    api = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    return [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in api.Axe().run(page).response["violations"]]


def sideways(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def test_it_is_the_first_view_and_has_the_figures(page: Any, used: Server) -> None:
    page.goto(used.url)
    page.wait_for_selector(".over-tile")
    assert page.evaluate("location.hash") == "#/overview"
    said = used.get("overview")
    assert said["anomalous"] >= 1
    assert tile(page, "Inspected") == str(said["inspected"])
    assert tile(page, "Alarms") == str(said["anomalous"])
    assert tile(page, "Yield").startswith(f"{100 * said['yield']:.0f}")
    assert page.locator(".over-thumbs li").count() == said["anomalous"]
    assert page.locator(".over-models li").inner_text().startswith("washer")
    assert page.locator(".over-stations tbody tr").count() == 2
    assert page.locator(".over-chart svg[role=img]").count() == 2
    assert "Free" in page.locator(".over-disk").inner_text()
    page.locator(".over-thumbs a").first.click()
    page.wait_for_selector("dialog[open]")
    assert "#/history/" in page.evaluate("location.hash")


def test_another_period_is_chosen_and_kept(page: Any, used: Server) -> None:
    page.goto(used.url)
    page.wait_for_selector(".over-tile")
    page.get_by_role("button", name="7 days").click()
    wait_until(lambda: page.locator(".over-chart h2").inner_text() == "The last 7 days")
    assert page.get_by_role("button", name="7 days").get_attribute("aria-pressed") == "true"
    page.reload()
    page.wait_for_selector(".over-tile")
    assert page.locator(".over-chart h2").inner_text() == "The last 7 days"


def test_it_is_refreshed_and_the_focus_stays(page: Any, used: Server, files: dict[str, Path]) -> None:
    page.clock.install()
    page.goto(used.url)
    page.wait_for_selector(".over-tile")
    before = int(tile(page, "Inspected"))
    page.locator(".over-models a").focus()
    assert used.process is not None
    with files["good2"].open("rb") as file:
        used.process.client.post("/v1/models/washer/inspect", files={"file": ("good2.png", file)})
    page.clock.run_for(11_000)
    wait_until(lambda: tile(page, "Inspected") == str(before + 1))
    assert page.evaluate("document.activeElement.textContent") == "washer"


def test_the_shift_report_is_downloaded(page: Any, used: Server) -> None:
    page.goto(used.url)
    page.wait_for_selector(".over-tile")
    with page.expect_download() as begun:
        page.get_by_role("link", name="Shift report", exact=True).click()
    assert begun.value.suggested_filename.startswith("shift-")
    assert "Shift report" in Path(begun.value.path()).read_text()


def test_misses_are_shown_beside_false_alarms(page: Any, used: Server) -> None:
    sample = used.get("samples?model=washer")
    assert sample["due"] >= 1
    page.goto(used.url)
    page.wait_for_selector(".over-quality")
    assert "no sampled part reviewed yet" in page.locator(".over-quality").inner_text()
    assert used.process is not None
    number = sample["inspections"][0]["id"]
    answer = used.process.client.post(f"/v1/inspections/{number}/review", json={"verdict": "confirmed_good"})
    assert answer.status_code == 200
    page.reload()
    page.wait_for_selector(".over-quality")
    assert re.search(r"0 in 1 sampled part \(0 % to 9\d", page.locator(".over-quality").inner_text())
    page.get_by_label("Good parts of washer to review per day").fill("0")
    page.keyboard.press("Tab")
    wait_until(lambda: used.get("samples?model=washer")["per_day"] == 0)
    used.process.client.put("/v1/samples/washer", json={"per_day": 5})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_and_axe_finds_nothing(
    browser: Any, used: Server, scheme: str, bare: tuple[Server, str]
) -> None:
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    seen = Seen()
    seen.watch(page)
    for path, ready in (("", ".over-tile"), ("docs", ".route")):
        page.goto(used.url + path)
        page.wait_for_selector(ready, timeout=120_000)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            wait_until(lambda: sideways(page) <= 0, 20)
            if width in (1440, 390):
                assert axe(page) == [], (path, width)
    context.close()
    assert seen.errors == []


def test_a_newcomer_is_told_what_to_do(alone: Any, bare: tuple[Server, str], page: Any, used: Server) -> None:
    server, key = bare
    alone.goto(server.url)
    alone.fill("input[type=password]", key)
    alone.keyboard.press("Enter")
    alone.wait_for_selector(".empty h2")
    assert alone.locator(".empty h2").inner_text() == "Train a model from pictures of good parts"
    assert alone.get_by_role("link", name="Train a model").get_attribute("href") == "#/train"
    assert axe(alone) == []
    empty = {**used.get("overview"), "empty": True, "inspected": 0, "alarms": [], "stations": []}
    page.route("**/v1/overview*", lambda route: route.fulfill(json=empty))
    page.goto(used.url)
    page.wait_for_selector(".empty .command")
    assert "inspect" in page.locator(".empty .command").inner_text()
    assert page.locator(".over-tile").count() == 0


# The API's documentation (L14)


def test_docs_have_every_route_with_a_command(page: Any, used: Server) -> None:
    page.goto(used.url)
    page.wait_for_selector(".over-tile")
    page.get_by_role("link", name="API", exact=True).click()
    page.wait_for_selector(".route")
    assert page.evaluate("location.pathname") == "/docs"
    assert used.process is not None
    described = used.process.client.get("/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    shown = page.eval_on_selector_all(
        ".route h3", "all => all.map((one) => [...one.children].map((c) => c.textContent).join(' '))"
    )
    assert set(shown) == routes
    commands = page.locator(".route .command code").all_inner_texts()
    assert len(commands) == len(routes)
    assert all(one.startswith("curl ") and used.url in one for one in commands)
    assert not [one for one in commands if "{" in one.split(" -d ")[0]]
    page.fill("#search", "per_day")
    page.fill("#search", "heat maps transparent")
    assert page.locator(".route:visible h3").all_inner_texts() == ["GET\n/v1/reports/inspections.zip"]
    page.fill("#search", "no such thing")
    assert page.get_by_text("No route matches.").is_visible()


def test_docs_need_the_key_that_the_api_needs(alone: Any, bare: tuple[Server, str]) -> None:
    server, key = bare
    assert server.process is not None
    assert "/v1/" not in server.process.client.get("/docs").text
    alone.goto(f"{server.url}docs")
    alone.wait_for_url(f"{server.url}*")
    alone.wait_for_selector("input[type=password]")
    alone.fill("input[type=password]", key)
    alone.keyboard.press("Enter")
    alone.wait_for_selector(".empty")
    alone.goto(f"{server.url}docs")
    alone.wait_for_selector(".route")


def test_the_overview_waits_for_a_service_that_is_away(page: Any, used: Server, seen: Seen) -> None:
    page.clock.install()
    page.goto(used.url)
    page.wait_for_selector(".over-tile")
    seen.away = True
    page.route("**/v1/overview*", lambda route: route.abort())
    page.clock.run_for(11_000)
    said = page.locator(".over-title .summary")
    wait_until(lambda: "does not respond" in said.inner_text())
    assert page.locator(".over-tile").count() == 6
    page.unroute("**/v1/overview*")
    page.clock.run_for(11_000)
    wait_until(lambda: said.inner_text().startswith("As of"))
    seen.away = False
