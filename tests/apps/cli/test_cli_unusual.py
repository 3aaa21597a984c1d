from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.command_line import QUICK, run
from support.parts import draw_part, save_picture

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good parts, one of them with a defect."""
    folder = tmp_path_factory.mktemp("photos")
    for index in range(12):
        pixels = draw_part(index, (64, 64)).copy()
        if index == 7:
            pixels[20:44, 20:44] = (255, 0, 255)
        save_picture(folder / f"{index:02}.png", pixels)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "part"
    ended = run("train", folder, "--out", out, *QUICK)
    assert ended.code == 0, ended.stderr
    words = " ".join(ended.stderr.split())
    assert "good images is unlike the others: 07.png" in words
    assert "--leave-out" in words
    return out


def test_info_lists_and_draws_them(model: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "new" / "unusual.png"
    ended = run("info", model, "--unusual", sheet)
    assert ended.code == 0, ended.stderr
    assert "07.png" in ended.stdout
    assert "stands out" in ended.stdout
    with Image.open(sheet) as opened:
        assert opened.width > 500
        assert np.asarray(opened.convert("RGB")).std() > 10


def test_json(model: Path) -> None:
    listed = run("info", model, "--json").json()["provenance"]["unusual"]
    assert listed[0]["name"] == "07.png"
    assert set(listed[0]) == {"image", "name", "ratio", "stands_out", "at"}


def test_an_image_is_left_out(folder: Path, tmp_path: Path) -> None:
    found = run("train", folder, "--out", tmp_path / "m", "--leave-out", "07.png", "--json", *QUICK).json()
    assert found["images"] == 11
    assert found["left_out"] == ["07.png"]
    assert "07.png" not in [one["name"] for one in found["unusual"]]


def test_a_list_of_names(folder: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("07.png\n\n03.png\n")
    found = run("train", folder, "--out", tmp_path / "m", "--leave-out", names, "--json", *QUICK).json()
    assert found["left_out"] == ["03.png", "07.png"]


def test_a_wrong_name_is_an_error_before_anything_is_written(folder: Path, tmp_path: Path) -> None:
    ended = run("train", folder, "--out", tmp_path / "m", "--leave-out", "7.png", *QUICK)
    assert ended.code != 0
    words = " ".join(ended.stderr.split())
    assert "--leave-out: there is no good image named '7.png'" in words
    assert "00.png" in words
    assert not (tmp_path / "m").exists() or not list((tmp_path / "m").iterdir())
