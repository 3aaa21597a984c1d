"""A line that runs in a real service, with folders as cameras."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.line.line_file import LineSettings, read_line_file
from patchsvdd.core.errors import ConfigError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.product_choice import ProductChooser
from support.products import DRAWN, noise
from support.serving import ENVIRONMENT, PROGRAM, Running, copy_model, part, png, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service

TWO_VIEWS = """
name = "press-3"
[models]
top = "{top}"
side = "{side}"
[source.top]
kind = "folder"
folder = "camera-top"
settle = 0
poll = 0.05
part_pattern = '(?P<part>[A-Z]\\d+)'
[source.side]
kind = "folder"
folder = "camera-side"
settle = 0
poll = 0.05
part_pattern = '(?P<part>[A-Z]\\d+)'
[parts]
trigger = "{trigger}"
deadline = 1.5
timeout = 20
"""


def write_line(folder: Path, stored: Path, trigger: str, more: str = "") -> LineSettings:
    """Write a line's file, and make its models and folders."""
    for view in ("top", "side"):
        (folder / f"camera-{view}").mkdir(exist_ok=True)
        if not (folder / view).exists():
            copy_model(stored, folder / view)
    path = folder / "line.toml"
    path.write_text(TWO_VIEWS.format(top=folder / "top", side=folder / "side", trigger=trigger) + more)
    return read_line_file(path)


def show(folder: Path, view: str, name: str, data: bytes) -> None:
    """A camera writes an image."""
    hidden = folder / f"{view}-{name}.part"
    hidden.write_bytes(data)
    hidden.rename(folder / f"camera-{view}" / f"{name}.png")


def serve(line: LineSettings) -> Any:
    return running(settings(line.service.data, *line.models), line=line)


def parts(server: Running) -> dict[str, dict[str, Any]]:
    found = server.client.get("/v1/parts").json()["parts"]
    return {one["part_number"]: one for one in found}


def is_stored(server: Running, number: str) -> bool:
    return number in parts(server)


@pytest.fixture
def triggered(stored: Path, tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    with serve(write_line(tmp_path, stored, "bus")) as server:
        wait_until(lambda: server.client.get("/v1/line").json()["state"] == "ready")
        yield server, tmp_path


def test_a_triggered_part_has_one_verdict_over_its_views(triggered: tuple[Running, Path]) -> None:
    server, folder = triggered
    for number, defect in (("A1", False), ("A2", True)):
        server.client.post("/v1/line/trigger", json={"part_number": number}).raise_for_status()
        show(folder, "top", number, part(11))
        show(folder, "side", number, part(12, defect=defect))
        wait_until(partial(is_stored, server, number))
    found = parts(server)
    assert [found[number]["verdict"] for number in ("A1", "A2")] == ["good", "anomalous"]
    assert [one["view"] for one in found["A2"]["views"]] in (["top", "side"], ["side", "top"])
    assert found["A2"]["score"] > 1
    assert found["A2"]["regions"][0]["view"] == "side"
    number = next(one["inspection"] for one in found["A2"]["views"] if one["view"] == "side")
    inspection = server.client.get(f"/v1/inspections/{number}").json()
    assert (inspection["serial"], inspection["line"], inspection["station"]) == ("A2", "press-3", "side")
    assert inspection["verdict"] == "anomalous"
    state = server.client.get("/v1/line").json()
    assert (state["state"], state["sequence"], state["last"]["part_number"]) == ("ready", 2, "A2")
    assert server.client.get("/v1/line/live/side").content.startswith(b"\xff\xd8")
    metrics = server.client.get("/metrics").text
    assert 'patchsvdd_parts_total{line="press-3",verdict="anomalous"} 1.0' in metrics
    assert 'patchsvdd_source_up{line="press-3",source="side"} 1.0' in metrics


def test_a_missing_view_and_an_unreadable_one_are_never_good(triggered: tuple[Running, Path]) -> None:
    server, folder = triggered
    server.client.post("/v1/line/trigger", json={"part_number": "B1"}).raise_for_status()
    show(folder, "top", "B1", part(11))
    wait_until(lambda: "B1" in parts(server))
    server.client.post("/v1/line/trigger", json={"part_number": "B2"}).raise_for_status()
    show(folder, "top", "B2", part(11))
    show(folder, "side", "B2", part(12)[:200])
    wait_until(lambda: "B2" in parts(server))
    found = parts(server)
    assert (found["B1"]["verdict"], found["B1"]["missing"]) == ("incomplete", ["side"])
    assert found["B2"]["verdict"] == "error"
    assert "side:" in found["B2"]["reason"]


def test_a_line_that_is_not_ready_cannot_be_triggered(triggered: tuple[Running, Path]) -> None:
    server, _ = triggered
    assert server.client.post("/v1/line/pause").json()["state"] == "paused"
    refused = server.client.post("/v1/line/trigger", json={})
    assert refused.status_code == 409
    assert server.client.post("/v1/line/resume").json()["state"] == "ready"


def test_files_are_parts_and_each_is_inspected_once(stored: Path, tmp_path: Path) -> None:
    line = write_line(tmp_path, stored, "camera")
    for view in ("top", "side"):
        show(tmp_path, view, "C1", part(11))
    with serve(line) as server:
        wait_until(lambda: "C1" in parts(server))
        for view in ("top", "side"):
            show(tmp_path, view, "C2", part(12))
        wait_until(lambda: "C2" in parts(server))
        before = parts(server)
    with serve(line) as server:
        for view in ("top", "side"):
            show(tmp_path, view, "C3", part(13))
        wait_until(lambda: "C3" in parts(server))
        found = server.client.get("/v1/parts").json()["parts"]
    assert [one["part_number"] for one in reversed(found)] == ["C1", "C2", "C3"]
    assert [one["sequence"] for one in reversed(found)] == [1, 2, 3]
    assert {one["id"] for one in before.values()} == {one["id"] for one in found[1:]}


def test_images_choose_the_product(product_models: Mapping[str, Path], tmp_path: Path) -> None:
    models = {product: PatchSVDD.load(folder, "cpu") for product, folder in product_models.items()}
    chooser = ProductChooser(models)
    chooser.calibrate(false_alarm_rate=0.1)
    chooser.save(tmp_path / "products.json")
    (tmp_path / "camera").mkdir()
    tables = "".join(f"[product.{name}]\ntop = '{folder}'\n" for name, folder in product_models.items())
    source = "[source.top]\nkind = 'folder'\nfolder = 'camera'\nsettle = 0\npoll = 0.05\n"
    choice = "[choice]\nby = 'images'\nfile = 'products.json'\n[parts]\ntrigger = 'camera'\ntimeout = 20\n"
    (tmp_path / "line.toml").write_text(f"name = 'mixed'\n{tables}{source}{choice}")
    with serve(read_line_file(tmp_path / "line.toml")) as server:
        expected = {}
        for name, draw in {**DRAWN, "noise": noise}.items():
            seed = next(seed for seed in range(100, 120) if name == "noise" or chooser.choose(draw(seed)).product)
            expected[f"{name}.png"] = "" if name == "noise" else name
            (tmp_path / "camera" / f"{name}.png").write_bytes(png(draw(seed)))
        wait_until(lambda: len(server.client.get("/v1/parts").json()["parts"]) == 3)
        found = server.client.get("/v1/parts").json()["parts"]
    assert sorted(one["product"] for one in found) == sorted(expected.values())
    for one in found:
        if one["product"]:
            [view] = one["views"]
            assert view["model"] == one["product"]
        else:
            assert (one["verdict"], one["reason"]) == ("error", "the image shows none of the known products")


def test_wrong_settings_of_a_bus_are_found_before_anything_starts(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"line\.toml: `modbus\.prot` is not a setting of a line; did you mean `port`"
    ):
        write_line(tmp_path, stored, "bus", "[modbus]\nhost = '127.0.0.1'\nprot = 502\n")


def test_a_plc_that_has_gone_is_shown(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pymodbus")
    monkeypatch.setattr("patchsvdd.apps.line.bus_state.GONE_AFTER", 0.2)
    with serve(write_line(tmp_path, stored, "bus", "[modbus]\nhost = '127.0.0.1'\nport = 0\n")) as server:

        def bus() -> dict[str, Any]:
            (found,) = server.client.get("/v1/line").json()["buses"]
            return dict(found)

        wait_until(lambda: server.client.get("/v1/line").json()["state"] == "ready")
        assert (bus()["clients"], bus()["trouble"]) == (0, None)
        host, port = bus()["address"].split(":")
        with socket.create_connection((host, int(port))):
            wait_until(lambda: bus()["clients"] == 1)
        wait_until(lambda: bus()["trouble"] is not None)
        assert "the client disconnected at" in bus()["trouble"]
        with socket.create_connection((host, int(port))):
            wait_until(lambda: bus()["trouble"] is None)


def test_the_command_checks_runs_and_stops(stored: Path, tmp_path: Path) -> None:
    write_line(tmp_path, stored, "camera", "[service]\nport = 0\ndevice = 'cpu'\n")
    command = [*PROGRAM, "run", str(tmp_path / "line.toml")]
    checked = subprocess.run([*command, "--check"], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "press-3 can run: 2 views, 2 models" in checked.stdout
    show(tmp_path, "top", "D1", part(11))
    show(tmp_path, "side", "D1", part(11))
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for text in process.stderr:
            lines.append(text)
            if re.search("http://", text):
                break
        log = tmp_path / "press-3-data" / "inspections.sqlite"
        wait_until(lambda: b"D1" in log.read_bytes() + log.with_name("inspections.sqlite-wal").read_bytes())
        time.sleep(0.2)
        process.terminate()
        rest = process.stderr.read()
    assert process.returncode == 0, "".join(lines) + rest
    assert "are stored" in rest
