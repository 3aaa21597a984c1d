"""Who may do what, and what a hostile request comes to."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from PIL import Image

from patchsvdd.apps.serve import http_protocol as connections
from patchsvdd.apps.serve import uploads
from patchsvdd.apps.serve.accounts import add_user
from patchsvdd.apps.serve.app import HEADERS
from patchsvdd.apps.serve.auth import ROLES, Role, add_key, cookie_name
from patchsvdd.apps.serve.decoder_pool import Decoders, DecodingFailed
from patchsvdd.apps.serve.job_runner import safe_name
from patchsvdd.apps.serve.routes.dependencies import Allowed
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Store
from patchsvdd.core.errors import ConfigError, ImageError
from patchsvdd.core.presets import preset
from support.serving import Running, children, complete, memory_of, part, process, raw, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service

OPEN = {
    *(("GET", "/healthz"), ("GET", "/readyz")),
    *(("GET", "/v1/session"), ("POST", "/v1/session"), ("DELETE", "/v1/session")),
}
"""What answers without a key."""
PASSWORD = "a horse, a battery"
VALUES = {"name": "part", "number": "0" * 24, "index": "0", "file": "a.jpg", "view": "top"}


@pytest.fixture(scope="module")
def guarded(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, str]]]:
    """A service that asks for keys, and a key of each role."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    store = Store(Settings((), data).url)
    keys: dict[str, str] = {role: add_key(store, f"{role} key", role) for role in ROLES}
    store.close()
    with running(settings(data, stored, require_key=True)) as server:
        yield server, keys


@pytest.fixture(scope="module")
def local(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service on loopback, without keys, with small limits."""
    limits = {"upload_bytes": 200_000, "pixels": 1_000_000, "batch_images": 3, "batch_bytes": 400_000}
    with running(settings(tmp_path_factory.mktemp("local") / "data", stored, limits=limits)) as server:
        yield server


def routes(server: Running) -> list[tuple[str, str, Role | None]]:
    """Method, path and role of every route."""
    found: list[tuple[str, str, Role | None]] = []

    def walk(routes: Iterable[Any]) -> None:
        for route in routes:
            if isinstance(route, APIRoute):
                guards = [one.call for one in route.dependant.dependencies if isinstance(one.call, Allowed)]
                role = guards[0].role if guards else None
                found.extend((method, route.path, role) for method in sorted(route.methods or ()))
            elif hasattr(route, "original_router"):
                walk(route.original_router.routes)
            else:
                assert getattr(route, "name", "") == "page", f"{route} is not known to this test"

    walk(server.app.routes)
    described = {
        (method.upper(), path) for path, methods in server.app.openapi()["paths"].items() for method in methods
    }
    assert {(method, path) for method, path, _ in found} == described
    return found


def filled(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda found: VALUES[found[1]], path)


# Keys and roles


def test_every_route_refuses_who_shows_no_key(guarded: tuple[Running, dict[str, str]]) -> None:
    server, keys = guarded
    wrong = f"psk_{keys['admin'].split('_')[1]}_{'A' * 43}"
    shown: list[dict[str, str]] = [
        {},
        {"Authorization": f"Bearer {wrong}"},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {keys['admin']}"},
        {"X-API-Key": wrong},
        {"Cookie": f"{server.service.guard.cookie}={'a' * 43}"},
        {"Cookie": f"{server.service.guard.cookie}={keys['admin']}"},
    ]
    for method, path, role in routes(server):
        if (method, path) in OPEN:
            assert role is None
            continue
        assert role in ROLES, f"{method} {path} has no guard"
        for headers in shown if path.endswith(("/inspect", "/models")) else shown[:2]:
            answer = server.client.request(method, filled(path), headers=headers, json={"verdict": None})
            assert answer.status_code == 401, f"{method} {path} {headers}"
            assert answer.json()["type"] == "urn:patchsvdd:unauthenticated"
            assert answer.headers["www-authenticate"].startswith("Bearer")


def test_every_route_refuses_too_small_a_role(guarded: tuple[Running, dict[str, str]]) -> None:
    server, keys = guarded
    for method, path, role in routes(server):
        if role is None:
            continue
        for shown in ROLES:
            if path.endswith("/reload") and shown == "admin":
                continue
            headers = {"Authorization": f"Bearer {keys[shown]}"}
            answer = server.client.request(method, filled(path), headers=headers, json={"verdict": "unsure"})
            if ROLES.index(shown) < ROLES.index(role):
                assert answer.status_code == 403, f"{method} {path} as {shown}"
                assert answer.json()["type"] == "urn:patchsvdd:forbidden"
            else:
                assert answer.status_code not in (401, 403), f"{method} {path} as {shown}"
            assert answer.status_code != 500


def test_unusual_images_and_their_pictures_are_for_every_role(guarded: tuple[Running, dict[str, str]]) -> None:
    server, keys = guarded
    for role in ROLES:
        shown = {"X-API-Key": keys[role]}
        listed = server.client.get("/v1/models/part", headers=shown).json()["unusual"]
        path = f"/v1/models/part/pictures/{listed[0]['image']}"
        assert server.client.get(path, headers=shown).status_code == 200
        assert server.client.get(path).status_code == 401


def test_what_changes_things_takes_more_than_the_smallest_role(guarded: tuple[Running, dict[str, str]]) -> None:
    for method, path, role in routes(guarded[0]):
        if method != "GET" and role == "inspect":
            assert "/inspect" in path or path == "/v1/users/me/password"
        if path.endswith(("/learn", "/undo", "/reload", "/trainings", "/cancel", "/continue", "/restart")):
            assert role == "admin"
        if method == "POST" and path.endswith(("/threshold", "/recalibration")):
            assert role == "admin"
        if path.endswith(("/candidate", "/switch", "/rollback", "/shadow", "/disagreements")):
            assert role == ("review" if method == "GET" else "admin")
        if path.startswith(("/v1/line", "/v1/parts")):
            assert role == ("inspect" if method == "GET" else "review")
        if path.startswith(("/v1/audit", "/v1/reports/audit")):
            assert role == "admin"
        if path.startswith(("/v1/users", "/v1/keys")) and "/me/" not in path:
            assert role == "admin"


def test_other_machines_need_a_key(stored: Path, tmp_path: Path) -> None:
    told = settings(tmp_path / "data", stored, host="0.0.0.0", store=f"sqlite:///{tmp_path / 'db'}")
    with pytest.raises(ConfigError, match="patchsvdd key add") as refused:
        Service(told)
    assert str(tmp_path / "db") not in str(refused.value)  # a database's URL may hold a password


def test_keys_and_passwords_are_nowhere_in_the_files(guarded: tuple[Running, dict[str, str]]) -> None:
    server, keys = guarded
    add_user(server.service.store, "files", "review", PASSWORD)
    sessions = []
    for shown in ({"key": keys["review"]}, {"name": "files", "password": PASSWORD}):
        server.client.post("/v1/session", json=shown)
        sessions.append(server.client.cookies[server.service.guard.cookie])
        server.client.cookies.clear()
    assert len(list(server.service.settings.data.glob("inspections*"))) >= 2
    for path in server.service.settings.data.rglob("*"):
        if path.is_file():
            held = path.read_bytes()
            for secret in (*(key.split("_", 2)[2] for key in keys.values()), *sessions, PASSWORD):
                assert secret.encode() not in held, path


def test_secrets_are_not_logged(stored: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = Store(Settings((), data).url)
    key = add_key(store, "admin", "admin")
    add_user(store, "anna", "review", PASSWORD)
    store.close()
    with process(data, str(stored), "--require-key") as server:
        client = server.client
        cookie = cookie_name(server.port)
        opened = client.post("/v1/session", json={"key": key})
        session = opened.cookies[cookie]
        assert client.get("/v1/models").status_code == 200
        client.cookies.clear()
        for headers in ({"Authorization": f"Bearer {key}"}, {"X-API-Key": key}, {"Cookie": f"{cookie}={session}x"}):
            client.post("/v1/models/part/inspect", content=b"no image", headers=headers)
            client.get(f"/v1/models/{key}", headers=headers)
        client.post("/v1/session", json={"key": f"{key}x"})
        client.post("/v1/session", content=f'{{"key": {key}'.encode())
        client.post("/v1/session", json={"name": PASSWORD, "password": "of someone else"})
        client.post("/v1/session", json={"name": "anna", "password": f"{PASSWORD}\n"})
        client.post("/v1/session", json={"name": "anna", "password": PASSWORD, "more": PASSWORD})
        client.post("/v1/session", content=f'{{"password": {PASSWORD}'.encode())
        assert client.post("/v1/session", json={"name": "anna", "password": PASSWORD}).status_code == 200
        (data / "inspections.sqlite").rename(data / "gone")
        assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 503
        said = server.said()
        assert "store" in said
        assert "sign-in failed" in said
        for secret in (key, key.split("_", 2)[2], session, PASSWORD):
            assert secret not in said
            assert secret.encode() not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        server.stop()


def test_the_decoders_know_nothing_of_the_environment(stored: Path, tmp_path: Path) -> None:
    with process(tmp_path / "data", str(stored), PGPASSWORD="s3cret", SOMETHING="s3cret") as server:
        server.client.post("/v1/models/part/inspect", content=part())
        decoders = server.children()
        assert decoders
        for number in decoders:
            assert b"s3cret" not in Path(f"/proc/{number}/environ").read_bytes()
        server.stop()


def test_a_session_is_a_cookie_that_ends_with_its_key(guarded: tuple[Running, dict[str, str]]) -> None:
    server, _ = guarded
    key = add_key(server.service.store, "browser", "review")
    with httpx.Client(base_url=server.url) as client:
        opened = client.post("/v1/session", json={"key": key})
        cookie = opened.headers["set-cookie"].lower()
        for word in ("httponly", "samesite=strict", "path=/", "max-age="):
            assert word in cookie
        assert key not in cookie
        expected = {"name": "browser", "role": "review", "user": False, "may": ["inspect", "review"]}
        assert client.get("/v1/me").json() == {**expected, "key_needed": True, "line": False}
        cookie = server.service.guard.cookie
        token = client.cookies[cookie]
        assert client.delete("/v1/session").status_code == 204
        assert client.get("/v1/me", headers={"Cookie": f"{cookie}={token}"}).status_code == 401
        client.post("/v1/session", json={"key": key})
        assert client.get("/v1/me").status_code == 200
        assert server.service.store.revoke_key("browser")
        assert client.get("/v1/me").status_code == 401
        assert client.get("/v1/me", headers={"Authorization": f"Bearer {key}"}).status_code == 401
        assert client.post("/v1/session", json={"key": key}).status_code == 401


# Other sites


def test_other_sites_change_nothing(local: Running) -> None:
    here = f"127.0.0.1:{local.port}"
    hostile: list[dict[str, str]] = [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://{here}.evil.example"},
        {"Origin": "http://["},
        {"Origin": f"http://127.0.0.1:{local.port + 1}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ]
    for method, path, _ in routes(local):
        if method == "GET":
            continue
        for headers in hostile if path.endswith("/review") else hostile[:1]:
            answer = local.client.request(method, filled(path), headers=headers, json={"verdict": "unsure", "key": "x"})
            if answer.status_code == 422 and path == "/v1/session":
                answer = local.client.request(method, filled(path), headers=headers, json={"key": "x"})
            assert answer.status_code == 403, f"{method} {path} {headers}"
            assert answer.json()["type"] == "urn:patchsvdd:cross-site"
    fine = {"Origin": f"http://{here}", "Sec-Fetch-Site": "same-origin"}
    assert local.client.post("/v1/models/part/inspect", content=part(), headers=fine).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "[", "", "127.0.0.1.evil.example", "localhost@evil.example", "[::1"]
)
def test_a_name_that_was_bent_to_this_machine_is_refused(local: Running, host: str) -> None:
    for path in ("/v1/models", "/metrics", "/openapi.json"):
        said = raw(local.port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert said.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), said[:60]
    for good in ("localhost", f"localhost:{local.port}", "127.0.0.1", "[::1]:80", "127.8.8.8"):
        said = raw(local.port, f"GET /v1/models HTTP/1.1\r\nHost: {good}\r\nConnection: close\r\n\r\n".encode())
        assert said.startswith(b"HTTP/1.1 200"), good


def test_no_site_is_told_that_it_may_read(local: Running) -> None:
    answer = local.client.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    preflight = local.client.options(
        "/v1/models/part/inspect",
        headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert preflight.status_code == 405
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_every_answer_has_the_headers(local: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("nobody thought of psk_secret")

    monkeypatch.setattr(local.service.telemetry, "page", fail)
    answers = [
        local.client.get("/healthz"),
        local.client.get("/v1/models"),
        local.client.get("/v1/nothing"),
        local.client.get("/v1/models/part/inspect"),
        local.client.post("/v1/models/part/inspect", content=b"x"),
        local.client.post("/v1/models/part/inspect", content=b"x" * 400_000),
        local.client.post(f"/v1/inspections/{'0' * 24}/review", content=b"{"),
        local.client.get("/v1/models", headers={"Host": "evil.example"}),
        local.client.get("/metrics"),
    ]
    assert [one.status_code for one in answers] == [200, 200, 404, 405, 422, 413, 422, 403, 500]
    for one in answers:
        for name, value in HEADERS.items():
            assert one.headers[name] == value, one.url
        assert "server" not in one.headers
        if one.status_code >= 400:
            assert one.headers["content-type"] == "application/problem+json"
            assert one.json()["status"] == one.status_code
            assert set(one.json()) >= {"type", "title", "detail"}
        if "/v1/" in str(one.url):
            assert one.headers["cache-control"] == "no-store"
    assert "psk_secret" not in answers[-1].text
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    assert policy.startswith("default-src 'none'")


# Paths


TRAVERSALS = (
    "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "..%5c..%5cx", "%00", "part%00", "part%0a", "~",
    ".", "%c0%ae%c0%ae", "part%2f..%2f..%2fkeys", "con:", "part%20", "%F0%9F%92%A9", "%ED%A0%80", "a" * 5000,
)  # fmt: skip


def test_no_path_of_a_request_leads_to_a_file(local: Running) -> None:
    for method, path, _ in routes(local):
        for parameter in re.findall(r"{(\w+)}", path):
            for evil in TRAVERSALS:
                where = path.replace(f"{{{parameter}}}", evil)
                said = raw(
                    local.port,
                    f"{method} {filled(where)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
                    f"Content-Type: application/json\r\nConnection: close\r\n\r\n{{}}".encode(),
                )
                status = int(said.split()[1])
                assert 400 <= status < 500, (method, where, said[:200])
                assert b"root:" not in said
    for evil in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/..%2f..%2fpyproject.toml"):
        said = raw(local.port, f"GET {evil} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert said.startswith(b"HTTP/1.1 404"), said[:100]


def test_uploaded_names_are_safe_on_disk() -> None:
    for name in ("../../x.png", "C:\\x.png", "a\0b", "...", "", "x" * 999, "/etc/passwd", "\ud800.png", "con. "):
        assert re.fullmatch(
            r"0007-[A-Za-z0-9][A-Za-z0-9._-]{0,79}|0007-[A-Za-z0-9_-][A-Za-z0-9._-]*", safe_name(name, 7)
        )
        assert "/" not in safe_name(name, 7)


# Sizes


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def lying_png(width: int, height: int, rows: int) -> bytes:
    """A PNG whose header promises a size, with some rows of it."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    content = zlib.compress((b"\0" + b"\0" * 3 * min(width, 20_000)) * rows, 9)
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def test_bombs_are_refused_by_their_header(local: Running) -> None:
    local.inspect("part", part())
    before = [memory_of(number) for number in children(os.getpid())]
    bomb = lying_png(20_000, 3_000, 3_000)  # 180 MB of pixels in some kB
    assert len(bomb) < 200_000
    for data, words in (
        (bomb, "20000x3000 pixels"),
        (lying_png(100_000, 100_000, 1), "pixels"),
        (lying_png(2**31 - 1, 2**31 - 1, 1), ""),
        (lying_png(0, 64, 1), ""),
        (b"\x89PNG\r\n\x1a\n", "not a PNG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a PNG"),
        (b"GIF89a" + b"\0" * 100, "not a PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a PNG"),
        (b"P6 9 9 255\n" + b"\0" * 243, "not a PNG"),
    ):
        answer = local.inspect("part", data)
        assert answer.status_code == 422, answer.text
        assert answer.json()["type"] == "urn:patchsvdd:invalid-image"
        assert words in answer.json()["detail"]
    after = [memory_of(number) for number in children(os.getpid())]
    assert max(after) < max(before) + 50e6
    assert local.inspect("part", part()).status_code == 200


def test_large_bodies_are_cut_off(local: Running) -> None:
    big = b"x" * 300_000

    def endless() -> Iterator[bytes]:
        for _ in range(3000):
            yield b"x" * 1000

    paths = ["/v1/models/part/inspect", "/v1/models/part/inspect-batch", f"/v1/inspections/{'0' * 24}/review"]
    for path in (*paths, "/v1/models/part/learn", "/v1/session"):
        announced = local.client.post(path, content=b"x" * 2_000_000, headers={"Content-Type": "application/json"})
        assert announced.status_code == 413, path
        assert announced.json()["type"] == "urn:patchsvdd:too-large"
        kind = "application/json"
        if path.endswith("batch"):
            kind = "multipart/form-data; boundary=b"
        try:
            cut = local.client.post(path, content=endless(), headers={"Content-Type": kind})
        except httpx.TransportError:
            continue  # the connection was closed before all was sent
        assert cut.status_code in (413, 422), path
        assert cut.json()["type"] == ("urn:patchsvdd:invalid-request" if "batch" in path else "urn:patchsvdd:too-large")
    form = local.client.post("/v1/models/part/inspect", files={"file": big})
    assert form.status_code == 413
    many = local.client.post("/v1/models/part/inspect-batch", files=[("files", part()) for _ in range(4)])
    assert many.status_code == 422
    assert "too many" in many.json()["detail"]
    assert local.inspect("part", part()).status_code == 200


def test_a_length_that_lies_changes_nothing(local: Running) -> None:
    for length in ("999999999999999999999999", "٣", "-1", "1e9", "0x10"):
        said = raw(
            local.port,
            f"POST /v1/models/part/inspect HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\nxx".encode(),
            seconds=3,
        )
        assert said.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400")), (length, said[:80])


def test_forms_that_are_damaged_are_refused(local: Running) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.png"\r\n\r\n'
    for content, headers in (
        (head + part(), kind),
        (b"--c\r\n", kind),
        (b"", kind),
        (head + part() + b"\r\n--b--", {"Content-Type": "multipart/form-data"}),
        (head + part() + b"\r\n--b--", {"Content-Type": "multipart/form-data; boundary=" + "x" * 5000}),
        (head.replace(b"x.png", b"x" * 20_000) + part() + b"\r\n--b--", kind),
        (b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + b"x" * 9000 + b"\r\n--b--", kind),
        (b"--b\r\n\r\n" * 2000, kind),
        (part(), {"Content-Type": "multipart/form-data; boundary=b"}),
    ):
        answer = local.client.post("/v1/models/part/inspect", content=content, headers=headers)
        assert answer.status_code == 422, (content[:80], answer.text)
    answer = local.client.post("/v1/models/part/inspect", data={"file": "text"})
    assert answer.status_code == 415
    answer = local.client.post("/v1/models/part/inspect-batch", content=part())
    assert answer.status_code == 415
    whole = local.client.post("/v1/models/part/inspect", content=head + part() + b"\r\n--b--\r\n", headers=kind)
    assert whole.status_code == 200


def test_json_that_is_odd_is_refused(local: Running) -> None:
    path = f"/v1/inspections/{local.inspect('part', part()).json()['id']}/review"
    for content in (
        b'{"verdict": NaN}',
        b'{"verdict": "unsure", "note": Infinity}',
        b'{"verdict": "unsure", "note": "\\ud800"}',
        b'{"verdict": "unsure", "note": "' + b"x" * 2001 + b'"}',
        b'{"verdict": "unsure", "extra": 1}',
        b"[" * 60_000,
        b'{"a":' * 12_000,
        b"1" * 10_000,
        b"\xff\xfe",
        b"",
        b"null",
        b"{" + b",".join(b'"%d":1' % index for index in range(7_000)) + b"}",
    ):
        answer = local.client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, (content[:40], answer.text[:200])
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(answer.content) < 30_000


def test_numbers_beyond_reason_are_refused(local: Running) -> None:
    huge = "9" * 400
    for query in (
        f"limit={huge}", "limit=-1", "limit=0", f"since={huge}", "since=nan", "until=inf", "since=1e400",
        "before=zz", f"before={'f' * 25}", "verdict=x", "learned=perhaps", f"name={'x' * 201}",
    ):  # fmt: skip
        assert local.client.get(f"/v1/inspections?{query}").status_code == 422, query
    for path in (f"/v1/models/part/pictures/{huge}", f"/v1/models/part/drift?images={huge}", f"/v1/jobs?limit={huge}"):
        assert local.client.get(path).status_code == 422
    for query in ("timeout=nan", "timeout=0", "timeout=1e999", "map=exe", "explain=7"):
        assert local.client.post(f"/v1/models/part/inspect?{query}", content=part()).status_code == 422, query
    for query in ("since=0&until=4000000000", "name=%00%ED%A0%80", "model=%00", "name=%25_%5C'%22;--"):
        assert local.client.get(f"/v1/inspections?{query}").status_code == 200, query


def test_a_client_that_asks_first_is_told_to_go_on_or_not(local: Running) -> None:
    data = part()
    head = (
        "POST /v1/models/{}/inspect HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", local.port), timeout=10) as connection:
        connection.sendall(head.format("part", len(data)).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(data)
        said = b""
        while not complete(said):
            said += connection.recv(65536)
        assert said.startswith(b"HTTP/1.1 200")
    assert raw(local.port, head.format("part", 10**9).encode()).startswith(b"HTTP/1.1 413")
    assert raw(local.port, head.format("none", len(data)).encode()).startswith(b"HTTP/1.1 404")


# Time


def test_a_decoder_that_hangs_is_killed_and_others_go_on(stored: Path, tmp_path: Path) -> None:
    limits = {"decode_seconds": 4.0, "decoders": 1}  # a busy machine may need seconds to start a decoder
    with running(settings(tmp_path / "data", stored, limits=limits)) as running_one:
        before = set(children(os.getpid()))
        running_one.inspect("part", part())
        (idle,) = set(children(os.getpid())) - before
        os.kill(idle, signal.SIGKILL)  # one that died idle refuses no image
        assert running_one.inspect("part", part()).status_code == 200
        decoders = set(children(os.getpid())) - before - {idle}
        assert len(decoders) == 1
        os.kill(decoders.pop(), signal.SIGSTOP)
        rng = os.urandom(400_000)  # more than a pipe holds
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(running_one.inspect("part", rng)))
        start = time.monotonic()
        asking.start()
        time.sleep(0.2)
        assert running_one.client.get("/healthz").status_code == 200
        assert running_one.client.get("/readyz").status_code == 200
        late = running_one.inspect("part", part(), timeout=0.1)
        assert late.json()["type"] in ("urn:patchsvdd:deadline-exceeded", "urn:patchsvdd:overloaded")
        asking.join(20)
        assert time.monotonic() - start < 20
        assert answers[0].status_code == 422
        assert "took more than 4 seconds" in answers[0].json()["detail"]
        assert running_one.inspect("part", part()).status_code == 200


def test_a_decoder_is_started_again_after_anything() -> None:
    config = preset("encoder", image_size=64)
    decoders = Decoders(1, 3.0, 1_000_000)
    try:
        assert decoders.decode(part(), config, "x").original_size == (64, 64)
        (process_,) = decoders._all
        process_._process.kill()
        assert decoders.decode(part(), config, "x").format == "PNG"
        with pytest.raises(ImageError, match="x: is not a PNG"):
            decoders.decode(b"?", config, "x")
        (process_,) = decoders._all
        os.kill(process_._process.pid, signal.SIGSTOP)
        with pytest.raises(DecodingFailed, match="more than 3 seconds"):
            decoders.decode(b"\0" * 3_000_000, config, "x")
        with Image.open(io.BytesIO(decoders.jpeg(part(), 16, "x"))) as small:
            assert small.size == (16, 16)
        assert len(decoders._all) == 1
    finally:
        decoders.close()
    with pytest.raises(DecodingFailed):
        decoders.decode(part(), config, "x")


def test_slow_clients_do_not_block_others(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uploads, "BODY_SECONDS", 1.5)
    monkeypatch.setattr(connections, "HEADER_SECONDS", 1.5)
    with caplog.at_level(logging.INFO), running(settings(tmp_path / "data", stored, limits={"queue": 4})) as server:
        slow = []
        for index in range(12):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            said = b"POST /v1/models/part/inspect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nslow"
            connection.sendall(said if index < 10 else said[:40])
            slow.append(connection)
        wait_until(lambda: server.service.queue._arriving == 10)
        assert server.inspect("part", part()).status_code == 200
        for index, connection in enumerate(slow):
            answer = connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 408") if index < 10 else answer == b""
            connection.close()
        wait_until(lambda: server.service.queue._arriving == 0)

        for content in (b"some", b""):  # gone in the middle of an upload
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            connection.sendall(
                b"POST /v1/models/part/inspect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n" + content
            )
            wait_until(lambda: server.service.queue._arriving == 1)
            connection.close()
            wait_until(lambda: server.service.queue._arriving == 0)
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        path = f"/v1/inspections/{'0' * 24}/review"
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{".encode())
        time.sleep(0.2)
        connection.close()
        assert server.inspect("part", part()).status_code == 200
        assert server.service.queue.in_flight == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text


def test_a_client_that_does_not_read_its_answer_blocks_nobody(local: Running) -> None:
    number = local.inspect("part", part()).json()["id"]
    request = f"GET /v1/inspections/{number}/map?format=npy HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", local.port), timeout=10) as connection:
        connection.sendall(request * 200)
        assert local.inspect("part", part()).status_code == 200


def test_the_page_is_open_and_holds_no_secret(guarded: tuple[Running, dict[str, str]]) -> None:
    server, keys = guarded
    page = server.client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    linked = re.findall(r'(?:src|href)="([^"#]+\.(?:js|css))"', page.text)
    assert linked
    secrets = [*keys.values(), *(key.split("_", 2)[2] for key in keys.values()), str(server.service.settings.data)]
    for answer in (page, *(server.client.get(path) for path in linked)):
        assert answer.status_code == 200, answer.url
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert not [secret for secret in secrets if secret in answer.text], answer.url
