"""LINE.toml: what it may say, and what is wrong with what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchsvdd.apps.line.bus_settings import ModbusSettings, OpcUaSettings
from patchsvdd.apps.line.line_file import ONLY, read_line_file
from patchsvdd.core.errors import ConfigError
from support.parts import ROOT

SMALL = """
name = "press-3"
[models]
top = "models/top"
[source.top]
kind = "folder"
folder = "/camera"
"""
PRODUCTS = """
name = "press-3"
[product.bracket]
top = "bracket-top"
side = "bracket-side"
[product.plate]
top = "plate-top"
[source.top]
kind = "folder"
[source.side]
kind = "folder"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "line.toml"
    path.write_text(text)
    return path


def test_a_small_file_has_sensible_defaults(tmp_path: Path) -> None:
    line = read_line_file(write(tmp_path, SMALL))
    assert line.name == "press-3"
    assert line.views == ("top",)
    assert line.products == {ONLY: {"top": tmp_path / "models" / "top"}}
    assert line.sources == {"top": {"kind": "folder", "folder": "/camera"}}
    assert (line.parts.trigger, line.parts.deadline, line.parts.timeout) == ("bus", 2.0, 5.0)
    assert (line.queue_size, line.when_full) == (16, "block"), "files can wait"
    assert line.service.data == tmp_path / "press-3-data"
    assert line.service.host == "127.0.0.1"
    assert (line.opcua, line.modbus) == (None, None), "a field bus is off unless the file has its table"


def test_each_product_has_its_own_views(tmp_path: Path) -> None:
    line = read_line_file(write(tmp_path, PRODUCTS))
    assert line.required("bracket") == ("top", "side")
    assert line.required("plate") == ("top",)
    assert [folder.name for folder in line.models] == ["bracket-top", "bracket-side", "plate-top"]


def test_the_example_of_the_documentation_is_a_line() -> None:
    line = read_line_file(ROOT / "deploy" / "line" / "line.toml")
    assert line.views == ("top", "side")
    assert isinstance(line.opcua, OpcUaSettings)
    assert isinstance(line.modbus, ModbusSettings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("name", "naem"), "`name` is missing; it must be text in quotes"),
        (('"press-3"', '"press 3"'), "`name` must be a name of up to 50 letters"),
        (('"press-3"', "3"), "`name` must be text in quotes; got 3"),
        (("[models]", "[modles]"), "give the models of one product in [models]"),
        (("top = ", "side = "), "`models.side` is a model for a view without a source; views: top"),
        (('top = "models/top"', ""), "`models` has no model"),
        (("[source.top]", "[source.'to p']"), "`source` must be a name"),
        (("[source.top]", "[sources.top]"), "there is no source"),
        (("[models]", "[parts]\ndeadlin = 2\n[models]"), "`parts.deadlin` is not a setting of a line; did you mean"),
        (("[models]", "[parts]\ndeadline = 'soon'\n[models]"), "`parts.deadline` must be a number; got 'soon'"),
        (("[models]", "[parts]\ndeadline = 2\ntimeout = 1\n[models]"), "must not be below `parts.deadline` (2 s)"),
        (("[models]", "[parts]\ntrigger = 'plc'\n[models]"), "`parts.trigger` must be one of bus, camera; got 'plc'"),
        (("[models]", "[queue]\nsize = 0\n[models]"), "`queue.size` must be a whole number from 1 to 10000; got 0"),
        (("[models]", "[queue]\nsize = true\n[models]"), "`queue.size` must be a whole number"),
        (("[models]", "[service]\nrequire_key = 1\n[models]"), "`service.require_key` must be true or false; got 1"),
        (("[models]", "[choice]\nby = 'images'\n[models]"), "`choice.file` is missing; it must be text"),
        (("[models]", "pots = 1\n[models]"), "`pots` is not a setting of a line"),
        (("[models]", "[models"), "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    path = write(tmp_path, SMALL.replace(*change))
    with pytest.raises(ConfigError) as caught:
        read_line_file(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_free_cameras_need_to_know_the_product(tmp_path: Path) -> None:
    path = write(tmp_path, PRODUCTS + "[parts]\ntrigger = 'camera'\n")
    with pytest.raises(ConfigError, match="nobody names the product"):
        read_line_file(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_line_file(tmp_path / "line.toml")
