from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.line.sources.folder import FolderSource
from patchsvdd.apps.line.sources.genicam import GenicamSource
from patchsvdd.apps.line.sources.make import make_source
from patchsvdd.apps.line.sources.stream import StreamSource
from patchsvdd.core.errors import ConfigError
from support.cameras import fake_camera_missing


def test_each_kind_is_made_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images").mkdir()
    folder = {"kind": "folder", "folder": str(tmp_path / "images"), "settle": 2, "part_pattern": r"(?P<part>\d+)"}
    made = make_source("scans", folder, records=tmp_path)
    assert isinstance(made, FolderSource)
    assert made.name == "scans"
    made.open()
    assert (tmp_path / "scans.sqlite").exists()
    pytest.importorskip("av")
    monkeypatch.setenv("SIDE_PASSWORD", "hush")
    table = {"kind": "stream", "address": "rtsp://me@127.0.0.1/1", "stall": 2, "password_variable": "SIDE_PASSWORD"}
    stream = make_source("side", {**table, "options": {"max_delay": "0"}})
    assert isinstance(stream, StreamSource)
    assert stream._address == "rtsp://me:hush@127.0.0.1/1"
    assert "hush" not in str(stream)


@pytest.mark.skipif(fake_camera_missing() is not None, reason=str(fake_camera_missing()))
def test_a_camera_is_made_of_its_table() -> None:
    table = {"kind": "genicam", "camera": "10.0.0.5", "trigger": "hardware", "exposure_us": 400, "packet_size": 8192}
    made = make_source("top", {**table, "features": {"ReverseX": True, "Gamma": 0.8, "LineMode": "Input", "Width": 64}})
    assert isinstance(made, GenicamSource)
    with pytest.raises(ConfigError, match=r"source 'top': `exposure_us` must be more than 0; got -1"):
        make_source("top", {**table, "exposure_us": -1})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, r"source 'x': `kind` must be one of genicam, stream, folder; it has none"),
        ({"kind": "genican"}, r"got 'genican'; did you mean `genicam`\?"),
        ({"kind": "folder"}, r"`folder` is missing; folder needs it"),
        (
            {"kind": "folder", "folder": "a", "setle": 1},
            r"no `setle` for folder; did you mean `settle`\?; allowed are k",
        ),
        ({"kind": "folder", "folder": "a", "record": "b"}, r"no `record` for folder; allowed are kind, folder, settle"),
        ({"kind": "folder", "folder": "a", "settle": "1"}, r"`settle` must be a number; got '1'"),
        ({"kind": "folder", "folder": 3}, r"`folder` must be a text; got 3"),
        ({"kind": "stream", "address": "a", "password": "b"}, r"did you mean `password_variable`\?"),
        ({"kind": "stream", "address": "a", "password_variable": "NOT_SET"}, r"'NOT_SET' is not set"),
        (
            {"kind": "stream", "address": "a", "trigger": "hardware"},
            r"`trigger` must be one of 'none', 'software'",
        ),
        ({"kind": "stream", "address": "a", "every": True}, r"`every` must be a whole number; got True"),
        ({"kind": "stream", "address": "a", "options": {"x": 1}}, r"`options.x` must be a text; got 1"),
        ({"kind": "stream", "address": "a", "options": "x"}, r"`options` must be a table; got 'x'"),
        (
            {"kind": "genicam", "features": {"x": [1]}},
            r"`features.x` must be true or false or a whole number or a numb",
        ),
    ],
)
def test_wrong_tables_are_explained(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_source("x", table)
