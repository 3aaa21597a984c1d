"""The texts of the line's page: each is used, each exists in every language, with the same placeholders."""

from __future__ import annotations

import json
import re

import pytest

from patchsvdd.apps.serve.app import PAGE

CATALOGUES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (PAGE / "languages").glob("*.json")}
ENGLISH: dict[str, str] = CATALOGUES["en"]
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in (PAGE / "language.js", *PAGE.glob("line*.js"))}
KEY = re.compile(r'"([a-z]+\.[a-z-]+)"')
CALL = re.compile(r"\bt\(([^\s,)]+)")
SAME = {"verdict.good", "verdict.anomalous", "view.alt", "unit.seconds", "live.mark", "action.live", "view.live"}
"""Texts that may be the same in another language."""


def placeholders(text: str) -> list[str]:
    return sorted(re.findall(r"{(\w*)}", text))


def used() -> set[str]:
    groups = {key.split(".")[0] for key in ENGLISH}
    found = {key for script in SCRIPTS.values() for key in KEY.findall(script)}
    return {key for key in found if key.split(".")[0] in groups}


def test_the_languages_of_the_menu_are_those_with_a_catalogue() -> None:
    menu = re.search(r"LANGUAGES = {(.*?)}", SCRIPTS["language.js"])
    assert menu is not None
    assert set(re.findall(r"(\w+):", menu[1])) == set(CATALOGUES) == {"en", "de", "es", "zh", "ja"}


def test_every_text_is_used_and_every_used_text_exists() -> None:
    assert used() == set(ENGLISH)
    for name, script in SCRIPTS.items():
        for argument in CALL.findall(script):
            from_table = re.fullmatch(r"[A-Z]+\[[\w.]+\]", argument)
            assert argument == "key" or from_table or argument.strip('"') in ENGLISH, (
                f"{name}: t({argument}) has no literal key"
            )


@pytest.mark.parametrize("code", sorted(CATALOGUES))
def test_every_language_has_every_text(code: str) -> None:
    texts = CATALOGUES[code]
    assert list(texts) == list(ENGLISH), "the same keys in the same order"
    for key, text in texts.items():
        assert text.strip() == text != "", key
        assert placeholders(text) == placeholders(ENGLISH[key]), key
    if code != "en":
        assert {key for key, text in texts.items() if text == ENGLISH[key]} <= SAME


def test_values_of_placeholders_are_given() -> None:
    """Each call names the placeholders of its text, and no others."""
    for name, script in SCRIPTS.items():
        for key, given in re.findall(r't\("([a-z]+\.[a-z-]+)"(?:, {([^}]*)})?\)', script):
            values = sorted(re.findall(r"(\w+)(?=:|,|$)", re.sub(r"\([^()]*\)|\[[^\]]*\]", "", given))) if given else []
            assert set(placeholders(ENGLISH[key])) <= set(values), f"{name}: {key} is given {values}"
