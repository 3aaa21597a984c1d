"""The routes of a running line: its state, what people ask of it, its parts, figures and metrics."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from patchsvdd.apps.line.signals import FaultCode
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.core.errors import ConfigError
from support.line import SmallLine, lined, result
from support.serving import Running, part, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service

GOOD, BAD = part(0), part(10, defect=True)
IMAGES = ({"top": GOOD, "side": GOOD}, {"top": GOOD, "side": BAD}, {"top": GOOD, "side": None})


@pytest.fixture(scope="module")
def server(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(settings(tmp_path_factory.mktemp("lined") / "data", stored, shift_starts=("00:00",))) as found:
        yield found


@pytest.fixture
def line(server: Running, request: pytest.FixtureRequest) -> Iterator[SmallLine]:
    name = re.sub(r"\W", "-", request.node.name)[:60]
    with lined(server.service, "part", IMAGES, name, ("top", "side")) as found:
        yield found


def get(server: Running, path: str, **query: Any) -> Any:
    return server.client.get(f"/v1/{path}", params=query).raise_for_status().json()


def post(server: Running, what: str, **body: Any) -> httpx.Response:
    return server.client.post(f"/v1/line/{what}", json=body or None)


def has_answered(server: Running, sequence: int) -> bool:
    state = get(server, "line")
    return state["state"] == "ready" and state["last"] is not None and state["last"]["sequence"] == sequence


def entries(server: Running, line: SmallLine) -> list[tuple[str, dict[str, Any]]]:
    """What the audit chain says about the line, oldest first."""
    found = get(server, "audit", action="line", limit=100)["entries"]
    assert all(one["who"]["kind"] == "local" for one in found)
    return [(one["action"], one["details"]) for one in reversed(found) if one["subject"]["id"] == line.name]


def test_without_a_line_its_routes_answer_404(server: Running) -> None:
    assert get(server, "me")["line"] is False
    for path in ("line", "line/live/top", "line/statistics", "line/heat/top"):
        answer = server.client.get(f"/v1/{path}")
        assert answer.status_code == 404
        assert "runs no line; `patchsvdd run LINE.toml`" in answer.json()["detail"]
    for what in ("trigger", "acknowledge", "pause", "resume"):
        assert post(server, what).status_code == 404
    assert get(server, "parts") == {"parts": [], "next": None}
    assert "patchsvdd_line_up" not in server.client.get("/metrics").text


def test_a_triggered_part_is_inspected_stored_and_answered(server: Running, line: SmallLine) -> None:
    assert get(server, "me")["line"] is True
    assert get(server, "line")["last"] is None
    for number in range(3):
        began = post(server, "trigger", part_number=f"A-{number}", product="bolt", trigger_id=number + 1)
        assert began.status_code == 200, began.text
        wait_until(partial(has_answered, server, number + 1))
    parts = get(server, "parts", line=line.name)["parts"]
    assert [(one["sequence"], one["verdict"]) for one in parts] == [(3, "incomplete"), (2, "anomalous"), (1, "good")]
    incomplete, anomalous, _ = parts
    assert (incomplete["missing"], incomplete["reason"]) == (["side"], "no image of: side")
    assert (anomalous["part_number"], anomalous["product"], anomalous["trigger_id"]) == ("A-1", "bolt", 2)
    assert {one["view"]: one["verdict"] for one in anomalous["views"]} == {"top": "good", "side": "anomalous"}
    assert {one["view"] for one in anomalous["regions"]} == {"side"}
    assert anomalous["score"] > anomalous["threshold"] == 1
    for view in anomalous["views"]:
        assert (view["image_size"], view["has_picture"]) == ([64, 64], True)
        stored = get(server, f"inspections/{view['inspection']}")
        assert (stored["line"], stored["score"], stored["verdict"]) == (line.name, view["score"], view["verdict"])
    assert get(server, f"parts/{anomalous['id']}") == anomalous
    state = get(server, "line")
    assert state["last"]["id"] == incomplete["id"]
    assert [one["frames"] for one in state["sources"]] == [3, 2]
    assert [facts for action, facts in entries(server, line) if action == "line.triggered"] == [
        {"part_number": f"A-{number}", "product": "bolt", "trigger_id": number + 1} for number in range(3)
    ]


def test_parts_are_listed_by_page(server: Running, line: SmallLine) -> None:
    for _ in range(4):
        line.part(part_number="B-7")
    first = get(server, "parts", line=line.name, limit=3)
    rest = get(server, "parts", line=line.name, limit=3, before=first["next"])
    assert [one["sequence"] for one in (*first["parts"], *rest["parts"])] == [4, 3, 2, 1]
    assert rest["next"] is None
    assert [one["sequence"] for one in get(server, "parts", line=line.name, verdict="anomalous")["parts"]] == [2]
    assert len(get(server, "parts", part_number="B-7")["parts"]) == 4
    assert server.client.get(f"/v1/parts/{'0' * 24}").status_code == 404


def test_a_part_is_triggered_only_when_the_line_is_ready(server: Running, line: SmallLine) -> None:
    line.be("paused")
    refused = post(server, "trigger")
    assert (refused.status_code, "its state is 'paused'" in refused.json()["detail"]) == (409, True)
    line.be("ready")
    refused = post(server, "trigger", product="nut")
    assert (refused.status_code, "its products are: washer, bolt" in refused.json()["detail"]) == (422, True)
    line.products = ["washer", "bolt", "nut"]  # the line itself knows better
    line._next = lambda *_: (_ for _ in ()).throw(ConfigError("no model"))  # type: ignore[method-assign]
    assert post(server, "trigger", product="nut").status_code == 409
    assert line.state()["sequence"] == 0


def test_pause_resume_and_acknowledge_are_recorded(server: Running, line: SmallLine) -> None:
    assert [post(server, what).json()["state"] for what in ("pause", "pause", "resume", "resume")] == [
        *("paused", "paused", "ready", "ready")
    ]
    line.part(reason="the model failed")
    line.fail(FaultCode.SOURCE, "camera-top does not answer")
    state = get(server, "line")
    assert (state["state"], state["fault"]["name"], state["fault"]["code"]) == ("fault", "SOURCE", 2)
    answer = post(server, "acknowledge").json()
    assert (answer["state"], answer["fault"]) == ("ready", None)
    assert [one.kind for one in line.acknowledged] == ["local"]
    (one,) = get(server, "parts", line=line.name)["parts"]
    assert (one["verdict"], one["acknowledged"]["by"]) == ("error", "local")
    post(server, "acknowledge")  # nothing is left to acknowledge
    fault = {"fault": "SOURCE", "text": "camera-top does not answer", "parts": 1}
    assert entries(server, line) == [("line.paused", {}), ("line.resumed", {}), ("line.acknowledged", fault)]
    assert get(server, "audit/verification")["whole"]


def test_what_cannot_be_recorded_is_not_done(server: Running, line: SmallLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("the disk is full")

    for name in ("record", "acknowledge_parts"):
        monkeypatch.setattr(server.service.store, name, unavailable)
    line.fail(FaultCode.STORE, "the disk is full")
    assert post(server, "acknowledge").status_code == 503
    assert post(server, "pause").status_code == 503
    assert line.state()["fault"] is not None
    assert line.acknowledged == []
    assert get(server, "line")["fault"]["name"] == "STORE"


def test_the_latest_image_of_a_view(server: Running, line: SmallLine) -> None:
    assert server.client.get("/v1/line/live/top").status_code == 404
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "JPEG")
    line.show("top", file.getvalue())
    answer = server.client.get("/v1/line/live/top")
    assert (answer.headers["content-type"], answer.content) == ("image/jpeg", file.getvalue())
    assert answer.headers["cache-control"] == "no-store"


def test_statistics_of_the_shift_and_of_hours(server: Running, line: SmallLine) -> None:
    for _ in range(6):
        line.part()
    found = get(server, "line/statistics")
    assert found["counts"] == {"good": 2, "anomalous": 2, "incomplete": 2, "error": 0}
    assert (found["parts"], found["yield"], found["centre"]) == (6, 0.5, 0.5)
    assert found["since"] == get(server, "line/statistics", shift="current")["since"]
    assert sum(one["size"] for one in found["buckets"]) == 4
    assert get(server, "line/statistics", shift="previous")["parts"] == 0
    hour = get(server, "line/statistics", hours=1)
    assert (hour["parts"], hour["width"]) == (6, 300)
    assert server.client.get("/v1/line/statistics", params={"hours": 0}).status_code == 422


def test_where_defects_occurred(server: Running, line: SmallLine) -> None:
    for _ in range(3):
        line.part()

    def heat(view: str, **query: Any) -> Any:
        answer = server.client.get(f"/v1/line/heat/{view}", params=query).raise_for_status()
        assert answer.headers["content-type"] == "image/png"
        with Image.open(io.BytesIO(answer.content)) as image:
            return np.asarray(image.convert("RGBA"))[..., 3]

    (anomalous,) = get(server, "parts", line=line.name, verdict="anomalous")["parts"]
    (inspection,) = [one["inspection"] for one in anomalous["views"] if one["verdict"] == "anomalous"]
    answer = server.client.get(f"/v1/inspections/{inspection}/map", params={"format": "npy"})
    threshold = get(server, f"inspections/{inspection}")["threshold"]
    assert np.array_equal(heat("side") > 0, np.load(io.BytesIO(answer.content)) > threshold)
    assert heat("top").max() == 0
    assert heat("side", since=time.time() + 60).max() == 0
    assert "its views are: top, side" in server.client.get("/v1/line/heat/back").json()["detail"]


def test_metrics_of_the_line(server: Running, line: SmallLine) -> None:
    for _ in range(3):
        line.part()
    line.sources[1] |= {"state": "failed", "reason": "no cable", "lost": 4, "dropped": 2}
    line.buses[0]["trouble"] = "the port is taken"
    text = server.client.get("/metrics").text

    def value(name: str, **labels: str) -> float:
        (found,) = [
            one.rsplit(" ", 1)[1]
            for one in text.splitlines()
            if one.startswith(f"{name}{{") and all(f'{key}="{word}"' in one for key, word in labels.items())
        ]
        return float(found)

    for verdict in ("good", "anomalous", "incomplete"):
        assert value("patchsvdd_parts_total", line=line.name, verdict=verdict) == 1
    assert value("patchsvdd_part_seconds_count", line=line.name) == 3
    assert value("patchsvdd_line_up", line=line.name) == 1
    assert value("patchsvdd_source_up", source="camera-top") == 1
    assert value("patchsvdd_source_up", source="camera-side") == 0
    assert value("patchsvdd_source_frames_total", source="camera-top") == 3
    assert value("patchsvdd_source_lost_total", source="camera-side") == 4
    assert value("patchsvdd_source_dropped_total", source="camera-side") == 2
    assert value("patchsvdd_bus_up", kind="opcua") == 0
    assert value("patchsvdd_bus_up", kind="modbus") == 1
    assert value("patchsvdd_bus_clients", kind="opcua") == 1


def test_a_part_outlives_its_images(server: Running, line: SmallLine) -> None:
    one = result(time.time(), 7)
    server.service.store_part(line.name, one)
    assert get(server, f"parts/{one.id}")["views"] == []
    line.part()
    (latest,) = get(server, "parts", line=line.name, limit=1)["parts"]
    number = latest["views"][0]["inspection"]
    store = server.service.store
    store.write(lambda connection: connection.exec_driver_sql(f"DELETE FROM inspections WHERE id = '{number}'"))
    (view, *_) = get(server, f"parts/{latest['id']}")["views"]
    assert (view["inspection"], view["image_size"], view["has_picture"]) == (number, None, False)
