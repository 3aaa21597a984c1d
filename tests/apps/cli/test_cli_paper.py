from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.cli.console import StageBars
from patchsvdd.core import presets as settings
from patchsvdd.evaluation.paper.items import ITEMS
from support.baselines import short
from support.command_line import BRIEF, files, run
from support.paper_study import pictures, read_page, small_category

pytestmark = pytest.mark.slow

NEED_LIBRARIES = ("tsne", "dimension", "intrinsic-dimension", "all")


@pytest.fixture(scope="module", autouse=True)
def small_batches() -> Iterator[None]:
    """A training step uses one pair of patches, not 64; baselines train for a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(settings.PRESETS, "paper", settings.PRESETS["paper"].replace(batch_size=1))
        for name, config in settings.BASELINE_PRESETS.items():
            patch.setitem(settings.BASELINE_PRESETS, name, config.replace(baseline=short(name)))
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two categories. Tests share it: change nothing in it."""
    root = tmp_path_factory.mktemp("data") / "parts"
    for first, name in ((0, "bottle"), (100, "wood")):
        small_category(root / name, first)
    shutil.rmtree(root / "wood" / "ground_truth")
    return root


def baselines(dataset: Path, out: Path, *options: object) -> tuple[object, ...]:
    """The quickest item: it trains nothing."""
    return ("paper", "baselines", dataset, "--out", out, "--cache", dataset.parent / "runs", *BRIEF, *options)


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def watch_training(patch: pytest.MonkeyPatch, interrupt_after: int) -> list[int]:
    """The training steps that will be seen; after so many of them this process gets SIGINT."""
    show = StageBars.__call__
    steps: list[int] = []

    def show_and_signal(self: StageBars, stage: str, done: int, total: int) -> None:
        show(self, stage, done, total)
        steps.extend([done] if stage == "training" else [])
        if stage == "training" and len(steps) == interrupt_after:
            os.kill(os.getpid(), signal.SIGINT)

    patch.setattr(StageBars, "__call__", show_and_signal)
    return steps


def test_json_is_one_object(dataset: Path, tmp_path: Path) -> None:
    told = run(*baselines(dataset, tmp_path, "--json")).json()
    assert set(told) == {"page", "items", "verdicts"}
    assert told["page"] == str(tmp_path / "baselines.html")
    assert list(told["items"]) == ["baselines"]
    assert list(told["items"]["baselines"]["categories"]) == ["bottle", "wood"]
    assert all(set(one) == {"item", "result", "holds", "words"} for one in told["verdicts"])


def test_people_read_every_claim_and_where_the_page_is(dataset: Path, tmp_path: Path) -> None:
    ended = run(*baselines(dataset, tmp_path))
    assert ended.code == 0
    assert ended.stdout == ""
    assert "baselines: note  bottle, raw, detection: 1.000 at 64 px, 0.92 in the paper." in ended.stderr
    assert "baselines: note  Mean distance from Table 3" in ended.stderr
    assert f"report: {tmp_path / 'baselines.html'}" in ended.stderr
    assert set(files(tmp_path)) == {
        *("baselines.html", "baselines.json", "baselines/detection.svg", "baselines/segmentation.svg")
    }


def test_a_category_without_masks_has_a_gap_and_a_reason(dataset: Path, tmp_path: Path) -> None:
    found = run(*baselines(dataset, tmp_path, "--json")).json()["items"]["baselines"]
    assert "segmentation_auroc" in found["categories"]["bottle"]["raw"]["product"]
    assert list(found["categories"]["wood"]["raw"]["product"]) == ["detection_auroc"]
    assert "wood: there are no masks (no ground_truth folder)" in read_page(tmp_path / "baselines.html").text


def test_some_categories_and_one_alone(dataset: Path, tmp_path: Path) -> None:
    some = run(*baselines(dataset, tmp_path / "a", "--categories", " wood,", "--json")).json()
    assert list(some["items"]["baselines"]["categories"]) == ["wood"]
    alone = ("paper", "baselines", dataset / "wood", "--out", tmp_path / "b", "--cache", dataset.parent / "runs")
    assert run(*alone, *BRIEF, "--json").json()["items"] == some["items"]


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_tables_are_made_and_no_charts(dataset: Path, tmp_path: Path) -> None:
    ended = run(*baselines(dataset, tmp_path, "--json"))
    assert "no charts without matplotlib" in ended.stderr
    page = read_page(Path(ended.json()["page"]))
    assert len(page.all("table")) == 2
    assert pictures(page) == []


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_the_note_says_what_to_install(dataset: Path, tmp_path: Path) -> None:
    assert "pip install 'patchsvdd[paper]'" in run(*baselines(dataset, tmp_path)).stderr


@pytest.mark.usefixtures("no_matplotlib")
@pytest.mark.parametrize("item", NEED_LIBRARIES)
def test_items_that_cannot_do_without_say_so(dataset: Path, tmp_path: Path, item: str) -> None:
    message = run("paper", item, dataset, "--out", tmp_path / "out", *BRIEF).error()
    assert f"'{item}'" in message
    assert "pip install 'patchsvdd[paper]'" in message
    assert files(tmp_path) == {}


def test_an_unknown_item_is_refused_with_those_there_are(dataset: Path, tmp_path: Path) -> None:
    message = run("paper", "loses", dataset, "--out", tmp_path / "out").error()
    assert "'loses'" in message
    assert all(item in message for item in (*ITEMS, "all"))
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--categories", "wood,botle"), ("no category 'botle'", "choose from: bottle, wood")),
        (("--preset", "papr"), ("papr", "paper", "encoder")),
        (("--steps", 1, "--epochs", 1), ("--steps", "--epochs", "give only one")),
        (("--image-size", 32), ("--image-size", "at least 64x64")),
        (("--device", "gpu"), ("--device", "gpu")),
    ],
)
def test_wrong_settings_are_explained(
    dataset: Path, tmp_path: Path, arguments: tuple[object, ...], words: tuple[str, ...]
) -> None:
    message = run("paper", "maps", dataset, "--out", tmp_path / "out", *arguments).error()
    assert all(word in message for word in words), message
    assert files(tmp_path) == {}


def test_wrong_paths_are_explained(dataset: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    assert "there is no folder" in run("paper", "maps", tmp_path / "mvtek", *out).error()
    assert "contains no category" in run("paper", "maps", dataset / "bottle" / "test", *out).error()
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert "choose another folder" in run("paper", "maps", dataset, "--out", taken).error()
    assert files(tmp_path) == {"taken": b"mine"}


def test_help_names_every_item_and_ends_with_an_example() -> None:
    lines = [line.strip() for line in run("paper", "--help").stdout.splitlines() if line.strip()]
    assert lines[-1].startswith("Example: patchsvdd paper losses mvtec")
    assert all(item in " ".join(lines) for item in (*ITEMS, "all"))


def test_names_that_are_not_utf_8_do_not_stop_it(dataset: Path, tmp_path: Path) -> None:
    odd = Path(shutil.copytree(dataset / "bottle", tmp_path / "data" / os.fsdecode(b"_caf\xe9")))
    ended = run("paper", "baselines", odd, "--out", tmp_path / "out", *BRIEF)
    assert ended.code == 0
    assert len(pictures(read_page(tmp_path / "out" / "baselines.html"))) == 2


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command: tuple[Any, ...] = ("paper", "maps", dataset, "--steps", 2, "--image-size", 64, "--device", "cpu", "--json")
    undisturbed = run(*command, "--out", tmp_path / "undisturbed").json()
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        steps = watch_training(patch, interrupt_after=3)  # two of the first category, one of the second
        ended = run(*command, "--out", out)
    assert steps == [1, 2, 1]
    assert ended.code == 130
    assert ended.stdout == ""
    assert "interrupted: stopped at step 1 of 2 of 'maps'" in ended.stderr
    assert f"finished results are in {out / 'runs'}: run the same command to resume" in ended.stderr
    assert not (out / "maps.html").exists()
    with monkeypatch.context() as patch:
        steps = watch_training(patch, interrupt_after=0)
        told = run(*command, "--out", out).json()
    assert steps == [2]
    assert told["items"] == undisturbed["items"]
    assert len(pictures(read_page(out / "maps.html"))) == 2
