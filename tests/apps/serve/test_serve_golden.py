"""Golden images in the service: a model that fails its check gives no verdicts until it passes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from patchsvdd.apps.serve import golden_checks
from patchsvdd.apps.serve.golden_checks import shift_began
from patchsvdd.core.errors import ConfigError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.golden_images import FOLDER, add_golden_images, remove_golden_images
from support.parts import draw_part, save_picture
from support.serving import Running, copy_model, part, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def golden(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a good and an anomalous golden image."""
    folder = tmp_path_factory.mktemp("golden")
    model = copy_model(stored, folder / "part")
    detector = PatchSVDD.load(model, "cpu")
    for verdict, picture in (("good", draw_part(0)), ("anomalous", draw_part(30, defect=True))):
        path = folder / f"{verdict}.png"
        save_picture(path, picture)
        add_golden_images(model, detector, [path], verdict)
    return model


@pytest.fixture(scope="module")
def server(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(settings(tmp_path_factory.mktemp("service") / "data", golden)) as found:
        yield found


def broken(model: Path) -> bytes:
    """Damage a golden image; returns what it was."""
    path = model / FOLDER / "good.png"
    before = path.read_bytes()
    path.write_bytes(part(40))
    return before


def reasons(server: Running) -> list[tuple[str, bool]]:
    """Why the model was checked, and whether it passed, by the audit chain."""
    entries = server.client.get("/v1/audit", params={"action": "model.checked"}).json()["entries"]
    return [(one["details"]["reason"], one["details"]["passed"]) for one in reversed(entries)]


def test_a_failed_check_blocks_verdicts_until_one_passes(server: Running, golden: Path) -> None:
    client = server.client
    check = client.get("/v1/models/part").json()["check"]
    assert (check["passed"], check["images"], check["blocked"]) == (True, 2, False)
    assert server.inspect("part", part()).status_code == 200
    before = broken(golden)
    check = client.post("/v1/models/part/check").json()
    assert (check["passed"], check["blocked"]) == (False, True)
    assert [one["passed"] for one in check["results"]] == [True, False]
    refused = server.inspect("part", part())
    assert refused.status_code == 409
    assert "golden image 'good.png' was altered" in refused.json()["detail"]
    batch = client.post("/v1/models/part/inspect-batch", files=[("files", ("a.png", part()))]).json()
    assert "gives no verdicts" in batch["images"][0]["problem"]["detail"]
    ready = client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["problems"] == ["every model failed the check with its golden images and gives no verdicts"]
    assert client.get("/v1/models").json()["models"][0]["check"] == check
    (golden / FOLDER / "good.png").write_bytes(before)
    assert client.post("/v1/models/part/check").json()["passed"]
    assert server.inspect("part", part()).status_code == 200
    assert client.get("/readyz").status_code == 200
    assert reasons(server)[-3:] == [("loaded", True), ("request", False), ("request", True)]


def test_it_is_checked_when_it_is_loaded_and_may_only_warn(golden: Path, tmp_path: Path) -> None:
    model = copy_model(golden, tmp_path / "part")
    broken(model)
    with running(settings(tmp_path / "data", model, golden_check="warn")) as server:
        assert server.inspect("part", part()).status_code == 200
        ready = server.client.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["warnings"] == ["the model 'part' failed the check with its golden images"]
        check = server.client.get("/v1/models/part").json()["check"]
        assert (check["passed"], check["blocked"]) == (False, False)
        remove_golden_images(model, ["good.png", "anomalous.png"])
        refused = server.client.post("/v1/models/part/check")
        assert refused.status_code == 409
        assert "has no golden images" in refused.json()["detail"]
        assert server.client.get("/v1/models/part").json()["check"] is None


def test_all_models_are_checked_at_the_start_of_a_shift(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden_checks, "EVERY", 0.1)
    times = iter([datetime(2026, 3, 1, 5, 59, 50), datetime(2026, 3, 1, 6, 0, 5)])
    last = datetime(2026, 3, 1, 6, 0, 5)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]  # noqa: ARG003
            return next(times, last)

    monkeypatch.setattr(golden_checks, "datetime", Clock)
    told = settings(tmp_path / "data", copy_model(golden, tmp_path / "part"), shift_starts=("06:00",))
    with running(told) as server:
        wait_until(lambda: reasons(server) == [("loaded", True), ("shift", True)])
    with pytest.raises(ConfigError, match="a time of day such as 06:00; got '25:00'"):
        settings(tmp_path / "data", shift_starts=("25:00",))


@pytest.mark.parametrize(
    ("seen", "now", "began"),
    [
        (datetime(2026, 3, 1, 5, 59), datetime(2026, 3, 1, 6, 0), True),
        (datetime(2026, 3, 1, 6, 0), datetime(2026, 3, 1, 6, 1), False),
        (datetime(2026, 3, 1, 21, 59), datetime(2026, 3, 2, 5, 0), True),
        (datetime(2026, 3, 1, 22, 0), datetime(2026, 3, 2, 5, 59), False),
        (datetime(2026, 3, 1, 23, 0), datetime(2026, 3, 3, 5, 0), True),
        (datetime(2026, 3, 1, 6, 0, 30), datetime(2026, 3, 1, 5, 59), False),  # the clock was set back
    ],
)
def test_a_shift_begins_once(seen: datetime, now: datetime, began: bool) -> None:
    assert shift_began(("06:00", "22:00"), seen, now) == began
