"""Drawn defects: stored, replaced, withdrawn, exported and imported."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from patchsvdd.apps.serve.annotations import annotation_mask
from patchsvdd.apps.serve.store import Store
from patchsvdd.apps.serve.tables import drawings, inspections
from patchsvdd.images.labels.files import parse_labels, read_labels
from patchsvdd.images.labels.label_file import Labels
from patchsvdd.images.labels.shapes import Box, Polygon
from support.serving import Running, row, running, settings

pytestmark = pytest.mark.service

BOX = {"type": "box", "kind": "dent", "box": [10.0, 10.0, 30.0, 20.0]}
TRIANGLE = {"type": "polygon", "kind": "scratch", "rings": [[[40.0, 2.0], [50.0, 2.0], [45.0, 9.0]]]}
STROKE = {"type": "stroke", "kind": "scratch", "width": 4, "points": [[5, 30], [20, 30]]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service without models: annotations need none."""
    with running(settings(tmp_path_factory.mktemp("annotations") / "data")) as found:
        yield found


def store_one(server: Running, name: str = "n.png", **values: Any) -> str:
    """Store an inspection and return its id."""
    stored = row(name=name, width=60, height=40, verdict="anomalous", **values)
    server.service.store.insert_inspection(stored).result()
    return str(stored["id"])


def put(server: Running, number: str, *shapes: Any) -> httpx.Response:
    answer: httpx.Response = server.client.put(f"/v1/inspections/{number}/annotation", json={"shapes": shapes})
    return answer


def test_a_drawing_is_stored_replaced_and_withdrawn(server: Running) -> None:
    number, store = store_one(server), server.service.store
    path = f"/v1/inspections/{number}/annotation"
    empty = server.client.get(path).json()
    assert (empty["shapes"], empty["at"], empty["by"]) == ([], None, None)
    answer = put(server, number, BOX, TRIANGLE).json()
    assert answer["shapes"] == [BOX, TRIANGLE]
    assert set(answer["kinds"]) >= {"dent", "scratch"}
    assert server.client.get(path).json() == answer
    annotation = store.annotation(number)
    assert annotation is not None
    expected = Box(10, 10, 30, 20).mask((40, 60)) | Polygon((((40, 2), (50, 2), (45, 9)),)).mask((40, 60))
    assert (annotation_mask(store.inspection(number), annotation) == expected).all()
    (brush,) = put(server, number, STROKE, STROKE).json()["shapes"]
    assert brush["type"] == "brush"
    assert brush["kind"] == "scratch"
    assert put(server, number).json()["shapes"] == []
    assert store.annotation(number) is None


def test_the_latest_of_many_inspections_is_found(server: Running) -> None:
    numbers = [store_one(server, f"many-{index}.png") for index in range(3)]
    for index in range(4):
        for number in numbers[:2]:
            put(server, number, {**BOX, "kind": f"kind {index}"})
    found = server.service.store.annotations_of(numbers)
    assert set(found) == set(numbers[:2])
    assert {one["shapes"][0]["kind"] for one in found.values()} == {"kind 3"}


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ([{"type": "box", "box": [70, 2, 80, 5]}], "outside of the image of 60 x 40 pixels"),
        ([{"type": "stroke", "width": 4001, "points": [[1, 1]]}], "its width is 4001 pixels"),
        ([BOX] * 501, "500"),
        (["x"], "shapes"),
    ],
)
def test_drawings_that_cannot_be_used_are_refused(server: Running, shapes: list[Any], reason: str) -> None:
    answer = put(server, store_one(server), *shapes)
    assert answer.status_code == 422
    assert reason in answer.json()["detail"]


def test_a_good_part_has_no_defect(server: Running) -> None:
    number = store_one(server)
    put(server, number, BOX)
    server.client.post(f"/v1/inspections/{number}/review", json={"verdict": "false_alarm"})
    assert put(server, number, BOX).status_code == 409
    assert put(server, number).status_code == 200
    assert put(server, "0" * 24, BOX).status_code == 404
    assert server.client.get(f"/v1/inspections/{'0' * 24}/annotation").status_code == 404


def test_too_large_a_drawing_is_refused(server: Running) -> None:
    content = b'{"shapes": [' + b" " * (2 << 20) + b"]}"
    answer = server.client.put(f"/v1/inspections/{store_one(server)}/annotation", content=content)
    assert answer.status_code == 413


def labels_in(answer: httpx.Response, folder: Path) -> Labels:
    """The labels of an export."""
    assert answer.status_code == 200
    if answer.headers["content-type"] == "application/zip":
        zipfile.ZipFile(io.BytesIO(answer.content)).extractall(folder)
        return read_labels(folder)
    labels = Labels()
    parse_labels(answer.json(), "export", labels)
    return labels


@pytest.mark.parametrize("to", ["coco", "labelme", "label-studio"])
def test_labels_go_out_and_come_in_again(server: Running, tmp_path: Path, to: str) -> None:
    lot = f"lot {to}"
    names = {
        name: store_one(server, f"{to}-{name}.png", lot=lot) for name in ("drawn", "defect", "good", "open", "gone")
    }
    twice = store_one(server, f"{to}-drawn.png", lot=lot)
    put(server, names["drawn"], BOX, STROKE)
    put(server, twice, TRIANGLE)
    put(server, names["gone"], BOX)
    put(server, names["gone"])
    for name, verdict in (("defect", "true_defect"), ("good", "false_alarm")):
        server.client.post(f"/v1/inspections/{names[name]}/review", json={"verdict": verdict})
    answer = server.client.get("/v1/reports/labels.json", params={"format": to, "lot": lot})
    labels = labels_in(answer, tmp_path)
    assert labels.problems == []
    found = {image.name: image for image in labels.images}
    assert found.keys() == {
        *(f"{to}-{name}.png" for name in ("drawn", "defect", "good")),
        f"{names['drawn']}/{to}-drawn.png",  # the older one of the same name
    }
    assert not found[f"{to}-good.png"].is_defect
    assert found[f"{to}-defect.png"].is_defect
    annotation = server.service.store.annotation(names["drawn"])
    assert annotation is not None
    mask = annotation_mask(server.service.store.inspection(names["drawn"]), annotation)
    assert (found[f"{names['drawn']}/{to}-drawn.png"].mask() == mask).all()
    if to == "labelme":
        return
    server.client.post(f"/v1/inspections/{names['good']}/review", json={"verdict": None})
    put(server, twice)
    imported = server.client.post("/v1/annotations", content=answer.content).json()
    assert imported["format"] == to
    assert (imported["images"], imported["annotated"], imported["without_shapes"]) == (4, 0, 2)
    assert all("2 inspections have this name" in problem for problem in imported["problems"])
    renamed = answer.content.replace(f"{to}-drawn.png".encode(), f"line 1/{to}-open.png".encode(), 1)
    imported = server.client.post("/v1/annotations", files={"file": ("a.json", renamed)}).json()
    assert imported["annotated"] == 1
    again = server.service.store.annotation(names["open"])
    assert again is not None


def test_labels_that_do_not_fit_are_reported(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, good = store_one(server, "wrong.png"), store_one(server, "good.png")
    server.client.post(f"/v1/inspections/{good}/review", json={"verdict": "false_alarm"})
    images = [
        {"id": 1, "file_name": "wrong.png", "width": 61, "height": 40},
        {"id": 2, "file_name": "good.png", "width": 60, "height": 40},
        {"id": 3, "file_name": "nobody.png", "width": 60, "height": 40},
    ]
    marks = [{"image_id": number, "bbox": [1, 1, 9, 9]} for number in (1, 2, 3)] + [{"image_id": 1}]
    answer = server.client.post("/v1/annotations", json={"images": images, "annotations": marks, "categories": []})
    assert answer.json()["annotated"] == 0
    assert [problem.split(": ", 1)[1] for problem in answer.json()["problems"]] == [
        "annotation 4 (wrong.png) was skipped: it has neither a segmentation nor a box",
        "no inspection has this name; its labels are not used",
        "it was labelled at 61 x 40 pixels, and the inspected image has 60 x 40",
        "it was reviewed as good",
    ]
    assert server.service.store.annotation(wrong) is None
    assert server.client.post("/v1/annotations", content=b"{").status_code == 422
    monkeypatch.setattr("patchsvdd.apps.serve.annotations.MOST_PIXELS", 10_000)
    mark = {"image_id": 1, "segmentation": {"size": [100, 100], "counts": [0, 10_000]}}
    images = [{"id": 1, "file_name": "large.png"}]
    answer = server.client.post("/v1/annotations", json={"images": images, "annotations": [mark, mark]})
    assert answer.status_code == 422
    assert "too many pixels together" in answer.json()["detail"]
    assert server.client.post("/v1/annotations", content=b"[]").status_code == 422


def test_an_annotation_goes_with_its_inspection(server: Running) -> None:
    number = store_one(server)
    put(server, number, BOX)
    store: Store = server.service.store
    store.write(lambda connection: connection.execute(sa.delete(inspections).where(inspections.c.id == number)))
    with store.reading() as connection:
        left = sa.select(sa.func.count()).select_from(drawings).where(drawings.c.inspection == number)
        assert connection.execute(left).scalar() == 0
