"""Sources from tables of a settings file."""

from __future__ import annotations

import inspect
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from patchsvdd.apps.line.sources.folder import FolderSource
from patchsvdd.apps.line.sources.genicam import GenicamSource
from patchsvdd.apps.line.sources.source import Source
from patchsvdd.apps.line.sources.stream import StreamSource
from patchsvdd.apps.line.toml_table import nearest
from patchsvdd.core.errors import ConfigError

KINDS: dict[str, Callable[..., Source]] = {"genicam": GenicamSource, "stream": StreamSource, "folder": FolderSource}
"""Values of ``kind``; the other keys of a table are the parameters of its class."""

NOT_IN_TABLES = {"self", "name", "record", "password"}
"""Parameters that a table does not have: a password comes from the environment."""
PASSWORD = "password_variable"
"""Key with the name of the environment variable that holds the password of a stream."""

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a text"}


def make_source(name: str, table: Mapping[str, object], *, records: Path | None = None) -> Source:
    """Return the source that a table describes; raises ConfigError if a key or value is wrong.

    ``records``: the folder for the lists of files that are done, one for each folder that is a source.
    """
    place = f"source '{name}'"
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        found = "it has none" if kind is None else f"got {kind!r}"
        raise ConfigError(f"{place}: `kind` must be one of {', '.join(KINDS)}; {found}{nearest(str(kind), KINDS)}")
    parameters = _parameters(KINDS[kind])
    keys = ["kind", *parameters, *([PASSWORD] if kind == "stream" else [])]
    for key in table:
        if key not in keys:
            raise ConfigError(
                f"{place}: there is no `{key}` for {kind}{nearest(key, keys)}; allowed are {', '.join(keys)}"
            )
    for key, (_, is_required) in parameters.items():
        if is_required and key not in table:
            raise ConfigError(f"{place}: `{key}` is missing; {kind} needs it")
    values = {key: _value(place, key, table[key], parameters[key][0]) for key in parameters if key in table}
    if PASSWORD in table:
        values["password"] = _password(place, table[PASSWORD])
    if kind == "folder" and records is not None:
        values["record"] = records / f"{name}.sqlite"
    try:
        return KINDS[kind](name, **values)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def _parameters(make: Callable[..., Source]) -> dict[str, tuple[Any, bool]]:
    """The parameters of a class that a table may have: their types, and whether they are required."""
    hints = typing.get_type_hints(make.__init__)
    return {
        name: (hints[name], parameter.default is inspect.Parameter.empty)
        for name, parameter in inspect.signature(make).parameters.items()
        if name not in NOT_IN_TABLES
    }


def _value(place: str, key: str, value: object, hint: Any) -> Any:
    """The value of a key, as its parameter wants it; raises ConfigError if it has another type."""
    options = [one for one in _options(hint) if one is not type(None)]
    for option in options:
        if get_origin(option) is Literal and value in get_args(option):
            return value
        if get_origin(option) is Mapping and isinstance(value, Mapping):
            inner = get_args(option)[1]
            return {str(inside): _value(place, f"{key}.{inside}", one, inner) for inside, one in value.items()}
        if option is Path and isinstance(value, str):
            return Path(value)
        if option is float and isinstance(value, int) and not isinstance(value, bool) and int not in options:
            return float(value)
        if isinstance(option, type) and type(value) is option:
            return value
    raise ConfigError(f"{place}: `{key}` must be {_in_words(options)}; got {value!r}")


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _in_words(options: Iterable[Any]) -> str:
    found = []
    for option in options:
        if get_origin(option) is Literal:
            found.append("one of " + ", ".join(map(repr, get_args(option))))
        else:
            found.append(WORDS.get(option, "a table"))
    return " or ".join(dict.fromkeys(found))


def _password(place: str, variable: object) -> str:
    if not isinstance(variable, str) or not os.environ.get(variable):
        raise ConfigError(
            f"{place}: `{PASSWORD}` names the environment variable that holds the password; {variable!r} is not set"
        )
    return os.environ[variable]
