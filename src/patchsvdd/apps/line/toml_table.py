"""Reads settings from a TOML table, with errors that name the key."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from patchsvdd.core.errors import ConfigError


class TomlTable:
    """A table of a TOML file. ``close`` refuses keys that were not read."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        """``name`` is the table's name in the file, such as ``source.top``; empty for the file itself."""
        self.name, self._values = name, dict(values)
        self._known: list[str] = []

    def text(self, key: str, default: str | None = None) -> str:
        """A string. Without a default, it is required."""
        value: str = self._get(key, default, str, "text in quotes")
        return value

    def optional_text(self, key: str) -> str | None:
        """A string, or None if the key is missing."""
        return self.text(key) if self._has(key) else None

    def choice(self, key: str, known: Collection[str], default: str | None = None) -> Any:
        """One of ``known``. Without a default, it is required."""
        return self._one_of(key, self._get(key, default, str, f"one of {', '.join(known)}"), known)

    def choices(self, key: str, known: Collection[str], default: Sequence[str]) -> tuple[Any, ...]:
        """A list of some of ``known``, each once."""
        return tuple(dict.fromkeys(self._one_of(key, value, known) for value in self.texts(key, default)))

    def number(self, key: str, default: float | None = None, least: float = 0.0, most: float = 1e9) -> float:
        """A number between ``least`` and ``most``."""
        value = self._get(key, default, (int, float), "a number")
        if isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(f"{self._path(key)} must be a number from {least:g} to {most:g}; got {value!r}")
        return float(value)

    def optional_number(self, key: str, least: float = 0.0, most: float = 1e9) -> float | None:
        """A number, or None if the key is missing."""
        return self.number(key, least=least, most=most) if self._has(key) else None

    def count(self, key: str, default: int | None = None, least: int = 0, most: int = 1_000_000) -> int:
        """A whole number between ``least`` and ``most``."""
        value: int = self._get(key, default, int, "a whole number")
        if isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(f"{self._path(key)} must be a whole number from {least} to {most}; got {value!r}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value: bool = self._get(key, default, bool, "true or false")
        return value

    def texts(self, key: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        """A list of strings."""
        values = self._get(key, list(default), list, "a list of texts")
        if not all(isinstance(value, str) for value in values):
            raise ConfigError(f"{self._path(key)} must be a list of texts; got {values!r}")
        return tuple(values)

    def table(self, key: str) -> TomlTable | None:
        """A table inside this one; None if it is missing."""
        values = self._get(key, {}, dict, "a table")
        return TomlTable(self._path(key).strip("`"), values) if self._has(key) else None

    def tables(self, key: str) -> dict[str, TomlTable]:
        """The tables inside a table, by name; empty if it is missing."""
        inside = self.table(key)
        return {} if inside is None else {name: each for name in inside.names() if (each := inside.table(name))}

    def names(self) -> list[str]:
        """The keys of the table."""
        return list(self._values)

    def raw(self) -> dict[str, Any]:
        """The table as it is."""
        return dict(self._values)

    def close(self) -> None:
        """Raise ConfigError if the table has a key that was not read."""
        for key in self._values:
            if key not in self._known:
                hint = nearest(key, self._known) or f"; known keys: {', '.join(sorted(self._known))}"
                raise ConfigError(f"{self._path(key)} is not a setting of a line{hint}")

    def _has(self, key: str) -> bool:
        if key not in self._known:
            self._known.append(key)
        return key in self._values

    def _get(self, key: str, default: Any, kind: type | tuple[type, ...], words: str) -> Any:
        if not self._has(key):
            if default is None:
                raise ConfigError(f"{self._path(key)} is missing; it must be {words}")
            return default
        value = self._values[key]
        if not isinstance(value, kind):
            raise ConfigError(f"{self._path(key)} must be {words}; got {value!r}")
        return value

    def _one_of(self, key: str, value: str, known: Collection[str]) -> str:
        if value not in known:
            raise ConfigError(f"{self._path(key)} must be one of {', '.join(known)}; got '{value}'")
        return value

    def _path(self, key: str) -> str:
        return f"`{self.name}.{key}`" if self.name else f"`{key}`"


def nearest(key: str, known: Iterable[str]) -> str:
    """The end of an error: which of the ``known`` keys is like this one; empty if none is."""
    like = difflib.get_close_matches(key, list(known), 1)
    return f"; did you mean `{like[0]}`?" if like else ""
