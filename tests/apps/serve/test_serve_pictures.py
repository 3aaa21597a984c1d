"""Pictures of inspections: thumbnails, views, what browsers may keep, and files that are more or less than an image."""

from __future__ import annotations

import asyncio
import io
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from PIL import Image

from patchsvdd.apps.serve import pictures, retention
from patchsvdd.apps.serve.auth import add_key
from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.decoder_pool import decode_upload
from patchsvdd.apps.serve.png_rows import _expected_bytes, _inflated_bytes
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.retention import RetentionTask
from patchsvdd.apps.serve.settings import MEBIBYTE, Retention, Settings
from patchsvdd.apps.serve.store import Filter, Store
from patchsvdd.apps.serve.tables import inspections
from support.parts import draw_part
from support.serving import Running, part, png, row, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service

ONLY_PREVIEWS = {"only_previews": True, "max_pixels": 64_000_000}


@pytest.fixture(scope="module")
def server(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    limits = {"decode_seconds": 30.0, "deadline": 120.0}
    with running(settings(tmp_path_factory.mktemp("pictures") / "data", stored, limits=limits)) as one:
        yield one


def large(side: int, kind: str = "PNG", **options: Any) -> bytes:
    """An image of a part, ``side`` pixels wide and three quarters as high."""
    image = Image.fromarray(draw_part(3)).resize((side, side * 3 // 4))
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def stored_row(server: Running, number: str) -> dict[str, Any]:
    return dict(server.service.store.inspection(number))


def picture(server: Running, number: str, side: int | None = None) -> tuple[bytes, str, tuple[int, int]]:
    """The content, media type and size of an inspection's picture."""
    params = {} if side is None else {"side": side}
    answer = server.client.get(f"/v1/inspections/{number}/picture", params=params)
    assert answer.status_code == 200, answer.text
    with Image.open(io.BytesIO(answer.content)) as image:
        return answer.content, answer.headers["content-type"], image.size


# Thumbnails and views


def test_thumbnail_and_view_are_stored_with_the_inspection(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """M3: the whole picture used to be decoded for every request."""
    data = large(2000)
    number = server.inspect("part", data).json()["id"]
    found = stored_row(server, number)
    assert found["thumbnail"]
    assert found["view"]
    blobs = server.service.blobs
    monkeypatch.setattr(server.service.pictures, "_decode", None)  # nothing is decoded
    for side in (16, 96, 256):
        content, kind, size = picture(server, number, side)
        assert (content, kind, size) == (blobs.get(found["thumbnail"]), "image/jpeg", (256, 192))
    content, kind, size = picture(server, number, 1600)
    assert (content, kind, size) == (blobs.get(found["view"]), "image/jpeg", (1600, 1200))
    assert picture(server, number)[:2] == (data, "image/png")
    assert found["view_bytes"] == sum(len(blobs.get(found[name]) or b"") for name in ("thumbnail", "view"))


def test_a_picture_that_will_do_is_not_stored_twice(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.service.pictures, "_decode", None)
    small = server.inspect("part", data := part(30)).json()["id"]
    found = stored_row(server, small)
    assert (found["thumbnail"], found["view"], found["view_bytes"]) == (found["picture"], None, 0)
    for side in (None, 64, 256, 700, 1600, 2048):
        assert picture(server, small, side)[:2] == (data, "image/png")
    middle = server.inspect("part", data := large(800, "JPEG")).json()["id"]
    assert stored_row(server, middle)["view"] is None
    assert picture(server, middle, 256)[2] == (256, 192)
    assert picture(server, middle, 1600)[0] == data


def test_formats_that_browsers_do_not_show_have_a_view(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    number = server.inspect("part", large(400, "TIFF")).json()["id"]
    monkeypatch.setattr(server.service.pictures, "_decode", None)
    for side in (None, 1600, 500):
        assert picture(server, number, side)[1:] == ("image/jpeg", (400, 300))


def test_other_sizes_are_drawn_from_the_view(server: Running) -> None:
    number = server.inspect("part", large(2000)).json()["id"]
    asked: list[int] = []
    decoders = server.service.pictures.decoders
    jpeg = decoders.jpeg

    def counted(data: bytes, side: int | None, name: str) -> bytes:
        asked.append(len(data))
        return jpeg(data, side, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoders, "jpeg", counted)
        assert picture(server, number, 500)[2] == (500, 375)
        assert picture(server, number, 1800)[2] == (1800, 1350)
    found = stored_row(server, number)
    assert asked == [len(server.service.blobs.get(found["view"]) or b""), found["picture_bytes"]]


def test_an_older_inspection_gets_its_thumbnail_when_it_is_first_seen(server: Running) -> None:
    numbers = [server.inspect("part", data).json()["id"] for data in (large(1700), large(300, "BMP"))]
    empty = {"thumbnail": None, "view": None, "view_bytes": 0, "owner": None}
    change = sa.update(inspections).where(inspections.c.id.in_(numbers)).values(**empty)
    server.service.store.write(lambda connection: connection.execute(change).rowcount)
    assert picture(server, numbers[0], 1600)[2] == (1600, 1200)
    assert picture(server, numbers[1], 100)[2] == (256, 192)
    for number in numbers:
        found = stored_row(server, number)
        assert all(found[name] for name in ("thumbnail", "view", "view_bytes"))
        assert picture(server, number, 256)[0] == server.service.blobs.get(found["thumbnail"])


def test_a_thumbnail_that_was_lost_is_drawn_again(server: Running) -> None:
    number = server.inspect("part", large(2000)).json()["id"]
    found = stored_row(server, number)
    for name in ("thumbnail", "view"):
        path = server.service.blobs.path(found[name])
        path.write_bytes(path.read_bytes()[:100])  # cut off by a power failure
    for side, size in ((256, (256, 192)), (900, (900, 675)), (1600, (1600, 1200))):
        assert picture(server, number, side)[1:] == ("image/jpeg", size)
    server.service.blobs.path(found["view"]).unlink()
    assert picture(server, number, 901)[2] == (901, 676)


def test_a_turned_photo_is_turned_in_its_thumbnail() -> None:
    image, exif = Image.fromarray(draw_part(3)).resize((400, 300)), Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif)
    facts, (thumbnail, view) = decode_upload(file.getvalue(), ONLY_PREVIEWS)
    assert facts["size"] == [400, 300]
    assert not view
    with Image.open(io.BytesIO(thumbnail)) as small:
        assert small.size == (192, 256)


def test_a_thumbnail_is_there_while_others_are_asked_for(server: Running) -> None:
    """M3: a thumbnail behind 20 others of 12 megapixels waited 17.7 s."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (3000, 64, 3), np.uint8)
    data = png(np.tile(noise, (1, 63, 1))[:, :4000])
    number = server.inspect("part", data).json()["id"]
    with ThreadPoolExecutor(20) as pool, httpx.Client(base_url=server.url, timeout=120) as client:
        path = f"/v1/inspections/{number}/picture"
        others = [pool.submit(httpx.get, f"{server.url}{path}?side={1700 + index}", timeout=120) for index in range(20)]
        wait_until(lambda: server.service.pictures._waiting >= 10)
        seconds: list[float] = []
        while len(seconds) < 5 or (min(seconds) > 0.2 and len(seconds) < 40):
            start = time.monotonic()
            assert client.get(path, params={"side": 256}).status_code == 200
            seconds.append(time.monotonic() - start)
        assert min(seconds) <= 0.2
        assert sum(not one.done() for one in others) >= 10
        server.service.pictures._threads.submit(lambda: None)
        for one in others:
            assert one.result().status_code == 200


def test_the_line_for_viewing_is_bounded(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    number = server.inspect("part", large(1700)).json()["id"]
    gate = threading.Event()
    server.service.pictures._threads.submit(gate.wait, 60)
    monkeypatch.setattr(pictures, "WAITING", 3)
    with ThreadPoolExecutor(3) as pool:
        url = f"{server.url}/v1/inspections/{number}/picture"
        held = [pool.submit(httpx.get, f"{url}?side={1650 + index}", timeout=60) for index in range(3)]
        wait_until(lambda: server.service.pictures._waiting == 3)
        refused = server.client.get(f"{url}?side=1690")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert picture(server, number, 256)[2] == (256, 192)
        gate.set()
        assert [one.result().status_code for one in held] == [200, 200, 200]


def test_a_picture_that_nobody_waits_for_is_not_decoded(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """M3: six requests whose client had hung up cost the next viewer 16.7 s."""
    number = server.inspect("part", large(1700)).json()["id"]
    decoded: list[int | None] = []
    decode = server.service.pictures._decode

    def counted(found: Any, side: int | None) -> Any:
        decoded.append(side)
        return decode(found, side)

    monkeypatch.setattr(server.service.pictures, "_decode", counted)
    gate = threading.Event()
    server.service.pictures._threads.submit(gate.wait, 60)
    connections = []
    for side in range(1610, 1616):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        request = f"GET /v1/inspections/{number}/picture?side={side} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(request.encode())
        connections.append(connection)
    wait_until(lambda: server.service.pictures._waiting == 6)
    for connection in connections:
        connection.close()
    wait_until(lambda: server.service.pictures._waiting == 0)
    gate.set()
    assert picture(server, number, 1620)[2] == (1620, 1215)
    assert decoded == [1620]


def test_retention_counts_and_deletes_thumbnails_and_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MIN_AGE", -1.0)
    store, blobs = Store(f"sqlite:///{tmp_path / 'x.sqlite'}"), Blobs(tmp_path / "pictures")
    keeper = RetentionTask(store, blobs, Retention(None, MEBIBYTE), "me")
    rows = []
    for index in range(3):
        names = {name: blobs.put(f"{name} {index}".encode()) for name in ("picture", "map", "thumbnail", "view")}
        rows.append(row(time.time() + index, **names, view_bytes=MEBIBYTE // 2, owner="me"))
    rows.append(row(1.0, picture=blobs.put(b"x"), view_bytes=99 * MEBIBYTE, owner="another service"))
    for one in rows:
        store.insert_inspection(one).result()
    assert keeper.round() == (0, 1)
    kept = {one["id"]: one for one in store.inspections(Filter(), 10)}
    gone = kept[rows[0]["id"]]
    assert (gone["picture"], gone["thumbnail"], gone["view"], gone["view_bytes"]) == (None, None, None, 0)
    for name in ("picture", "map", "thumbnail", "view"):
        assert blobs.get(rows[0][name]) is None
        assert blobs.get(rows[1][name]) is not None
    assert kept[rows[3]["id"]]["picture"] is not None  # not ours to delete
    assert RetentionTask(store, blobs, Retention(1.0, None), "me").round() == (0, 0)
    store.close()


# What browsers keep


def test_signing_out_ends_what_the_browser_shows(stored: Path, tmp_path: Path, server: Running) -> None:
    """L1: pictures stayed in the browser's cache as immutable."""
    store = Store(Settings((), tmp_path / "data").url)
    key = add_key(store, "me", "admin")
    store.close()
    with running(settings(tmp_path / "data", stored, require_key=True)) as guarded:
        shown = {"X-API-Key": key}
        sent = guarded.client.post("/v1/models/part/inspect", content=part(), headers=shown).json()
        model = guarded.client.get("/v1/models/part", headers=shown).json()
        number = sent["id"]
        for path in (
            f"/v1/inspections/{number}/picture",
            f"/v1/inspections/{number}/picture?side=256",
            f"/v1/inspections/{number}/map",
            f"/v1/inspections/{number}/map?format=npy",
            f"/v1/models/part/pictures/0?identity={model['identity']}",
        ):
            first = guarded.client.get(path, headers=shown)
            if first.status_code == 404 and "pictures" in path:
                continue  # this model holds none
            assert first.headers["cache-control"] == "private, no-cache", path
            again = guarded.client.get(path, headers={**shown, "If-None-Match": f'"x", W/{first.headers["etag"]}'})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == first.headers["etag"]
            signed_out = guarded.client.get(path, headers={"If-None-Match": first.headers["etag"]})
            assert signed_out.status_code == 401
            assert signed_out.headers["cache-control"] == "no-store"
    number = server.inspect("part", part()).json()["id"]
    assert "immutable" in server.client.get(f"/v1/inspections/{number}/picture").headers["cache-control"]


def test_a_picture_of_another_service_is_said_to_be_there(server: Running) -> None:
    """M9: pictures of another service on the same database were called deleted."""
    files: dict[str, Any] = {"picture": "a" * 64, "map": "b" * 64, "thumbnail": "c" * 64, "view": "d" * 64}
    other = row(**files, owner="another", width=2000, height=2000)
    server.service.store.insert_inspection(other).result()
    for path in ("picture", "picture?side=256", "picture?side=1600", "picture?side=999", "map", "explanation"):
        answer = server.client.get(f"/v1/inspections/{other['id']}/{path}")
        assert answer.status_code == 404, path
        assert "another service" in answer.json()["detail"], path
    mine = server.inspect("part", part(31)).json()["id"]
    assert stored_row(server, mine)["owner"] == server.service.settings.service_id
    assert 0 <= stored_row(server, mine)["draw"] < 1


# Files that hold less or more than an image


def png_with(rows: int, height: int, width: int = 64, interlaced: bool = False) -> bytes:
    """A black PNG that announces ``height`` rows and whose data hold ``rows``."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, int(interlaced))
    content = zlib.compress(b"\0" * (3 * width + 1) * rows)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", content[:20]), chunk(b"IDAT", content[20:]), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_a_png_without_all_its_rows_is_refused(server: Running) -> None:
    for rows in (1, 40, 79):
        answer = server.inspect("part", png_with(rows, 80))
        assert answer.status_code == 422, rows
        assert "is truncated" in answer.json()["detail"]
    assert server.inspect("part", png_with(80, 80)).status_code == 200  # black, but whole


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"])
@pytest.mark.parametrize("size", [(64, 64), (37, 81), (16, 17)])
def test_the_bytes_of_a_png_are_counted_right(mode: str, size: tuple[int, int]) -> None:
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    data = file.getvalue()
    assert _expected_bytes(data) == _inflated_bytes(data)
    assert "error" not in decode_upload(data, ONLY_PREVIEWS)[0]


def test_an_interlaced_png_is_counted_by_its_passes() -> None:
    data = png_with(1, 8, 8, interlaced=True)
    passes = ((1, 1), (1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4))
    assert _expected_bytes(data) == sum(rows * (1 + 3 * columns) for columns, rows in passes)


@pytest.mark.parametrize("kind", ["TIFF", "WEBP", "PNG"])
def test_more_pages_than_one_are_told(server: Running, kind: str) -> None:
    frames = [Image.fromarray(draw_part(seed)) for seed in (1, 2, 3)]
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    sent = server.inspect("part", file.getvalue()).json()
    assert sent["notes"] == ["the file has 3 pages or frames; only the first was inspected"]
    assert server.client.get(f"/v1/inspections/{sent['id']}").json()["notes"] == sent["notes"]
    file = io.BytesIO()
    frames[0].save(file, kind)
    assert server.inspect("part", file.getvalue()).json()["notes"] == []


def test_pictures_that_are_gone_are_told(server: Running) -> None:
    gone = row(picture="e" * 64, owner=server.service.settings.service_id)
    emptied = row()
    for one in (gone, emptied):
        server.service.store.insert_inspection(one).result()
        for side in (None, 256, 1600):
            with pytest.raises(Problem, match="has been deleted"):
                asyncio.run(server.service.picture(server.service.store.inspection(one["id"]), side))
