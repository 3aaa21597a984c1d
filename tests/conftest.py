"""Fixtures for all tests: tiny seeded images and tiny detectors trained on them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from patchsvdd.core.presets import PRESETS
from patchsvdd.detector.detector import PatchSVDD
from support import products
from support.command_line import QUICK, Ended, draw_category, run
from support.confirmed_defects import train_teachable
from support.parts import NO_ESTIMATE, ROOT, TINY, TINY_CRITIC, draw_part, save_category, save_picture, square_mask

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # each of several processes has a core
    os.environ["OMP_NUM_THREADS"] = "1"  # and so have those it starts: sums in another order have other last digits

# Ray's workers give way to every other process of a machine, and so to the other tests, unless told otherwise.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

os.environ["PATCHSVDD_FLOAT32"] = "1"  # CPUs with and without matrix units train alike

os.environ["PATCHSVDD_CANDIDATE_NICE"] = "0"  # a busy machine would leave a candidate no time

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton, where it is installed, reads it when it is imported

# The machine may be slow and shared: no deadline per example; the same examples on every run.
settings.register_profile(
    "patchsvdd", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fast", settings.get_profile("patchsvdd"), max_examples=20)  # make test-fast
settings.load_profile("patchsvdd")


RAY = ("test_cluster_train.py", "test_cluster_benchmark.py", "test_cluster_shards.py", "test_cluster_inspect.py")
"""Files that share a Ray cluster, and so a process."""
LONGEST_FIRST = (
    *RAY,
    "test_cli_train.py",
    "test_serve_jobs.py",
    "test_serve_candidates.py",
    "test_two_services.py",
    "test_page.py",
    "test_serve_store.py",
    "test_serve_inspect.py",
    "test_serve_security.py",
    "test_serve_fuzz.py",
    "test_bad_input.py",
    "test_cli.py",
    "test_cli_benchmark.py",
    "test_false_alarms.py",
    "test_process_group.py",
    "test_fused_step.py",
    "test_reference_weights.py",
    "test_memory_update.py",
    "test_experiment.py",
    "test_cli_calibrate.py",
    "test_page_train.py",
    "test_examples.py",
)
"""Files that are started first when several processes share the tests, so that none is left with a long one."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files where several processes share them."""
    if hasattr(config, "workerinput"):
        ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process one file at a time; the files of Ray count as one."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Files(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "ray" if file.endswith(RAY) else file

    return Files(config, log)


@pytest.fixture(scope="session", autouse=True)
def _few_judged() -> Iterator[None]:
    """Judge a trained encoder by few synthetic defects: the real number takes longer than a tiny training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchsvdd.detector.fitting.JUDGED", 8)
        yield


@pytest.fixture(scope="module")
def no_estimate() -> Iterator[None]:
    """No synthetic defects at the end of a training, for commands without an option for it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("encoder", "best"):
            patch.setitem(PRESETS, name, PRESETS[name].replace(**NO_ESTIMATE))
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data: PATCHSVDD_SHARED, or ../shared beside the repository."""
    folder = Path(os.environ.get("PATCHSVDD_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no shared data at '{folder}'; set PATCHSVDD_SHARED")
    return folder


@pytest.fixture(scope="session")
def good_pictures() -> list[NDArray[np.uint8]]:
    """Four good images (64, 64, 3)."""
    return [draw_part(seed) for seed in range(4)]


@pytest.fixture(scope="session")
def good_folder(tmp_path_factory: pytest.TempPathFactory, good_pictures: list[NDArray[np.uint8]]) -> Path:
    """The good images as PNG files in a plain folder."""
    folder = tmp_path_factory.mktemp("good")
    for index, picture in enumerate(good_pictures):
        save_picture(folder / f"{index:03}.png", picture)
    return folder


@pytest.fixture
def category(tmp_path: Path) -> Path:
    """A category in MVTec layout: 3 training images, 2 good and 2 cracked test images with masks."""
    cracks = [(draw_part(seed, defect=True), square_mask()) for seed in (20, 21)]
    train, good = [draw_part(seed) for seed in range(3)], [draw_part(seed) for seed in (10, 11)]
    return save_category(tmp_path / "part", train, good, {"crack": cracks})


@pytest.fixture(scope="session")
def detector(good_folder: Path) -> PatchSVDD:
    """A detector trained for two steps on the good folder. Tests share it: do not change it."""
    return PatchSVDD.fit(good_folder, preset="encoder", device="cpu", **TINY)


@pytest.fixture(scope="session")
def critical(good_folder: Path) -> PatchSVDD:
    """A detector with a critic, both trained for two steps. Tests share it: do not change it."""
    return PatchSVDD.fit(good_folder, preset="best", device="cpu", **TINY, **TINY_CRITIC)


@pytest.fixture(scope="session")
def stored(detector: PatchSVDD, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The detector saved in a folder named "part". Tests share it: do not change it."""
    folder = tmp_path_factory.mktemp("stored") / "part"
    detector.save(folder)
    return folder


@pytest.fixture(scope="session")
def teachable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a trained critic. Tests that change it copy it."""
    return train_teachable(tmp_path_factory.mktemp("good"), tmp_path_factory.mktemp("teachable") / "part")


@pytest.fixture(scope="session")
def bolt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A category in MVTec layout: 6 training images, 3 good and 3 spotted test images. Tests share it: copy it first
    to change it."""
    return draw_category(tmp_path_factory.mktemp("data") / "bolt")


@pytest.fixture(scope="session")
def trained_bolt(bolt: Path) -> tuple[Path, Ended]:
    """A model folder trained with ``patchsvdd train`` on ``bolt``, and the result of the command. Tests share it."""
    out = bolt.parent / "model"
    return out, run("train", bolt, "--out", out, *QUICK, "--json")


@pytest.fixture(scope="session")
def bolt_model(trained_bolt: tuple[Path, Ended]) -> Path:
    """The model folder of ``trained_bolt``. Tests share it: copy it first to change it."""
    folder, ended = trained_bolt
    assert ended.code == 0, ended.stderr
    return folder


@pytest.fixture(scope="session")
def _end_of_ray() -> Iterator[None]:
    yield
    import ray

    ray.shutdown()


@pytest.fixture(scope="module")
def local_cluster(_end_of_ray: None) -> None:
    """A Ray cluster of two CPUs in this process; the files of a session share it."""
    from support.ray_cluster import start_local_cluster

    start_local_cluster()


@pytest.fixture(scope="session")
def product_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A stored model of each product. Tests share them: change nothing."""
    root = tmp_path_factory.mktemp("models")
    for product, drawn in products.DRAWN.items():
        PatchSVDD.fit([drawn(seed) for seed in range(18)], **products.SETTINGS).save(root / product)
    return {product: root / product for product in products.DRAWN}
