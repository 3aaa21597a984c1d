"""Archives inspected on a cluster of two nodes: what is found, and that nothing is lost when processes are."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from patchsvdd.apps.cluster import ray_inspect as archive
from patchsvdd.apps.cluster.job import Job
from patchsvdd.apps.cluster.storage import StoragePath
from support.command_line import draw_parts, files, finish, part, rows, run, start
from support.object_store import object_store
from support.ray_cluster import add_node, kill_worker, nodes
from support.waiting import wait_until

pytestmark = pytest.mark.ray

COUNT = 160


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = draw_parts(tmp_path_factory.mktemp("archive") / "photos", COUNT - 4, first=100)
    for index in range(2):
        part(900 + index, defect=True)[0].save(folder / f"spot-{index}.png")
    (folder / "broken.png").write_bytes(b"no image")
    (folder / "empty.png").touch()
    return folder


@pytest.fixture(scope="module")
def alone(photos: Path, stored: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What one process finds, by image."""
    out = tmp_path_factory.mktemp("alone")
    assert run("inspect", stored, photos, "--out", out, "--device", "cpu", "--engine", "torch").code == 0
    return {row["image"]: row for row in rows(out)}


@pytest.fixture(scope="module")
def client_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def cluster(client_port: int) -> Iterator[Cluster]:
    with nodes(1, 1, client_port=client_port) as cluster:
        yield cluster


def command(stored: Path, photos: object, out: object, cluster: Cluster, *options: object) -> tuple[object, ...]:
    return ("inspect", stored, photos, "--out", out, "--cluster", cluster.address, "--engine", "torch", *options)


def check(out: Path, alone: dict[str, dict[str, Any]]) -> None:
    """Every image is there once, and as one process found it."""
    found = list(Job(StoragePath.of(out)).results())
    assert sorted(row["image"] for row in found) == sorted(alone)
    for row in found:
        expected = alone[row["image"]]
        for name in ("score", "verdict", "threshold", "p_value", "regions", "image_size", "error"):
            assert row[name] == expected.get(name), (row["image"], name)


def parts(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in out.glob("results/plan=*/part-*.parquet")}


def test_every_image_is_found_as_by_one_process(
    photos: Path, stored: Path, cluster: Cluster, alone: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    ended = run(*command(stored, photos, tmp_path / "out", cluster, "--json"))
    told = ended.json()
    assert (told["images"], told["unreadable"], told["already_done"]) == (COUNT, 2, 0)
    assert told["worst"][0]["score"] == max(row["score"] for row in alone.values() if "score" in row)
    check(tmp_path / "out", alone)
    anomalous = {name for name, row in alone.items() if row.get("is_anomalous")}
    assert {path.name[:-4] for path in (tmp_path / "out" / "overlays").iterdir()} == anomalous
    before = parts(tmp_path / "out")
    again = run(*command(stored, photos, tmp_path / "out", cluster)).stdout
    assert f"{COUNT} images" in again
    assert parts(tmp_path / "out") == before
    assert run(*command(stored, photos, tmp_path / "out", cluster, "--maps")).error().endswith("with --overwrite")


def test_a_worker_and_then_a_whole_node_are_killed(
    photos: Path, stored: Path, cluster: Cluster, alone: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    process = start(*command(stored, photos, tmp_path / "out", cluster, "--heat-maps", "none", "--json"))
    wait_until(lambda: len(parts(tmp_path / "out")) >= 2, 240)
    kill_worker(cluster, "MapWorker")
    wait_until(lambda: len(parts(tmp_path / "out")) >= 5, 240)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    ended = finish(process, 280)
    add_node(cluster)  # for the tests that follow
    assert ended.json()["images"] == COUNT
    check(tmp_path / "out", alone)


def test_the_command_is_killed_and_stopped_and_given_again(
    photos: Path, stored: Path, cluster: Cluster, alone: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(*command(stored, photos, out, cluster))
    wait_until(lambda: len(parts(out)) >= 3, 240)
    process.kill()
    process.communicate()
    killed = parts(out)
    process = start(*command(stored, photos, out, cluster))
    wait_until(lambda: len(parts(out)) >= len(killed) + 2, 240)
    process.send_signal(signal.SIGINT)
    ended = finish(process, 280)
    assert ended.code == 130
    assert f"finished results are in {out}; run the same command to continue" in ended.stderr
    assert "Traceback" not in ended.stderr
    stopped = parts(out)
    told = run(*command(stored, photos, out, cluster, "--json")).json()
    assert 5 * COUNT / 16 <= told["already_done"] < COUNT
    after = parts(out)
    assert {name: after[name] for name in killed | stopped} == killed | stopped
    check(out, alone)


def test_from_an_object_store_into_an_object_store(
    photos: Path, stored: Path, alone: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    with object_store("line") as store:
        for path in sorted(photos.iterdir())[-20:]:
            with store.open_output_stream(f"line/in/{path.name}") as file:
                file.write(path.read_bytes())
        for path in stored.rglob("*"):
            if path.is_file():
                with store.open_output_stream(f"line/model/{path.relative_to(stored)}") as file:
                    file.write(path.read_bytes())
        process = start(
            *("inspect", "s3://line/model", "s3://line/in", "--out", "s3://line/out", "--engine", "torch"),
            *("--cluster", "local", "--json"),
        )
        ended = finish(process, 280)
        told = ended.json()
        assert (told["images"], told["unreadable"], told["out"]) == (20, 2, "s3://line/out")
        assert "Token authentication" not in ended.stderr, "a token is what a cluster started here has by default"
        for row in Job(StoragePath.of("s3://line/out")).results():
            assert row["path"] == f"s3://line/in/{row['image']}"
            expected = alone[row["image"]]
            for name in ("score", "regions", "error"):
                assert row[name] == expected.get(name), (row["image"], name)


@pytest.mark.usefixtures("cluster")
def test_from_outside_of_the_cluster(
    photos: Path, stored: Path, client_port: int, alone: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    address = f"ray://127.0.0.1:{client_port}"
    process = start("inspect", stored, f"{photos}/00?.png", "--out", tmp_path / "out", "--cluster", address, "--json")
    assert finish(process, 280).json()["images"] == 10
    for row in Job(StoragePath.of(tmp_path / "out")).results():
        assert row["score"] == pytest.approx(alone[row["image"]]["score"], rel=1e-4)


def test_workers_share_a_memory_in_shards(
    photos: Path, stored: Path, cluster: Cluster, alone: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    some = f"{photos}/00?.png"
    told = run(*command(stored, some, tmp_path / "out", cluster, "--shards", 3, "--json")).json()
    assert told["images"] == 10
    for row in Job(StoragePath.of(tmp_path / "out")).results():
        assert (row["score"], row["regions"]) == (alone[row["image"]]["score"], alone[row["image"]]["regions"])


def test_a_model_that_travelled_is_kept_where_nobody_else_can_put_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bundle = {"model.json": b"{}", "a/b.bin": b"rows"}
    kept = Path(archive._unpacked("s3://line/model", bundle))
    assert files(kept) == bundle
    assert archive._unpacked("s3://line/model", bundle) == str(kept)
    assert list(tmp_path.iterdir()) == [kept]

    theirs = tmp_path / "theirs"
    kept.rename(theirs)
    (theirs / "model.json").write_bytes(b"other")
    kept.symlink_to(theirs)
    ours = Path(archive._unpacked("s3://line/model", bundle))
    assert ours != kept
    assert files(ours) == bundle


def test_wrong_orders_are_explained(photos: Path, stored: Path, cluster: Cluster, tmp_path: Path) -> None:
    def error(*changed: object) -> str:
        return run(*changed).error()

    out = tmp_path / "out"
    assert "--explain cannot be used with --cluster" in error(*command(stored, photos, out, cluster, "--explain"))
    assert "there is no file or folder" in error(*command(stored, photos / "x", out, cluster))
    assert "is not a model folder" in error(*command(photos, photos, out, cluster))
    assert "no cluster answers at '127.0.0.1:1'" in error(
        "inspect", stored, photos, "--out", out, "--cluster", "127.0.0.1:1"
    )
    empty = tmp_path / "broken"
    empty.mkdir()
    (empty / "a.png").touch()
    assert "none of the 1 images could be read" in error(*command(stored, empty, out, cluster))


def test_without_ray_the_command_says_what_to_install(photos: Path, stored: Path, tmp_path: Path) -> None:
    program = """
import sys
sys.modules["ray"] = None
from patchsvdd.apps.cli import main
main()
"""
    order = ["inspect", str(stored), str(photos), "--out", str(tmp_path / "out"), "--cluster", "auto"]
    done = subprocess.run([sys.executable, "-c", program, *order], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    told = done.stderr.strip()
    assert told.startswith("error: ray is not installed (")
    assert told.endswith('install it: pip install "patchsvdd[cluster]"')
    assert not (tmp_path / "out").exists()


def test_nothing_else_ever_imports_ray(photos: Path, stored: Path, tmp_path: Path) -> None:
    code = (
        "import sys, atexit\n"
        "names = ('ray', 'pyarrow', 'pandas')\n"
        "atexit.register(lambda: print([n for n in names if n in sys.modules], file=sys.stderr))\n"
        "from patchsvdd.apps.cli import app\n"
        f"app(['inspect', {str(stored)!r}, {str(photos / '000.png')!r}, '--out', {str(tmp_path / 'out')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
