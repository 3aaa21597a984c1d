"""Teaching the service's models the defects that people confirmed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from patchsvdd.apps.serve.job_process import Progress
from patchsvdd.apps.serve.job_process import teach as teach_job
from patchsvdd.detector.model_folder import journal_of, read_index
from support.confirmed_defects import draw_defect
from support.serving import Running, copy_model, part, png, running, settings

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def line(teachable: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a model that can be taught. Tests undo what they teach."""
    folder = tmp_path_factory.mktemp("teaching")
    with running(settings(folder / "data", copy_model(teachable, folder / "part"))) as server:
        yield server


def confirm(server: Running, seed: int, kind: str, drawn: str | None = None) -> str:
    """Inspect a part with a defect, mark it if ``drawn`` names the kind, and confirm it; returns the inspection."""
    pixels, mask = draw_defect(seed, kind)
    number: str = server.inspect("part", png(pixels)).json()["id"]
    if drawn is not None:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        box = [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
        shapes = [{"type": "box", "kind": drawn, "box": box}]
        assert server.client.put(f"/v1/inspections/{number}/annotation", json={"shapes": shapes}).is_success
    assert server.client.post(f"/v1/inspections/{number}/review", json={"verdict": "true_defect"}).is_success
    return number


def teach(server: Running, **body: Any) -> dict[str, Any]:
    """Teach, and return the job when it is done."""
    answer = server.client.post("/v1/models/part/teach", json=body)
    assert answer.status_code == 202, answer.text
    job = server.job(answer.json()["id"])
    assert job["state"] == "done", job
    return job


def test_what_is_taught_is_found_named_and_undone(line: Running) -> None:
    new = png(draw_defect(202, "scratch")[0])
    before = line.inspect("part", new).json()
    numbers = [confirm(line, 100 + seed, "scratch", "long scratch") for seed in range(3)]
    plain = confirm(line, 110, "dent")
    preview = teach(line, kind="dent", preview=True)
    assert preview["kind"] == "teach-preview"
    result = preview["result"]
    assert result["kinds"] == {"dent": 1, "long scratch": 3}
    marked = {one["name"].split(".")[0]: one["has_mask"] for one in result["taught"]}
    assert marked == {**dict.fromkeys(numbers, True), plain: False}
    assert result["alarms"] <= result["alarms_before"]
    scored = {name.split(".")[0]: one for name, one in result["scores"].items()}
    assert set(scored) == {*numbers, plain, before["id"]}
    assert line.inspect("part", new).json()["identity"] == before["identity"], "a preview changes nothing"

    taught = teach(line, kind="dent")
    assert sorted(taught["inspections"]) == sorted([*numbers, plain])
    after = line.inspect("part", new).json()
    assert after["identity"] == taught["result"]["identity"] != before["identity"]
    assert after["score"] == pytest.approx(scored[before["id"]]["score"], rel=1e-3)
    assert after["score"] > before["score"]
    assert after["verdict"] == "anomalous"
    assert after["regions"][0]["kind"] == "long scratch"
    assert after["regions"][0]["like"].startswith("like long scratch, 3 confirmed in ")
    stored = line.client.get(f"/v1/inspections/{after['id']}").json()
    assert stored["regions"][0]["like"] == after["regions"][0]["like"]
    assert line.client.get(f"/v1/inspections/{plain}").json()["learned_by"] == taught["id"]
    change = line.client.get("/v1/models/part").json()["last_change"]
    assert (change["kind"], change["images"]) == ("teaching", 4)
    nothing = line.client.post("/v1/models/part/teach")
    assert nothing.status_code == 409
    assert nothing.json()["detail"] == "there are no reviewed defects left to teach"

    entries = line.client.get("/v1/audit", params={"action": "teach"}).json()["entries"]
    assert [entry["action"] for entry in entries] == ["teach.done", "teach.started"]
    assert sorted(entries[1]["details"]["kinds"].values()) == ["dent", *["long scratch"] * 3]

    changes = line.client.get("/v1/reports/shift", params={"format": "json"}).json()["changes"]
    assert ("defects taught (4 images)", "local") in {(one["change"], one["by"]) for one in changes}

    undone = line.job(line.client.post("/v1/models/part/undo").json()["id"])
    assert undone["state"] == "done", undone
    again = line.inspect("part", new).json()
    assert (again["score"], again["identity"]) == (before["score"], before["identity"])
    for number in (*numbers, plain):
        assert line.client.get(f"/v1/inspections/{number}").json()["learned_by"] is None


def test_a_job_that_is_repeated_after_a_crash_teaches_once(teachable: Path, tmp_path: Path) -> None:
    model = copy_model(teachable, tmp_path / "part")
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    names = [f"{number:024x}.png" for number in range(3)]
    for seed, name in enumerate(names):
        (tmp_path / "images" / name).write_bytes(png(draw_defect(100 + seed, "scratch")[0]))
    order: dict[str, Any] = {"model": str(model), "device": "cpu"}
    order |= {"images": str(tmp_path / "images"), "masks": str(tmp_path / "masks")}
    order |= {"kinds": dict.fromkeys(names, "scratch"), "inspections": [Path(name).stem for name in names]}
    progress = Progress(threading.Event())
    first = teach_job({**order, "again": False}, progress)
    again = teach_job({**order, "again": True}, progress)
    assert again == {"change": "teach", "images": names, "identity": first["identity"], "already": True}
    assert len(journal_of(read_index(model))) == 1


def refusal(server: Running, **body: Any) -> httpx.Response:
    return server.client.post("/v1/models/part/teach", json=body)


def test_only_confirmed_defects_are_taught(line: Running) -> None:
    number = line.inspect("part", png(draw_defect(300, "dent")[0])).json()["id"]
    refused = refusal(line, inspections=[number])
    assert refused.status_code == 409
    assert "is not a reviewed defect of 'part': review it first" in refused.json()["detail"]
    assert refusal(line, kind="").status_code == 422
    assert refusal(line, kind="x" * 101).status_code == 422
    assert refusal(line, inspections=["0" * 24]).status_code == 404


def test_a_model_without_critic_says_why_it_cannot_be_taught(stored: Path, tmp_path: Path) -> None:
    with running(settings(tmp_path / "data", copy_model(stored, tmp_path / "part"))) as server:
        number = server.inspect("part", part(30, defect=True)).json()["id"]
        server.client.post(f"/v1/inspections/{number}/review", json={"verdict": "true_defect"})
        refused = refusal(server)
        assert refused.status_code == 409
        assert refused.json()["detail"].startswith("'part' has no critic")
