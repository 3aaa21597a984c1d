"""Archives: finding images here and in an object store, plans, chunks and their results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from PIL import Image
from pyarrow import fs

from patchsvdd.apps.cluster.chunk_inspection import ChunkSummary, OutputOptions, inspect_chunk
from patchsvdd.apps.cluster.image_listing import find_archive
from patchsvdd.apps.cluster.job import Chunk, Job
from patchsvdd.apps.cluster.job_summary import summarise
from patchsvdd.apps.cluster.storage import StoragePath
from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, OutputError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.report.inspection_run import inspect_into
from patchsvdd.report.model_card import ModelCard
from support.command_line import draw_parts, part, rows
from support.object_store import object_store

pytestmark = pytest.mark.slow

BUCKET = "archive"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven photos in two folders, two files that are none, and what is no photo at all."""
    folder = tmp_path_factory.mktemp("photos")
    draw_parts(folder / "monday", 3, first=10)
    draw_parts(folder / "tuesday [late]", 2, first=20, suffix=".jpg")
    draw_parts(folder, 1, first=30)
    part(40, defect=True)[0].save(folder / "tuesday [late]" / "spot #1?.png")
    (folder / "broken.png").write_bytes(b"no image")
    (folder / "empty.jpeg").touch()
    (folder / "notes.txt").write_text("no photo")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


NAMES = [
    "000.png",
    "broken.png",
    "empty.jpeg",
    "monday/000.png",
    "monday/001.png",
    "monday/002.png",
    "tuesday [late]/000.jpg",
    "tuesday [late]/001.jpg",
    "tuesday [late]/spot #1?.png",
]


@pytest.fixture(scope="module")
def store(photos: Path) -> Iterator[fs.FileSystem]:
    """The same photos in an object store."""
    with object_store(BUCKET) as store:
        for path in photos.rglob("*"):
            if path.is_file():
                with store.open_output_stream(f"{BUCKET}/in/{path.relative_to(photos)}") as file:
                    file.write(path.read_bytes())
        yield store


def found(*inputs: object) -> dict[str, str]:
    return dict(find_archive([str(one) for one in inputs]))


def test_a_folder_is_searched_by_name(photos: Path) -> None:
    assert found(photos) == {name: f"{photos}/{name}" for name in NAMES}


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*.png", ["000.png", "broken.png"]),
        ("**/*.png", [name for name in NAMES if name.endswith(".png")]),
        ("monday/00[01].png", ["monday/000.png", "monday/001.png"]),
        ("monday/00[!01].png", ["monday/002.png"]),
        ("*/00?.*", ["monday/000.png", "monday/001.png", "monday/002.png", *NAMES[6:8]]),
    ],
)
@pytest.mark.parametrize("where", ["here", "there"])
def test_patterns(where: str, pattern: str, wanted: list[str], photos: Path, request: pytest.FixtureRequest) -> None:
    root = str(photos)
    if where == "there":
        request.getfixturevalue("store")
        root = f"s3://{BUCKET}/in"
    places = [f"{root}/{name}" for name in wanted]
    assert list(found(f"{root}/{pattern}").values()) == places


def test_a_pattern_of_the_working_folder(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos / "monday")
    assert list(found("*1.png")) == ["001.png"]


def test_an_object_store_is_searched_alike(store: fs.FileSystem) -> None:
    assert found(f"s3://{BUCKET}/in/") == {name: f"s3://{BUCKET}/in/{name}" for name in NAMES}


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("column", ["path", "whatever"])
def test_lists_of_paths(kind: str, column: str, photos: Path, tmp_path: Path) -> None:
    listed = [str(photos / "000.png"), "beside.png", "s3://bucket/there.png", "beside.png"]
    table = pa.table({"number": [1, 2, 3, 4], column: listed})
    if kind == "parquet":
        pyarrow.parquet.write_table(table, tmp_path / "list.parquet")
    else:
        (tmp_path / "list.csv").write_text(
            f"number,{column}\n" + "".join(f"{index},{path}\n" for index, path in enumerate(listed))
        )
    places = found(tmp_path / f"list.{kind}")
    assert list(places.values()) == [listed[0], str(tmp_path / "beside.png"), listed[2]]
    assert list(places) == listed[:3]


def test_several_inputs_are_told_by_their_places_and_each_image_once(photos: Path) -> None:
    places = found(photos / "monday", photos / "monday" / "001.png", photos / "000.png")
    assert places == {str(path): str(path) for path in [*sorted(photos.glob("monday/*")), photos / "000.png"]}


def test_what_cannot_be_found_is_explained(photos: Path, tmp_path: Path, store: fs.FileSystem) -> None:
    with pytest.raises(DatasetError, match="there is no file or folder"):
        found(photos / "wednesday")
    with pytest.raises(DatasetError, match=r"there is no image in .*a pattern such as"):
        found(photos / "*.bmp")
    with pytest.raises(DatasetError, match="there is no folder"):
        found(tmp_path / "nowhere" / "*.png")
    with pytest.raises(DatasetError, match="there is no file or folder"):
        found(f"s3://{BUCKET}/nothing")
    (tmp_path / "list.csv").write_text("a,b\nx,y\n")
    with pytest.raises(DatasetError, match="columns a, b; name the column of paths 'path'"):
        found(tmp_path / "list.csv")
    (tmp_path / "list.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DatasetError, match="cannot be read as a list of images"):
        found(tmp_path / "list.parquet")
    with pytest.raises(ConfigError, match="cannot be opened as an object store"):
        found("gopher://somewhere/in")


def test_an_object_store_that_does_not_answer_is_named(store: fs.FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    from patchsvdd.apps.cluster import storage as places

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    places._system.cache_clear()
    try:
        with pytest.raises(DatasetError, match=r"s3://archive/in' cannot be accessed .*check the address and the keys"):
            found(f"s3://{BUCKET}/in")
    finally:
        places._system.cache_clear()


def test_an_outage_of_the_store_is_no_result(
    store: fs.FileSystem, detector: PatchSVDD, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from patchsvdd.apps.cluster import storage as places

    job = Job(StoragePath.of(tmp_path / "job"))
    job.open({})
    job.extend(find_archive([f"s3://{BUCKET}/in/monday"]))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    places._system.cache_clear()
    with pytest.raises(DatasetError, match=r"none of 3 images could be read, .* same command again"):
        run_all(detector, job)
    assert len(job.to_do()) == 1
    monkeypatch.undo()
    places._system.cache_clear()
    run_all(detector, job)
    assert [row["error"] for row in job.results()] == [None] * 3


def test_images_elsewhere_are_decoded_as_those_here(photos: Path, store: fs.FileSystem, detector: PatchSVDD) -> None:
    for name in ("monday/000.png", "tuesday [late]/000.jpg", "tuesday [late]/spot #1?.png"):
        there = detector.inspect(StoragePath(f"s3://{BUCKET}/in/{name}"))
        assert np.array_equal(there.image, detector.inspect(photos / name).image)
    for name, reason in {"broken.png": "is not a PNG", "empty.jpeg": "is an empty file", "gone.png": "no such"}.items():
        with pytest.raises(ImageError, match=reason):
            detector.inspect(StoragePath(f"s3://{BUCKET}/in/{name}"))


def run_all(detector: PatchSVDD, job: Job, wanted: OutputOptions = OutputOptions()) -> list[ChunkSummary]:  # noqa: B008
    return [inspect_chunk(detector, job, chunk, wanted) for chunk in job.to_do()]


@pytest.mark.parametrize("where", ["here", "there"])
def test_results_are_those_of_one_process(
    where: str, photos: Path, detector: PatchSVDD, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source, out = str(photos), str(tmp_path / "job")
    if where == "there":
        request.getfixturevalue("store")
        source, out = f"s3://{BUCKET}/in", f"s3://{BUCKET}/{tmp_path.name}"
    inspect_into(tmp_path / "alone", detector, [photos], model_name="model", card=ModelCard(), save_maps=True)
    alone = {row["image"]: row for row in rows(tmp_path / "alone")}
    job = Job(StoragePath.of(out))
    job.open({"model": detector.identity})
    assert job.extend(find_archive([source]), chunk=4) == 9
    assert [chunk.images for chunk in job.to_do()] == [4, 4, 1]
    told = run_all(detector, job, OutputOptions("anomalous", maps=True))
    assert sum(one.unreadable for one in told) == 2
    assert job.to_do() == []
    results = list(job.results())
    assert [row["image"] for row in results] == NAMES
    for row in results:
        expected = alone[row["image"]]
        assert row["error"] == expected.get("error")
        if row["error"] is None:
            same = ("score", "threshold", "p_value", "verdict", "is_anomalous", "image_size", "regions", "min_area")
            assert {name: row[name] for name in same} == {name: expected[name] for name in same}
            assert (row["overlay"] is not None) == row["is_anomalous"]
            here = np.load(tmp_path / "alone" / expected["map"])
            (tmp_path / "map.npy").write_bytes((job.out / row["map"]).read_bytes())
            assert np.array_equal(np.load(tmp_path / "map.npy"), here)
    summary = summarise(job, worst=2)
    assert (summary.images, summary.unreadable) == (9, 2)
    assert summary.anomalous == sum(one.anomalous for one in told)
    assert summary.worst[0]["score"] == max(row["score"] for row in results if row["score"] is not None)


def test_results_are_one_partitioned_data_set(photos: Path, detector: PatchSVDD, tmp_path: Path) -> None:
    job = Job(StoragePath.of(tmp_path / "job"))
    job.open({"model": detector.identity})
    job.extend(find_archive([str(photos)]), chunk=4)
    run_all(detector, job)
    table = pyarrow.dataset.dataset(tmp_path / "job" / "results", partitioning="hive").to_table()
    assert table.num_rows == 9
    assert set(table["plan"].to_pylist()) == {0}
    assert table.schema.field("regions").type.value_type.field("score").type == pa.float64()


def test_what_is_done_is_not_done_again_and_what_came_later_is(
    photos: Path, detector: PatchSVDD, tmp_path: Path
) -> None:
    source = tmp_path / "photos"
    draw_parts(source, 5)
    job = Job(StoragePath.of(tmp_path / "job"))
    job.open({"model": detector.identity})
    job.extend(find_archive([str(source)]), chunk=2)
    first, *others = job.to_do()
    inspect_chunk(detector, job, first, OutputOptions())
    before = (tmp_path / "job" / "results" / first.part).stat()
    draw_parts(source / "later", 3, first=50)
    job.open({"model": detector.identity})
    assert job.extend(find_archive([str(source)]), chunk=2) == 3
    assert job.extend(find_archive([str(source)]), chunk=2) == 0
    assert job.to_do() == [*others, Chunk(1, 0, 2), Chunk(1, 1, 1)]
    run_all(detector, job)
    inspect_chunk(detector, job, others[0], OutputOptions())  # by a worker that was thought lost
    names = [row["image"] for row in job.results(["image"])]
    assert sorted(names) == sorted(name for name, _ in find_archive([str(source)]))
    assert len(set(names)) == 8
    after = (tmp_path / "job" / "results" / first.part).stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_results_of_another_model_are_not_mixed_in(photos: Path, detector: PatchSVDD, tmp_path: Path) -> None:
    job = Job(StoragePath.of(tmp_path / "job"))
    job.open({"model": "one", "maps": False})
    job.extend(find_archive([str(photos)]), chunk=100)
    run_all(detector, job)
    with pytest.raises(
        OutputError, match=r"holds a job with model 'one', but this run has 'other'; .*`overwrite=True`"
    ):
        job.open({"model": "other", "maps": False})
    with pytest.raises(OutputError, match="with maps False, but this run has True"):
        job.open({"model": "one", "maps": True})
    assert job.to_do() == []
    job.open({"model": "other", "maps": False}, overwrite=True)
    assert job.chunks() == []
    assert json.loads((tmp_path / "job" / "job.json").read_text())["model"] == "other"


def test_names_that_are_no_names_of_files_still_get_pictures(detector: PatchSVDD, tmp_path: Path) -> None:
    part(1)[0].save(tmp_path / "a.png")
    listed = [str(tmp_path / "a.png"), "../" * 3 + "x.png", "long" * 70 + ".png"]
    job = Job(StoragePath.of(tmp_path / "job"))
    job.open({})
    job.extend([(name, str(tmp_path / "a.png")) for name in listed], chunk=1)
    run_all(detector, job, OutputOptions("all"))
    overlays = [row["overlay"] for row in job.results()]
    assert len(set(overlays)) == 3
    for overlay in overlays:
        path = tmp_path / "job" / overlay
        assert path.resolve().is_relative_to(tmp_path / "job" / "overlays")
        assert Image.open(path).format == "JPEG"


def test_names_that_are_not_unicode_become_rows_with_an_error(detector: PatchSVDD, tmp_path: Path) -> None:
    draw_parts(tmp_path / "photos", 1)
    part(2)[0].save(tmp_path / "photos" / os.fsdecode(b"caf\xe9.png"))
    job = Job(StoragePath.of(tmp_path / "job"))
    job.open({})
    job.extend(find_archive([str(tmp_path / "photos")]))
    run_all(detector, job)
    told = {row["image"]: row["error"] for row in job.results()}
    assert told["000.png"] is None
    assert "there is no such file" in told["caf\\udce9.png"]
