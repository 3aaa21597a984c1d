"""The benchmark on a cluster finds what it finds on one machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from patchsvdd.apps.cli.benchmark import Plan
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.evaluation.benchmark import Benchmark
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult
from patchsvdd.evaluation.experiment_files import Files
from patchsvdd.evaluation.experiment_store import ENCODER, ExperimentStore
from patchsvdd.evaluation.remote_run import RunResources, run_remotely
from support.benchmark_results import metrics, read
from support.command_line import BRIEF, Ended, draw_category, files, run
from support.parts import TINY

pytest.importorskip("ray")
cluster = pytest.importorskip("patchsvdd.apps.cluster.ray_benchmark")

SETTINGS = ("--preset", "encoder", *BRIEF, "--steps", 2, "--seeds", "1,0", "--categories", "gear,bare")
CONFIG = preset("encoder", **TINY, encoder="flat", scales=(Scale(64, 16),))


pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_cluster", "no_estimate")]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A category, one without masks, and one that cannot be used. Tests share it: change nothing in it."""
    root = tmp_path_factory.mktemp("data") / "parts"
    for name in ("bottle", "gear", "bare"):
        draw_category(root / name)
    shutil.rmtree(root / "gear" / "ground_truth")
    shutil.rmtree(root / "bare" / "test")
    return root


@pytest.fixture(scope="module")
def ran(dataset: Path, local_cluster: None, no_estimate: None) -> tuple[Path, Ended]:
    """The output folder and the result of the command on the cluster."""
    out = dataset.parent / "there"
    return out, run("benchmark", dataset, "--out", out, *SETTINGS, "--cluster", "local", "--json")


def stored(out: Path) -> dict[str, Any]:
    """The results of all runs, but for the times they took."""
    found = {}
    for path in sorted((out / "runs").glob("*/test-*.json")):
        data = json.loads(path.read_text())
        data["training"].pop("seconds")
        data["evaluation"].pop("seconds_per_image")
        found[f"{path.parent.name}/{path.name}"] = data
    return found


def test_results_are_those_of_one_machine(dataset: Path, ran: tuple[Path, Ended]) -> None:
    here = dataset.parent / "here"
    alone = run("benchmark", dataset, "--out", here, *SETTINGS, "--json")
    assert (ran[1].code, alone.code) == (1, 1)  # one category cannot be used
    one, other = json.loads(alone.stdout), json.loads(ran[1].stdout)
    assert metrics(one) == metrics(other)
    assert one["failed"] == other["failed"]
    assert "has no test folder" in other["failed"]["bare"]
    for name in ("hardware", "seeds", "settings", "means", "complete"):
        assert one[name] == other[name], name
    assert len(stored(here)) == 2
    assert stored(here) == stored(ran[0])  # every score of every image


def test_json_tables_and_the_page_are_written(ran: tuple[Path, Ended]) -> None:
    out, ended = ran
    told = json.loads(ended.stdout)
    assert told.pop("page") == str(out / "index.html")
    assert told == read(out)
    assert {"results.json", "results.csv", "results.md", "index.html"} <= set(files(out))
    assert any(name.endswith(".npz") for name in files(out / "runs"))
    assert "gear, seed 1: detection_auroc" in ended.stderr
    assert "bare, no error" in ended.stderr


def test_a_second_run_takes_what_the_first_found(dataset: Path, ran: tuple[Path, Ended]) -> None:
    before = files(ran[0] / "runs")
    again = run("benchmark", dataset, "--out", ran[0], *SETTINGS, "--cluster", "local", "--json")
    assert json.loads(again.stdout) == json.loads(ran[1].stdout)
    assert files(ran[0] / "runs") == before


def test_several_presets_and_ctrl_c_after_the_first_result(
    dataset: Path, ran: tuple[Path, Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, runs = tmp_path / "out", tmp_path / "runs"
    shutil.copytree(ran[0] / "runs", runs)
    brief = ("--steps", 2, "--image-size", 64, "--critic-steps", 1, "--categories", "gear", "--device", "cpu")
    command = ("benchmark", dataset, "--preset", "encoder,best", *brief, "--cache", runs, "--json")
    write = Plan.write

    def write_and_signal(plan: Plan) -> None:
        write(plan)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "write", write_and_signal)
        ended = run(*command, "--out", out, "--cluster", "auto")  # a result is there at once, the other run begins
    assert ended.code == 130, ended.stderr
    assert "stopped with 1 of 2 runs done" in ended.stderr
    assert f"finished results are in {out}: run the same command to resume" in ended.stderr
    assert ended.stdout == ""
    assert read(out / "encoder")["complete"] is True
    assert not (out / "best" / "results.json").exists()

    told = run(*command, "--out", out, "--cluster", "auto").json()
    assert list(told["presets"]) == ["encoder", "best"]
    here = run(*command, "--out", tmp_path / "here").json()  # all runs are there
    for name in ("encoder", "best"):
        assert told["presets"][name]["complete"] is True
        assert told["presets"][name]["preset"] == name
        assert read(out / name) == read(tmp_path / "here" / name)
        assert metrics(told["presets"][name]) == metrics(here["presets"][name])
        assert (out / name / "index.html").is_file()
    assert not (out / "runs").exists()


def on_cluster(dataset: Path, runs: Path, on_running: Callable[..., None] = lambda _: None) -> ExperimentResult:
    found = Benchmark("parts", CONFIG, (0,), ("bottle",))
    store, share = ExperimentStore(runs, device="cpu"), cluster.share_of_run(None, None, "cpu")
    work = [(found, [dataset / "bottle"])]
    told = [one[1:] for one in cluster.run_benchmarks(work, store, share, device="cpu", on_running=on_running)]
    assert told == [("bottle", 0)]
    assert found.complete
    return found.results["bottle"][0]


def test_a_run_that_is_lost_is_run_again_and_what_is_trained_is_not(dataset: Path, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_one(running: dict[str, Any]) -> None:
        for now in running.values():
            if not killed:
                killed.append(now.process)
                os.kill(now.process, signal.SIGKILL)

    found = on_cluster(dataset, tmp_path / "there", kill_one)
    assert len(killed) == 1
    alone = ExperimentStore(tmp_path / "here", device="cpu").result(Experiment(dataset / "bottle", CONFIG))
    assert found.metrics == alone.metrics
    assert [one["score"] for one in found.data["images"]] == [one["score"] for one in alone.data["images"]]

    before = (found.folder / ENCODER).read_bytes()
    (found.folder / f"{found.name}.json").unlink()
    again = on_cluster(dataset, tmp_path / "there")
    assert (found.folder / ENCODER).read_bytes() == before  # its file tells how long it was trained
    assert again.metrics == found.metrics
    assert again.train_seconds == found.train_seconds


def test_wrong_settings_are_explained(dataset: Path, tmp_path: Path) -> None:
    def error(*arguments: object) -> str:
        return run("benchmark", dataset, "--out", tmp_path / "out", *arguments).error()

    assert "require --cluster ADDRESS" in error("--gpus-per-run", 0.5)
    assert "no machine of the cluster has more than 0 GPUs" in error("--cluster", "auto", "--gpus-per-run", 0.5)
    assert "must be a fraction of a GPU like 0.25" in error("--cluster", "auto", "--gpus-per-run", 1.5)
    assert "give 1 to 2" in error("--cluster", "auto", "--cpus-per-run", 3)
    assert "auto, cpu or cuda with --cluster; got 'cuda:1'" in error("--cluster", "auto", "--device", "cuda:1")
    assert "--preset must be a name like best" in error("--preset", ",")
    assert "papr" in error("--preset", "encoder,papr")


def test_a_run_takes_a_gpu_where_there_are_some_and_the_threads_of_this_process() -> None:
    threads = torch.get_num_threads()
    small, large = {"CPU": 4.0}, {"CPU": 64.0, "GPU": 8.0}
    assert RunResources.of([small], None, None, "auto") == RunResources(min(4, threads), 0)
    assert RunResources.of([small, large], None, None, "auto") == RunResources(min(8, threads), 1)
    assert RunResources.of([small, large], None, 0.25, "cuda") == RunResources(min(2, threads), 0.25)
    assert RunResources.of([small, large], None, None, "cpu") == RunResources(threads, 0)
    assert RunResources.of([small, large], 3, 0.5, "auto") == RunResources(3, 0.5)
    assert RunResources.of([{"CPU": 1.0, "GPU": 4.0}], None, 0.25, "auto") == RunResources(1, 0.25)


def test_data_that_are_not_there_or_not_the_same(dataset: Path, tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path / "runs", device="cpu")
    here = Experiment(dataset / "bottle", CONFIG)
    with pytest.raises(ConfigError, match="same path on every machine"):
        run_remotely(Experiment(tmp_path / "bottle", CONFIG), store.files_for(here), device="cpu")
    with pytest.raises(ConfigError, match="has other training images than this one, or another version"):
        run_remotely(here, Files("bottle-0", {}), device="cpu")
