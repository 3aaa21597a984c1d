"""The candidate of a model in a real browser: state, rates, disagreements, switch and roll back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.detector.detector import PatchSVDD
from support.browsing import NEEDS_BROWSER, Seen, Server
from support.serving import copy_model
from support.waiting import wait_until

axe = pytest.importorskip("axe_playwright_python.base", reason="pip install axe-playwright-python")

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

WIDTHS = (320, 390, 820, 1440)
AXE = (Path(axe.__file__).with_name("axe.min.js")).read_text()


@pytest.fixture(scope="module")
def server(washer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with a model and one of the same scores with a much higher threshold."""
    folder = tmp_path_factory.mktemp("candidates")
    detector = PatchSVDD.load(washer, "cpu")
    assert detector.calibration is not None
    detector.calibration = dataclasses.replace(detector.calibration, threshold=1000 * detector.threshold)
    detector.save(folder / "washer-2")
    running = Server(folder / "data", (copy_model(washer, folder / "washer"), folder / "washer-2"))
    running.start()
    yield running
    running.stop()


def section(page: Any) -> Any:
    return page.get_by_role("region", name="Candidate", exact=True)


def open_model(page: Any, server: Server, name: str = "washer") -> Any:
    page.goto("about:blank")
    page.goto(f"{server.url}#/models/{name}")
    found = section(page)
    found.get_by_role("heading", name="Candidate").wait_for()
    return found


def send(server: Server, method: str, path: str, body: Any = None) -> Any:
    assert server.process is not None
    return server.process.client.request(method, f"/v1/models/washer/{path}", json=body)


def axe_findings(page: Any) -> list[str]:
    page.evaluate(AXE)
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = page.evaluate("(tags) => axe.run(document, {runOnly: {type: 'tag', values: tags}})", tags)
    return [f"{one['id']}: {node['html'][:160]}" for one in found["violations"] for node in one["nodes"]]


def test_from_the_first_candidate_to_the_roll_back(page: Any, server: Server, files: dict[str, Path]) -> None:
    candidate = open_model(page, server)
    candidate.get_by_label("Model", exact=True).select_option("washer-2")
    candidate.get_by_role("button", name="Set as candidate").press("Enter")
    candidate.get_by_text("No image was compared yet.").wait_for()
    page.wait_for_function("document.activeElement.id === 'candidate-title'")
    assert server.process is not None
    for name in ("fine", "stain"):
        data = files[name].read_bytes()
        upload = {"file": (f"{name}.png", data)}
        server.process.client.post("/v1/models/washer/inspect", files=upload).raise_for_status()
    wait_until(lambda: send(server, "GET", "shadow").json()["images"] == 2, 120)
    found = send(server, "GET", "shadow").json()
    assert found["only_live"] >= 1
    row = candidate.get_by_role("row", name="washer (live)")  # it comes without a reload
    row.wait_for()
    assert str(found["live_alarms"]["count"]) in row.inner_text()
    candidate.get_by_text("No difference in alarms is shown: it may be chance.").wait_for()
    entry = candidate.locator(".disagreements li").filter(has_text="stain.png")
    entry.wait_for()
    assert "live Anomalous" in entry.inner_text()
    assert "candidate Good" in entry.inner_text()

    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert axe_findings(page) == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1440, "height": 900})

    entry.get_by_role("link").click()
    page.wait_for_url("**#/history/*")
    candidate = open_model(page, server)
    candidate.get_by_role("button", name="Switch to washer-2").press("Enter")
    dialog = page.get_by_role("dialog")
    assert "You can roll back" in dialog.inner_text()
    page.keyboard.press("Escape")
    live = server.get("models/washer")["identity"]
    assert live != server.get("models/washer-2")["identity"], "Escape switches nothing"
    candidate.get_by_role("button", name="Switch to washer-2").click()
    dialog.get_by_role("button", name="Switch").click()
    candidate.get_by_text("washer-2 is live under the name washer.").wait_for()
    assert server.get("models/washer")["identity"] == server.get("models/washer-2")["identity"]
    page.wait_for_function("document.activeElement.id === 'candidate-title'")
    candidate.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    candidate.get_by_text("washer was rolled back").wait_for()
    assert server.get("models/washer")["identity"] == live
    page.goto(f"{server.url}#/audit")
    page.get_by_text("Model rolled back").wait_for()
    page.get_by_text("Candidate set").first.wait_for()


def test_a_changed_candidate_is_not_switched_to(page: Any, server: Server, seen: Seen) -> None:
    seen.away = True  # the browser reports the refusal
    send(server, "PUT", "candidate", {"model": "washer-2"})
    candidate = open_model(page, server)
    detail = "the candidate 'washer-2' was changed in the meantime; look at the comparison again"
    page.route("**/switch", lambda route: route.fulfill(status=409, json={"detail": detail}))
    candidate.get_by_role("button", name="Switch to washer-2").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch").click()
    page.get_by_role("dialog").get_by_text(detail).wait_for()
    page.keyboard.press("Escape")
    candidate.get_by_role("button", name="Remove the candidate").click()
    candidate.get_by_role("button", name="Set as candidate").wait_for()


def test_each_role_sees_what_it_may_do(page: Any, server: Server) -> None:
    send(server, "PUT", "candidate", {"model": "washer-2"})
    me = server.get("me")
    role = "review"
    page.route("**/v1/me", lambda route: route.fulfill(status=200, json={**me, "role": role}))
    candidate = open_model(page, server)
    candidate.get_by_text("inspects in the shadow of").wait_for()
    assert candidate.locator(".actions").get_by_role("button").count() == 0
    role = "inspect"
    page.goto("about:blank")
    page.goto(f"{server.url}#/models/washer")
    page.wait_for_selector(".view-models .meaning strong")
    page.wait_for_load_state("networkidle")
    assert section(page).count() == 0
    send(server, "DELETE", "candidate")


def test_trouble_of_a_candidate_is_shown(page: Any, server: Server) -> None:
    send(server, "PUT", "candidate", {"model": "washer-2"})
    state = send(server, "GET", "candidate").json()
    state["candidate"] |= {"trouble": "the model 'washer-2' is not served", "identity": None}
    page.route("**/v1/models/washer/candidate", lambda route: route.fulfill(status=200, json=state))
    candidate = open_model(page, server)
    candidate.get_by_text("It does not inspect now: The model 'washer-2' is not served.").wait_for()
    assert candidate.get_by_role("button", name="Switch to washer-2").count() == 0
    send(server, "DELETE", "candidate")
