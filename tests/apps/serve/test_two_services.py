"""Two services on one database, each with its own data folder: every job runs once, in its own service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from patchsvdd.detector.model_folder import journal_of, read_index
from support.command_line import run
from support.parts import NO_ESTIMATE
from support.postgres import missing, postgres
from support.serving import Process, copy_model, ended, part, process
from support.waiting import wait_until

pytestmark = pytest.mark.service


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that both services use."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shared' / 'inspections.sqlite'}"
        return
    if why := missing():
        pytest.skip(why)
    with postgres() as server:
        yield server.url


def train(client: httpx.Client, name: str, steps: int) -> str:
    files = [("files", (f"{seed}.png", part(seed))) for seed in range(2)]
    fields = {"name": name, "preset": "encoder", "steps": str(steps), "image_size": "64", **NO_ESTIMATE}
    answer = client.post("/v1/trainings", files=files, data=fields)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def learn(client: httpx.Client, name: str, seed: int) -> str:
    inspected = client.post(f"/v1/models/{name}/inspect", content=part(seed, defect=True)).json()
    client.post(f"/v1/inspections/{inspected['id']}/review", json={"verdict": "false_alarm"})
    answer = client.post(f"/v1/models/{name}/learn", json={"inspections": [inspected["id"]]})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def starts(service: Process, number: str) -> int:
    """How often a service has started the process of a job, by its log."""
    return len(re.findall(rf"job {number} started", service.said().replace("\n", "")))


def test_every_job_runs_once_under_kill_9_too(store: str, stored: Path, tmp_path: Path) -> None:
    """M9. The first service is killed while its training runs and its learning has perhaps begun."""
    models = {name: copy_model(stored, tmp_path / name) for name in ("left", "right")}
    with ExitStack() as stack:
        left, right = (
            stack.enter_context(process(tmp_path / f"data-{name}", str(model), "--store", store))
            for name, model in models.items()
        )
        assert "AVX512" not in left.said() + right.said()
        copied = tmp_path / "copy"
        copied.mkdir()
        (copied / "service-id").write_text((tmp_path / "data-left" / "service-id").read_text())
        refused = run("serve", models["left"], "--data", copied, "--store", store, "--port", 0)
        assert "delete the file 'service-id'" in refused.error()

        of_left = [train(left.client, "one", 40), learn(left.client, "left", 30)]
        of_right = [train(right.client, "two", 2), learn(right.client, "right", 31)]
        for number in of_left:
            told = right.client.get(f"/v1/jobs/{number}").json()
            assert told["here"] is False
            assert right.client.post(f"/v1/jobs/{number}/cancel").status_code == 409
        wait_until(lambda: left.client.get(f"/v1/jobs/{of_left[0]}").json()["stage"] == "training", 300)
        left.kill()
        for number in of_right:
            assert ended(right.client, number, 300)["state"] == "done"
        again = stack.enter_context(process(tmp_path / "data-left", str(models["left"]), "--store", store))
        for number in of_left:
            job = ended(again.client, number, 300)
            assert (job["state"], job["error"]) == ("done", None)
            assert right.client.get(f"/v1/jobs/{number}").json()["state"] == "done"

        assert [starts(right, number) for number in of_right] == [1, 1]
        assert [starts(right, number) for number in of_left] == [0, 0]
        assert [starts(again, number) for number in of_right] == [0, 0]
        assert starts(again, of_left[0]) == 2  # before and after the kill
        assert starts(again, of_left[1]) in (1, 2)
        for name, model in models.items():
            assert [entry["change"] for entry in journal_of(read_index(model))] == ["add"], name
        for service, name in ((again, "one"), (right, "two")):
            assert name in {model["name"] for model in service.client.get("/v1/models").json()["models"]}
