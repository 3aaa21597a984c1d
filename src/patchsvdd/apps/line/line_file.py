"""Reads a line's settings from its file, LINE.toml."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from patchsvdd.apps.line.bus_settings import ModbusSettings, OpcUaSettings
from patchsvdd.apps.line.frame_queue import WhenFull
from patchsvdd.apps.line.toml_table import TomlTable
from patchsvdd.core.errors import ConfigError

TriggeredBy = Literal["bus", "camera"]
"""Who says that a part is there: a PLC or the API, or each image that arrives."""
Incomplete = Literal["incomplete", "anomalous"]
ChosenBy = Literal["bus", "images"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}")
ONLY = ""
"""Name of the product of a line that has one."""


@dataclass(frozen=True)
class PartSettings:
    """How images become parts."""

    trigger: TriggeredBy = "bus"
    deadline: float = 2.0
    """Seconds after the trigger within which every view must have arrived."""
    timeout: float = 5.0
    """Seconds after the trigger within which the verdict must be stored; otherwise a fault."""
    incomplete: Incomplete = "incomplete"
    """The verdict on a part with a missing view."""
    calibration: Path | None = None
    """Calibration of whole parts; None to divide the false-alarm rate among the views."""
    false_alarm_rate: float = 0.01
    """Share of good parts that may be called anomalous, without a ``calibration``."""


@dataclass(frozen=True)
class ServiceSettings:
    """Where the service of a line listens and stores."""

    data: Path
    store: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    require_key: bool = False
    https: bool = False
    golden_check: str = "block"
    shift_starts: tuple[str, ...] = ()
    keep_days: float | None = None
    keep_gb: float | None = None
    device: str = "auto"


@dataclass(frozen=True)
class LineSettings:
    """A line, as its file describes it."""

    name: str
    home: Path
    """Folder of the file."""
    views: tuple[str, ...]
    products: Mapping[str, Mapping[str, Path]]
    """Product → view → model folder. A line with one product has that of the name ``ONLY``."""
    sources: Mapping[str, Mapping[str, Any]]
    """View → the table of its source."""
    parts: PartSettings
    service: ServiceSettings
    queue_size: int = 16
    when_full: WhenFull = "drop-oldest"
    chosen_by: ChosenBy = "bus"
    chooser: Path | None = None
    """File that tells products apart by their images."""
    opcua: OpcUaSettings | None = None
    modbus: ModbusSettings | None = None

    @property
    def models(self) -> tuple[Path, ...]:
        """The model folders, each once."""
        return tuple(dict.fromkeys(model for views in self.products.values() for model in views.values()))

    def required(self, product: str) -> tuple[str, ...]:
        """The views that a product needs."""
        return tuple(view for view in self.views if view in self.products[product])


def read_line_file(path: str | os.PathLike[str]) -> LineSettings:
    """Read a line's file. Relative paths in it begin at its folder. Raise ConfigError if anything is wrong."""
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    try:
        return _settings(TomlTable("", values), path.absolute().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _settings(file: TomlTable, home: Path) -> LineSettings:
    name = _named("name", file.text("name"))
    raw = {view: _from_home(table, home) for view, table in _raw_tables(file, "source").items()}
    for view in raw:
        _named("source", view)
    if not raw:
        raise ConfigError("there is no source; add a table [source.NAME] with `kind`, for each view of a part")
    views = tuple(raw)
    products = _products(file, views, home)
    queue = file.table("queue") or TomlTable("queue", {})
    size = queue.count("size", 16, least=1, most=10_000)
    files_wait = all(table.get("kind") == "folder" for table in raw.values())
    when_full = queue.choice("when_full", get_args(WhenFull), "block" if files_wait else "drop-oldest")
    queue.close()
    chosen_by: ChosenBy = "bus"
    chooser = None
    choice = file.table("choice")
    if choice is not None:
        chosen_by = choice.choice("by", get_args(ChosenBy))
        if chosen_by == "images":
            chooser = _path(choice.text("file"), home)
        choice.close()
    parts = _parts(file.table("parts") or TomlTable("parts", {}), home)
    service = _service(file.table("service") or TomlTable("service", {}), name, home)
    opcua, modbus = file.table("opcua"), file.table("modbus")
    buses = (
        None if opcua is None else OpcUaSettings.from_table(opcua, home),
        None if modbus is None else ModbusSettings.from_table(modbus),
    )
    file.close()
    if parts.trigger == "camera" and ONLY not in products and chosen_by == "bus":
        raise ConfigError(
            "nobody names the product: with `parts.trigger` = 'camera', give one product in [models], or let "
            "images choose with [choice]"
        )
    return LineSettings(name, home, views, products, raw, parts, service, size, when_full, chosen_by, chooser, *buses)


def _products(file: TomlTable, views: tuple[str, ...], home: Path) -> dict[str, dict[str, Path]]:
    """Product → view → model folder, from [models] or from one [product.NAME] each."""
    tables = file.tables("product")
    only = file.table("models")
    if (only is None) == (not tables):
        raise ConfigError(
            "give the models of one product in [models], or those of several in [product.NAME] tables: "
            'a line `VIEW = "model folder"` for each view'
        )
    if only is not None:
        tables = {ONLY: only}
    products: dict[str, dict[str, Path]] = {}
    for product, table in tables.items():
        if product != ONLY:
            _named("product", product)
        models = {view: _path(table.text(view), home) for view in views if view in table.names()}
        for view in table.names():
            if view not in views:
                raise ConfigError(
                    f"`{table.name}.{view}` is a model for a view without a source; views: {', '.join(views)}"
                )
        if not models:
            raise ConfigError(f'`{table.name}` has no model; add a line `VIEW = "model folder"`')
        products[product] = models
        table.close()
    unused = [view for view in views if not any(view in models for models in products.values())]
    if unused:
        raise ConfigError(f"no product has a model for the view '{unused[0]}'; add one, or remove its source")
    return products


def _parts(table: TomlTable, home: Path) -> PartSettings:
    trigger = table.choice("trigger", get_args(TriggeredBy), "bus")
    deadline = table.number("deadline", 2.0, least=0.01, most=3600)
    timeout = table.number("timeout", deadline + 3.0, least=0.01, most=3600)
    incomplete = table.choice("incomplete", get_args(Incomplete), "incomplete")
    calibration = _path(table.optional_text("calibration"), home)
    rate = table.number("false_alarm_rate", 0.01, least=1e-6, most=0.5)
    table.close()
    if timeout < deadline:
        raise ConfigError(f"`parts.timeout` ({timeout:g} s) must not be below `parts.deadline` ({deadline:g} s)")
    return PartSettings(trigger, deadline, timeout, incomplete, calibration, rate)


def _service(table: TomlTable, name: str, home: Path) -> ServiceSettings:
    settings = ServiceSettings(
        data=_path(table.text("data", f"{name}-data"), home),
        store=table.optional_text("store"),
        host=table.text("host", "127.0.0.1"),
        port=table.count("port", 8000, most=65_535),
        require_key=table.flag("require_key"),
        https=table.flag("https"),
        golden_check=table.choice("golden_check", ("block", "warn"), "block"),
        shift_starts=table.texts("shift_starts"),
        keep_days=table.optional_number("keep_days"),
        keep_gb=table.optional_number("keep_gb"),
        device=table.text("device", "auto"),
    )
    table.close()
    return settings


def _named(what: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"`{what}` must be a name of up to 50 letters, digits, - and _ that begins with a letter or digit; "
            f"got '{name}'"
        )
    return name


def _path(text: str | None, home: Path) -> Any:
    return None if text is None else home / Path(text).expanduser()


def _from_home(table: dict[str, Any], home: Path) -> dict[str, Any]:
    """A source's table, with a relative folder or video file made to begin at the line's file."""
    for key in ("folder", "address"):
        if isinstance(value := table.get(key), str) and "://" not in value:
            table = {**table, key: str(home / Path(value).expanduser())}
    return table


def _raw_tables(file: TomlTable, key: str) -> dict[str, dict[str, Any]]:
    return {name: table.raw() for name, table in file.tables(key).items()}
