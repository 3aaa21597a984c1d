"""``patchsvdd product``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from support.command_line import run
from support.products import DRAWN, noise


def options(models: Mapping[str, Path]) -> list[str]:
    return [word for name, folder in models.items() for word in ("--product", f"{name}={folder}")]


def test_images_are_sorted_by_product(product_models: Mapping[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, draw in DRAWN.items():
        for seed in range(100, 103):
            Image.fromarray(draw(seed)).save(folder / f"{name}-{seed}.png")
    Image.fromarray(noise(1)).save(folder / "noise.png")
    (folder / "broken.png").write_bytes(b"not an image")
    file = tmp_path / "products.json"
    written = run(
        "product", "calibrate", *options(product_models), "--out", file, "--false-alarm-rate", "0.1", "--json"
    )
    assert written.code == 0, written.stderr
    products = json.loads(written.stdout)["products"]
    assert [one["product"] for one in products] == list(DRAWN)
    assert all(8 <= one["images"] <= 12 for one in products)
    chosen = run("product", "choose", file, folder, *options(product_models), "--json")
    assert chosen.code == 0, chosen.stderr
    answer = json.loads(chosen.stdout)
    assert answer["skipped"] == 1
    assert "broken.png" in chosen.stderr
    found = {Path(one["image"]).stem: one["product"] for one in answer["images"]}
    assert found["noise"] is None
    assert sum(product == name.split("-")[0] for name, product in found.items()) >= 4
    assert not any(product == "stripes" for name, product in found.items() if name.startswith("disc"))
    shown = run("product", "choose", file, folder / "noise.png", *options(product_models))
    assert "none" in shown.stdout + shown.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "name each product and its model"),
        (("--product", "plate"), "give a name and a folder, as in plate=models/plate; got plate"),
        (("--product", "a=x", "--product", "a=y"), "a was given twice"),
    ],
)
def test_products_have_a_name_and_a_model(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    ended = run("product", "calibrate", *words, "--out", tmp_path / "products.json")
    assert ended.code == 2
    assert expected in ended.stderr
