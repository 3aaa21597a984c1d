"""People: users and their passwords, keys made by administrators, and what failed sign-ins come to."""

from __future__ import annotations

import logging
import re
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from patchsvdd.apps.cli import app
from patchsvdd.apps.serve import sign_in_limits
from patchsvdd.apps.serve.accounts import add_user
from patchsvdd.apps.serve.auth import ROLES, add_key, cookie_name
from patchsvdd.apps.serve.passwords import check_password
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.sign_in_limits import Failures, SignInLimits, network
from patchsvdd.apps.serve.store import Store
from patchsvdd.core import password_hash
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.password_hash import hashed, matches
from support.serving import Running, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service

PIN = "407195"
LONG = "a horse, a battery"


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Hashes of a fifth of the cost, for the sake of a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(password_hash, "P", 1)
        yield


@pytest.fixture(scope="module")
def server(quick: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service without models that requires sign-in, with an administrator."""
    data = tmp_path_factory.mktemp("people") / "data"
    store = Store(Settings((), data).url)
    add_user(store, "Chief", "admin", LONG)
    store.close()
    with running(settings(data, require_key=True)) as found:
        yield found


@pytest.fixture(autouse=True)
def forgotten(server: Running) -> None:
    """Failures of one test do not count in the next."""
    server.service.guard.limits = SignInLimits()
    server.service.guard._wrong_keys = Failures(free=5, longest=900.0)


@pytest.fixture
def chief(server: Running) -> Iterator[httpx.Client]:
    with signed_in(server, "chief", LONG) as client:
        yield client


def client_of(server: Running, address: str = "127.0.0.1") -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=address)
    return httpx.Client(base_url=server.url, timeout=60, transport=transport)


@contextmanager
def signed_in(server: Running, name: str, password: str, address: str = "127.0.0.1") -> Iterator[httpx.Client]:
    with client_of(server, address) as client:
        answer = client.post("/v1/session", json={"name": name, "password": password})
        assert answer.status_code == 200, answer.text
        yield client


def attempt(client: httpx.Client, name: str, password: str = "wrong one") -> httpx.Response:
    return client.post("/v1/session", json={"name": name, "password": password})


def kind(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).removeprefix("urn:patchsvdd:")


# Users


def test_a_user_signs_in_by_name_and_pin(server: Running, chief: httpx.Client) -> None:
    made = chief.post("/v1/users", json={"name": "Jörg B.", "role": "review", "password": PIN})
    assert made.status_code == 201, made.text
    assert made.json().keys() == {"name", "role", "created", "used", "disabled"}
    with signed_in(server, " jörg b. ", PIN) as client:  # a tablet's keyboard writes the case it likes
        expected = {"name": "Jörg B.", "role": "review", "user": True, "may": ["inspect", "review"]}
        assert client.get("/v1/me").json() == {**expected, "key_needed": True, "line": False}
        assert client.get("/v1/users").status_code == 403
        assert "the user 'Jörg B.' has the role 'review'" in client.get("/v1/users").json()["detail"]
    listed = {one["name"]: one for one in chief.get("/v1/users").json()["users"]}
    assert listed["Jörg B."]["used"] is not None
    assert LONG not in chief.get("/v1/users").text
    assert "scrypt" not in chief.get("/v1/users").text
    again = chief.post("/v1/users", json={"name": "JÖRG B.", "role": "inspect", "password": PIN})
    assert (again.status_code, kind(again)) == (409, "conflict")


def test_only_a_name_and_password_or_a_key_open_a_session(server: Running) -> None:
    for body in ({}, {"name": "chief"}, {"password": LONG}, {"key": "k", "name": "chief"}, {"key": None}):
        assert server.client.post("/v1/session", json=body).status_code == 422, body
    assert server.client.get("/v1/session").json() == {"passwords": True}


@pytest.mark.parametrize(
    "password",
    [
        *("", "12345", "short", "123456", "654321", "000000", "7777777", "121212", "123123", "aaaaaaaa", "abcdefgh"),
        *("password", "Password1", "passwort!", "qwertyui", "joergjoerg", "Joerg123", "x" * 201),
    ],
)
def test_passwords_that_anyone_would_try_are_refused(password: str) -> None:
    with pytest.raises(ConfigError):
        check_password(password, "joerg")


@pytest.mark.parametrize("password", ["407195", "90210773", "correct horse", "Gießerei 7", "密码很长也可以的"])
def test_other_passwords_are_accepted_and_stored_as_a_slow_hash(password: str) -> None:
    check_password(password, "joerg")
    one, two = hashed(password), hashed(password)
    assert one != two  # each has its salt
    assert re.fullmatch(r"scrypt\$16384\$8\$1\$[\w+/=]{24}\$[\w+/=]{44}", one)
    assert password not in one
    assert matches(password, one)
    assert not matches(password + "x", one)


def test_weak_passwords_are_refused_by_every_route(server: Running, chief: httpx.Client) -> None:
    refused = chief.post("/v1/users", json={"name": "weak", "role": "inspect", "password": "123456"})
    assert refused.status_code == 422
    assert "easy to guess" in refused.json()["detail"]
    assert chief.patch("/v1/users/chief", json={"password": "chief"}).status_code == 422
    changed = chief.post("/v1/users/me/password", json={"password": LONG, "new": "111111"})
    assert changed.status_code == 422
    assert attempt(server.client, "weak", "123456").status_code == 401
    server.client.cookies.clear()


def test_sessions_end_when_a_user_is_changed(server: Running, chief: httpx.Client) -> None:
    chief.post("/v1/users", json={"name": "ends", "role": "inspect", "password": PIN}).raise_for_status()
    with signed_in(server, "ends", PIN) as client:
        assert client.get("/v1/models").status_code == 200
        assert chief.patch("/v1/users/ends", json={"role": "review"}).json()["role"] == "review"
        assert client.get("/v1/me").json()["role"] == "review"  # at once, and the session goes on
        assert chief.patch("/v1/users/ends", json={"disabled": True}).json()["disabled"] is not None
        assert client.get("/v1/models").status_code == 401
        disabled = attempt(client, "ends", PIN)
        assert (disabled.status_code, "disabled" in disabled.json()["detail"]) == (401, True)
        assert "disabled" not in attempt(client, "ends").json()["detail"]  # told only to who knows the password
        assert chief.patch("/v1/users/ends", json={"disabled": False}).json()["disabled"] is None
        assert client.get("/v1/models").status_code == 401  # a session that ended does not come back
    with signed_in(server, "ends", PIN) as client:
        chief.patch("/v1/users/ends", json={"password": "291837465"}).raise_for_status()
        assert client.get("/v1/models").status_code == 401
        assert attempt(client, "ends", PIN).status_code == 401
    with signed_in(server, "ends", "291837465") as client:
        assert chief.delete("/v1/users/ends").status_code == 204
        assert client.get("/v1/models").status_code == 401
        assert chief.delete("/v1/users/ends").status_code == 404
        assert chief.patch("/v1/users/ends", json={"role": "admin"}).status_code == 404


def test_a_user_changes_the_own_password(server: Running, chief: httpx.Client) -> None:
    chief.post("/v1/users", json={"name": "own", "role": "inspect", "password": PIN}).raise_for_status()
    with signed_in(server, "own", PIN) as here, signed_in(server, "own", PIN) as elsewhere:
        wrong = here.post("/v1/users/me/password", json={"password": "000001", "new": "736251"})
        assert (wrong.status_code, wrong.json()["detail"]) == (422, "the current password is wrong")
        before = here.cookies[server.service.guard.cookie]
        changed = here.post("/v1/users/me/password", json={"password": PIN, "new": "736251"})
        assert changed.status_code == 200, changed.text
        assert here.cookies[server.service.guard.cookie] != before
        assert here.get("/v1/models").status_code == 200
        assert elsewhere.get("/v1/models").status_code == 401
        old = {"Cookie": f"{server.service.guard.cookie}={before}"}
        assert httpx.get(f"{server.url}/v1/models", headers=old).status_code == 401
    key = add_key(server.service.store, "no password", "inspect")
    by_key = server.client.post("/v1/users/me/password", json={"password": PIN, "new": PIN}, headers={"X-API-Key": key})
    assert by_key.status_code == 409


def test_a_sign_in_that_is_overtaken_by_a_change_opens_nothing(server: Running) -> None:
    store = server.service.store
    user = add_user(store, "overtaken", "admin", PIN)
    store.change_user("overtaken", hash=hashed("736251"))
    assert not store.insert_user_session("0" * 64, user, time.time() + 60)
    store.delete_user("overtaken")
    assert store.session("0" * 64) is None


def test_the_last_administrator_stays(server: Running, chief: httpx.Client) -> None:
    for change in ({"role": "review"}, {"disabled": True}):
        refused = chief.patch("/v1/users/CHIEF", json=change)
        assert (refused.status_code, kind(refused)) == (409, "conflict")
    assert chief.delete("/v1/users/Chief").status_code == 409
    assert chief.patch("/v1/users/chief", json={"role": "admin"}).status_code == 200
    made = chief.post("/v1/keys", json={"name": "spare", "role": "admin"}).json()
    with client_of(server) as by_key:
        by_key.headers["Authorization"] = f"Bearer {made['key']}"
        assert chief.patch("/v1/users/chief", json={"role": "review"}).status_code == 200
        assert chief.get("/v1/users").status_code == 403
        refused = by_key.delete("/v1/keys/spare")
        assert refused.status_code == 409
        assert "last administrator" in refused.json()["detail"]
        assert by_key.patch("/v1/users/chief", json={"role": "admin"}).status_code == 200
        assert chief.delete("/v1/keys/spare").status_code == 204
        assert by_key.get("/v1/me").status_code == 401


def test_administrators_make_and_revoke_keys(server: Running, chief: httpx.Client) -> None:
    made = chief.post("/v1/keys", json={"name": "line 7", "role": "inspect"})
    assert made.status_code == 201
    key = made.json()["key"]
    headers = {"Authorization": f"Bearer {key}"}
    assert server.client.get("/v1/me", headers=headers).json()["name"] == "line 7"
    assert chief.post("/v1/keys", json={"name": "line 7", "role": "admin"}).status_code == 409

    def listed() -> dict[str, Any]:
        return next(one for one in chief.get("/v1/keys").json()["keys"] if one["name"] == "line 7")

    wait_until(lambda: listed()["used"] is not None)
    assert key.split("_", 2)[2] not in chief.get("/v1/keys").text
    assert chief.delete("/v1/keys/line%207").status_code == 204
    assert listed()["revoked"] is not None
    assert server.client.get("/v1/me", headers=headers).status_code == 401
    assert chief.delete("/v1/keys/line%207").status_code == 404
    for role in ROLES[:2]:
        small = add_key(server.service.store, f"small {role}", role)
        for name in ROLES:
            asked = {"name": "more", "role": name}
            got = server.client.post("/v1/keys", json=asked, headers={"X-API-Key": small})
            assert got.status_code == 403  # nobody gets a larger role than their own


def test_a_service_without_sign_in_adds_nobody(tmp_path: Path) -> None:
    """Anyone on the machine could otherwise plant an administrator who stays when sign-in is required later."""
    with running(settings(tmp_path / "data")) as local:
        assert local.client.get("/v1/me").json()["user"] is False
        assert local.client.get("/v1/users").json() == {"users": []}
        assert local.client.get("/v1/session").json() == {"passwords": False}
        for method, path, body in (
            ("POST", "/v1/users", {"name": "eve", "role": "admin", "password": LONG}),
            ("POST", "/v1/keys", {"name": "eve", "role": "admin"}),
            ("PATCH", "/v1/users/eve", {"role": "admin"}),
            ("DELETE", "/v1/users/eve", None),
            ("DELETE", "/v1/keys/eve", None),
        ):
            assert local.client.request(method, path, json=body).status_code == 409, path
        assert local.service.store.all_users() == []


def test_a_user_suffices_to_start(tmp_path: Path) -> None:
    told = settings(tmp_path / "data", host="0.0.0.0")
    with pytest.raises(ConfigError, match=r"patchsvdd user add.*patchsvdd key add"):
        Service(told)
    store = Store(told.url)
    add_user(store, "anna", "admin", LONG)
    store.close()
    service = Service(told)
    service.close()


# Failed sign-ins


def test_failed_sign_ins_are_logged_and_counted(
    server: Running, chief: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """L12."""
    key = chief.post("/v1/keys", json={"name": "logged", "role": "inspect"}).json()["key"]
    number, secret = key.split("_", 2)[1:]
    before = counted(server)
    with caplog.at_level(logging.INFO), client_of(server, "127.0.0.9") as client:
        attempt(client, "CHIEF", "guess one")
        attempt(client, "nobody\nsign-in from 1.2.3.4: user 'x'", "guess two")
        client.post("/v1/session", json={"key": f"psk_{number}_{'A' * 43}"})
        client.get("/v1/models", headers={"Authorization": f"Bearer psk_{number}_{'B' * 43}"})
        client.get("/v1/models", headers={"X-API-Key": "guess four"})
        client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        attempt(client, "chief", LONG)
    said = [one.getMessage() for one in caplog.records if one.name == "patchsvdd.apps.serve"]
    assert said == [
        "sign-in failed from 127.0.0.9: wrong password for user 'Chief'",
        "sign-in failed from 127.0.0.9: unknown name",
        f"sign-in failed from 127.0.0.9: wrong secret for API key {number}",
        f"request refused from 127.0.0.9: wrong secret for API key {number}",
        "request refused from 127.0.0.9: not an API key",
        "sign-in from 127.0.0.9: user 'Chief'",
    ]
    for words in ("guess", "nobody", secret, "AAAA", "BBBB", LONG):
        assert not any(words in one for one in said)
    after = counted(server)
    assert after["failed"] - before.get("failed", 0) == 3
    assert after["wrong-key"] - before.get("wrong-key", 0) == 2
    assert after["ok"] - before.get("ok", 0) == 1


def counted(server: Running) -> dict[str, float]:
    text = server.service.telemetry.page().decode()
    found = re.findall(r'patchsvdd_sign_ins_total{result="([\w-]+)"} ([\d.]+)', text)
    return {name: float(value) for name, value in found}


def test_guessing_is_answered_with_429_and_how_long_to_wait(server: Running, chief: httpx.Client) -> None:
    chief.post("/v1/users", json={"name": "guessed", "role": "inspect", "password": PIN}).raise_for_status()
    with client_of(server, "127.0.0.10") as client:
        for _ in range(5):
            assert attempt(client, "guessed").status_code == 401
        refused = attempt(client, "guessed", PIN)  # the right one is not even looked at
        assert (refused.status_code, kind(refused)) == (429, "too-many-attempts")
        assert 1 <= int(refused.headers["retry-after"]) <= 2
        assert attempt(client, "someone else").status_code == 429  # the address waits, whatever the name
        assert client.post("/v1/session", json={"key": "psk_wrong"}).status_code == 429
        key = add_key(server.service.store, "never limited", "inspect")
        assert client.get("/v1/models", headers={"X-API-Key": key}).status_code == 200
        wait_until(lambda: attempt(client, "guessed").status_code == 401, 20)
        assert 1 <= int(attempt(client, "guessed").headers["retry-after"]) <= 3
        assert client.post("/v1/session", json={"key": key}).status_code == 200  # a valid key signs in, too
    assert counted(server)["refused"] >= 4
    with signed_in(server, "guessed", PIN, "127.0.0.11"):  # somebody else's guesses keep nobody out
        pass


def test_guesses_sent_at_once_count_too(server: Running) -> None:
    answers: list[int] = []

    def guess() -> None:
        with client_of(server, "127.0.0.12") as client:
            answers.append(attempt(client, "chief").status_code)

    threads = [threading.Thread(target=guess) for _ in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(answers)[:5] == [401] * 5
    assert answers.count(401) <= 7  # a busy machine may take more than a second for them


def test_waits_grow_to_15_minutes_and_a_success_clears_them() -> None:
    now = 1000.0
    limits, waits = SignInLimits(lambda: now), []
    for _ in range(17):
        while (wait := limits.attempt("10.0.0.1", "anna")) > 0:
            waits.append(wait)
            now += wait
    assert waits[:4] == [1, 2, 4, 8]
    assert max(waits) == waits[-1] == 900
    assert limits.attempt("10.0.0.2", "anna") == 0  # elsewhere the user gets in
    limits.succeeded("10.0.0.2", "anna")
    assert limits.attempt("10.0.0.1", "anna") == 900
    now += 25 * 3600
    assert limits.attempt("10.0.0.1", "anna") == 0


def test_one_address_cannot_keep_a_user_out_elsewhere() -> None:
    now = 0.0
    limits = SignInLimits(lambda: now)
    refused = 0
    for second in range(5, 24 * 3600, 5):  # a day of an attempt every five seconds
        now = float(second)
        limits.attempt("10.6.6.6", "anna")
        if second % 60 == 30:
            refused += max(failures.wait(key, now) for failures, key in limits._kinds("10.0.0.2", "anna")) > 0
    assert refused <= 24 * 4 + 20  # for up to a minute, four times an hour
    limits.succeeded("10.0.0.2", "anna")
    for index in range(200):  # from many addresses: the name has to wait
        limits.attempt(f"10.7.0.{index}", "anna")
    assert limits.attempt("10.8.0.1", "anna") > 0
    assert limits.attempt("10.0.0.2", "anna") == 0  # but not where the user has signed in before


def test_the_memory_of_failures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in_limits, "MAX_ENTRIES", 100)
    limits = SignInLimits()
    for index in range(1000):
        limits.attempt(f"10.1.{index // 250}.{index % 250}", f"name {index}")
        limits.succeeded(f"10.2.{index // 250}.{index % 250}", f"name {index}")
    assert max(len(limits.addresses), len(limits.pairs), len(limits.names), len(limits._known)) <= 100


def test_an_address_is_what_one_client_owns() -> None:
    assert network("10.0.0.1") == network("::ffff:10.0.0.1") == "10.0.0.1"
    assert network("2001:db8::1") == network("2001:db8::ffff:2") != network("2001:db8:0:1::1")
    assert network("fe80::1%eth0") == "fe80::/64"
    assert network("evil\n") == "unknown"


def test_behind_a_proxy_the_address_is_the_one_that_the_proxy_saw(server: Running) -> None:
    guard = server.service.guard
    spoofed = [(b"x-forwarded-for", b"8.8.8.8, 10.0.0.7")]
    assert guard.address({"client": ("127.0.0.1", 1), "headers": spoofed}) == "127.0.0.1"
    guard.secure_cookies = True
    try:
        assert guard.address({"client": ("127.0.0.1", 1), "headers": spoofed}) == "10.0.0.7"
        assert guard.address({"client": ("127.0.0.1", 1), "headers": [(b"x-forwarded-for", b"x\n")]}) == "127.0.0.1"
        assert guard.address({"client": None, "headers": []}) == ""
    finally:
        guard.secure_cookies = False


def test_the_time_of_an_answer_does_not_tell_which_names_exist(server: Running) -> None:
    seconds: dict[str, list[float]] = {"chief": [], "nobody here": []}
    with client_of(server) as client:
        for _ in range(5):
            for name, taken in seconds.items():
                server.service.guard.limits = SignInLimits()
                start = time.perf_counter()
                assert attempt(client, name).json()["detail"] == "the name or the password is wrong"
                taken.append(time.perf_counter() - start)
    known, unknown = (statistics.median(one) for one in seconds.values())
    assert 0.4 < known / unknown < 2.5  # without the second hash it is a hundredth
    assert unknown > 0.02


def test_a_flood_of_wrong_keys_does_not_fill_the_log(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), client_of(server, "127.0.0.13") as client:
        for _ in range(60):
            assert client.get("/v1/models", headers={"X-API-Key": "psk_wrong"}).status_code == 401
    assert 5 <= sum(one.name == "patchsvdd.apps.serve" for one in caplog.records) <= 12
    with signed_in(server, "chief", LONG, "127.0.0.13"):  # a camera with a revoked key keeps nobody out
        pass


# Cookies


def test_each_port_has_its_own_cookie(server: Running, chief: httpx.Client) -> None:
    """L11: browsers send cookies to all ports of a host."""
    name = f"patchsvdd_session_{server.port}"
    assert name == cookie_name(server.port)
    assert list(chief.cookies) == [name]
    described = chief.get("/openapi.json").json()["components"]["securitySchemes"]["session"]
    assert described["name"] == name
    other = {"Cookie": f"patchsvdd_session_{server.port + 1}={chief.cookies[name]}"}
    assert httpx.get(f"{server.url}/v1/me", headers=other).status_code == 401


def test_signing_out_has_the_browser_forget_what_it_keeps(server: Running) -> None:
    """L1."""
    with signed_in(server, "chief", LONG) as client:
        token = client.cookies[server.service.guard.cookie]
        out = client.delete("/v1/session")
        assert out.headers["clear-site-data"] == '"cache"'
        assert "max-age=0" in out.headers["set-cookie"].lower()
        assert client.get("/v1/me").status_code == 401
        cookie = {"Cookie": f"{server.service.guard.cookie}={token}"}
        assert httpx.get(f"{server.url}/v1/me", headers=cookie).status_code == 401


# The command line


def cli(data: Path, *arguments: str, stdin: str = "") -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*arguments, "--data", str(data)], input=stdin)


def test_users_on_the_command_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert cli(data, "user", "add", "Anna", "--role", "admin", stdin=f"{LONG}\n").exit_code == 0
    for arguments, stdin, words in (
        (("add", "anna"), LONG, "already"),
        (("add", "bert"), "123456", "easy to guess"),
        (("add", "bert"), "", "no password"),
        (("add", "bert", "--role", "king"), LONG, "--role must be one of"),
        (("add", "b\nert"), LONG, "name must have"),
        (("remove", "bert"), "", "no user is named"),
        (("reset", "bert"), LONG, "no user named"),
    ):
        refused = cli(data, "user", *arguments, stdin=stdin)
        assert refused.exit_code == 1, arguments
        assert words in refused.output, refused.output
        assert LONG not in refused.output
    listed = cli(data, "user", "list", "--json")
    assert '"name": "Anna"' in listed.output
    assert "hash" not in listed.output
    store = Store(Settings((), data).url)
    store.change_user("anna", disabled=1.0)
    assert cli(data, "user", "reset", "ANNA", stdin=f"{PIN}\n").exit_code == 0
    user = store.user("anna")
    assert user is not None
    assert user["disabled"] is None
    assert matches(PIN, user["hash"])
    assert cli(data, "user", "remove", "anna").exit_code == 0
    assert store.all_users() == []
    store.close()
