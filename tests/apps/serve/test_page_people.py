"""People on the page: signing in, what each role sees, and what an administrator does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.serve.accounts import add_user
from patchsvdd.apps.serve.auth import add_key
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Store
from support.browsing import NEEDS_BROWSER, SECONDS, Server, names_of_controls
from support.serving import copy_model
from support.waiting import wait_until

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

LONG = "a horse, a battery"
PIN = "407195"
WIDTHS = (320, 390, 700, 820, 1001, 1024, 1101, 1440, 1920)


@pytest.fixture(scope="module")
def locked(washer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service that requires sign-in, with a user of each role."""
    folder = tmp_path_factory.mktemp("locked")
    store = Store(Settings((), folder / "data").url)
    for role in ("inspect", "review", "admin"):
        add_user(store, f"{role} person", role, LONG)
    add_user(store, "Administrator with a name that hardly ends", "admin", LONG)
    add_key(store, "camera-1", "inspect")
    store.close()
    running = Server(folder / "data", (copy_model(washer, folder / "washer"),), ("--require-key",))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """A page whose scripts must not fail."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(SECONDS)
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("console", lambda said: failed.append(said.text) if "Content Security" in said.text else None)
    yield page
    context.close()
    assert failed == []


def sign_in(page: Any, server: Server, name: str, password: str = LONG, view: str = "models") -> None:
    page.goto(f"{server.url}#/{view}")
    page.locator("#name").fill(name)
    page.locator("#password").fill(password)
    page.keyboard.press("Enter")
    page.locator("#account").wait_for()


def shown_views(page: Any) -> list[str]:
    return [one for one in page.locator("#views a:visible").all_inner_texts() if one]


def test_people_sign_in_by_name_and_pin(opened: Any, locked: Server) -> None:
    page = opened
    page.goto(locked.url)
    page.wait_for_selector(".sign-in")
    assert page.evaluate("document.activeElement.id") == "name"
    page.keyboard.type("REVIEW person")
    page.keyboard.press("Tab")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("the name or the password is wrong").wait_for()
    assert page.evaluate("document.activeElement.id") == "password"
    page.keyboard.type(LONG)  # it is selected
    page.keyboard.press("Enter")
    page.get_by_text("review person · Review").wait_for()
    assert page.evaluate("document.cookie") == ""  # no script can read it
    page.locator("#account").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector(".sign-in")
    page.get_by_role("button", name="Use an API key instead").click()
    assert page.evaluate("document.activeElement.id") == "key"
    page.get_by_role("button", name="Use name and PIN instead").click()
    assert page.evaluate("document.activeElement.id") == "name"


def test_too_many_guesses_hold_the_form_for_a_while(opened: Any, locked: Server) -> None:
    page = opened
    answer = '{"type": "urn:patchsvdd:too-many-attempts", "detail": "too many sign-ins have failed; try again in 2 s"}'
    refusal = {"status": 429, "headers": {"Retry-After": "2"}, "body": answer}
    page.goto(locked.url)
    page.wait_for_selector(".sign-in")
    page.route("**/v1/session", lambda route: route.fulfill(**refusal))
    page.locator("#name").fill("admin person")
    page.locator("#password").fill(LONG)
    page.keyboard.press("Enter")
    page.get_by_text("try again in 2 s").wait_for()
    assert page.locator(".sign-in button.main").is_disabled()
    page.unroute("**/v1/session")
    page.locator(".sign-in button.main:enabled").wait_for()
    page.locator(".sign-in button.main").click()
    page.locator("#account").wait_for()


@pytest.mark.parametrize(
    ("role", "views"),
    [
        ("inspect", ["Overview", "Inspect", "History", "Models"]),
        ("review", ["Overview", "Inspect", "History", "Review", "Models"]),
        ("admin", ["Overview", "Inspect", "History", "Review", "Models", "Train", "People", "Audit"]),
    ],
)
def test_a_role_is_offered_what_it_can_use(opened: Any, locked: Server, role: str, views: list[str]) -> None:
    page = opened
    sign_in(page, locked, f"{role} person")
    assert shown_views(page) == views
    for name in ("Review", "Train", "People", "Audit"):
        page.goto(f"{locked.url}#/{name.lower()}")
        if name in views:
            page.wait_for_function(f"document.title.startsWith('{name}')")
            assert page.get_by_text("not part of your role").count() == 0
        else:
            page.get_by_role("heading", name=f"{name} is not part of your role").wait_for()
            assert "Ask an administrator" in page.locator("main").inner_text()


def test_after_signing_out_no_picture_comes_from_the_cache(opened: Any, locked: Server, files: dict[str, Path]) -> None:
    """L1: on a shared tablet, the next person would see them."""
    page = opened
    sign_in(page, locked, "inspect person")
    number = page.evaluate(
        """async (bytes) => (await (await fetch("/v1/models/washer/inspect",
             { method: "POST", body: new Uint8Array(bytes) })).json()).id""",
        list(files["fine"].read_bytes()),
    )
    fetched = "async (path) => (await fetch(path)).status"
    path = f"/v1/inspections/{number}/picture"
    assert [page.evaluate(fetched, path) for _ in range(2)] == [200, 200]
    page.locator("#account").click()
    with page.expect_navigation():  # what the views keep in memory goes, too
        page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector(".sign-in")
    assert page.evaluate(fetched, path) == 401
    assert page.evaluate("async (path) => (await fetch(path, { cache: 'force-cache' })).status", path) == 401


def test_who_signs_in_next_does_not_see_what_was_on_screen(opened: Any, locked: Server) -> None:
    page = opened
    sign_in(page, locked, "review person")
    page.evaluate("window.before = true")
    page.context.clear_cookies()
    page.evaluate("location.hash = '#/history'")
    page.wait_for_selector(".sign-in")
    page.evaluate("location.hash = '#/models'")  # opens nothing without a sign-in
    assert page.locator(".sign-in").is_visible()
    page.locator("#name").fill("inspect person")
    page.locator("#password").fill(LONG)
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.get_by_text("inspect person · Inspect").wait_for()
    assert page.evaluate("window.before") is None


def test_an_administrator_manages_people_on_the_page(opened: Any, locked: Server, browser: Any) -> None:
    page = opened
    sign_in(page, locked, "admin person", view="people")
    page.locator("#add-user").click()
    assert page.evaluate("document.activeElement.id") == "new-name"
    page.keyboard.type("Nora")
    page.locator("#new-role").select_option("inspect")
    page.locator("#new-password").fill("123456")
    page.keyboard.press("Enter")
    page.get_by_text("easy to guess").wait_for()  # the dialog stays
    page.locator("#new-password").fill(PIN)
    page.keyboard.press("Enter")
    row = page.locator(".people li", has_text="Nora")
    row.wait_for()
    assert "has not signed in yet" in row.inner_text()
    assert page.evaluate("document.activeElement.id") == "add-user"

    elsewhere = browser.new_context()
    theirs = elsewhere.new_page()
    theirs.set_default_timeout(SECONDS)
    sign_in(theirs, locked, "nora", PIN)
    page.get_by_role("button", name="Manage Nora").click()
    page.locator("#their-role").select_option("review")
    page.get_by_role("button", name="Save").click()
    row.get_by_text("Review", exact=True).wait_for()
    page.get_by_role("button", name="Manage Nora").click()
    page.get_by_role("button", name="Disable…").click()
    page.get_by_role("heading", name="Disable Nora?").wait_for()
    page.keyboard.press("Escape")
    wait_until(lambda: page.locator("dialog").count() == 0)
    assert theirs.evaluate("async () => (await fetch('/v1/me')).status") == 200  # nothing without a confirmation
    page.get_by_role("button", name="Manage Nora").click()
    page.get_by_role("button", name="Disable…").click()
    page.get_by_role("button", name="Disable", exact=True).click()
    row.get_by_text("disabled").wait_for()
    assert theirs.evaluate("async () => (await fetch('/v1/me')).status") == 401
    elsewhere.close()
    page.get_by_role("button", name="Manage Nora").click()
    page.get_by_role("button", name="Enable").click()
    row.get_by_text("last sign-in").wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Manage Nora"
    page.get_by_role("button", name="Manage Nora").click()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    row.wait_for(state="detached")


def test_a_key_is_shown_once_copied_and_revoked(opened: Any, locked: Server) -> None:
    page = opened
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    sign_in(page, locked, "admin person", view="people")
    page.locator("#add-key").click()
    page.keyboard.type("line-9")
    page.keyboard.press("Enter")
    page.locator("#copy-key").click()
    page.get_by_text("Copied").wait_for()
    key = page.locator("#made-key").input_value()
    assert page.evaluate("navigator.clipboard.readText()") == key
    asked = "async (key) => (await fetch('/v1/me', { headers: { 'X-API-Key': key }, credentials: 'omit' })).status"
    assert page.evaluate(asked, key) == 200
    page.get_by_role("button", name="Done").click()
    row = page.locator(".people li", has_text="line-9")
    row.wait_for()
    assert key not in page.content()
    row.get_by_role("button", name="Revoke line-9").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    page.get_by_text("1 revoked key").wait_for()
    assert page.evaluate(asked, key) == 401


def test_everyone_changes_the_own_password(opened: Any, locked: Server) -> None:
    page = opened
    sign_in(page, locked, "inspect person")
    for old, new in ((LONG, PIN), (PIN, LONG)):
        page.locator("#account").click()
        page.get_by_role("button", name="Change password").click()
        page.locator("#password-now").fill(old)
        page.locator("#password-new").fill(new)
        page.locator("#password-again").fill("another")
        page.keyboard.press("Enter")
        page.get_by_text("The two new passwords differ").wait_for()
        page.locator("#password-again").fill(new)
        page.keyboard.press("Enter")
        page.locator("dialog").wait_for(state="detached")
        assert page.evaluate("async () => (await fetch('/v1/me')).status") == 200
        assert page.evaluate("document.activeElement.id") == "account"


def test_a_service_without_sign_in_says_how_to_require_it(opened: Any, locked: Server) -> None:
    page = opened
    local = (
        '{"name": "local", "role": "admin", "user": false, "may": ["inspect", "review", "admin"], "key_needed": false}'
    )
    sign_in(page, locked, "admin person")
    page.route("**/v1/me", lambda route: route.fulfill(body=local, content_type="application/json"))
    page.goto(f"{locked.url}#/people")
    page.reload()
    page.get_by_role("heading", name="Everyone on this machine is an administrator").wait_for()
    assert "patchsvdd user add NAME --role admin" in page.locator("main").inner_text()
    assert "People" not in shown_views(page)
    assert page.locator("#account").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_people_and_sign_in_are_accessible_and_fit_every_screen(browser: Any, locked: Server, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(SECONDS)

    def check(where: str) -> None:
        found = [(one["id"], [node["html"] for node in one["nodes"]]) for one in axe.run(page).response["violations"]]
        assert found == [], where
        assert all(name for _, name in names_of_controls(page)), where
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (where, width)
        page.set_viewport_size({"width": 1440, "height": 900})

    try:
        page.goto(locked.url)
        page.wait_for_selector(".sign-in")
        check("sign-in")
        page.set_viewport_size({"width": 390, "height": 800})
        bar, logo = page.locator(".bar").bounding_box(), page.locator(".brand img").bounding_box()
        assert bar["y"] + bar["height"] - (logo["y"] + logo["height"]) >= 6  # not on the bar's line
        sign_in(page, locked, "administrator with a name that hardly ends", view="people")
        page.locator(".people li").first.wait_for()
        check("people")
        page.locator("#account").click()
        check("menu")
        page.keyboard.press("Escape")
        page.locator("#add-user").click()
        check("add")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Manage inspect person").click()
        check("manage")
        page.get_by_role("button", name="Delete…").click()
        page.get_by_role("heading", name="Delete inspect person?").wait_for()
        check("delete")
    finally:
        context.close()
