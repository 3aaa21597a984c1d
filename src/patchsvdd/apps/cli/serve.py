"""``patchsvdd serve`` and ``patchsvdd key``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    EngineOption,
    GoldenOption,
    JsonOption,
    SearchOption,
    escape,
    one_line_errors,
    print_json,
    print_table,
    say,
    stdout,
)
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.files import output_errors, require_writable

if TYPE_CHECKING:
    from patchsvdd.apps.line.line_file import LineSettings
    from patchsvdd.apps.serve.served_line import ServedLine
    from patchsvdd.apps.serve.service import Service
    from patchsvdd.apps.serve.settings import Settings
    from patchsvdd.apps.serve.store import Store

EXAMPLE = "Example: patchsvdd serve models/bottle models/pill"
KEY_EXAMPLE = "Example: patchsvdd key add line-3 --role inspect"
MAX_SIZE = 1_000_000
"""Upper limit of the size options, in gigabytes, megabytes or megapixels."""
OPEN_FILES = 8192
"""Connections and files that may be open at a time."""
SWITCH_INTERVAL = 0.001
"""Seconds between thread switches; short, so that computing threads do not delay responses."""
SHUTDOWN_TIMEOUT = 30
"""Seconds that open requests have to finish when the service stops."""

DataOption = Annotated[Path, typer.Option(help="Folder for images, training jobs and the embedded database.")]
StoreOption = Annotated[
    str | None, typer.Option(metavar="URL", help="postgresql://user@host/database instead of the embedded database.")
]

keys = typer.Typer(help="Manage API keys of the service.", no_args_is_help=True)


@one_line_errors
def serve(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="MODEL…", help="Model folders, or folders of model folders; served under the models' folder names."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; addresses other than this machine require sign-in or an API key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = 8000,
    data: DataOption = Path("patchsvdd-data"),
    store: StoreOption = None,
    require_key: Annotated[
        bool, typer.Option("--require-key", help="Require sign-in or an API key locally too.")
    ] = False,
    https: Annotated[bool, typer.Option("--https", help="Behind an HTTPS proxy: secure cookies.")] = False,
    queue: Annotated[int, typer.Option(help="Images accepted at a time; more are rejected with 503.")] = 64,
    batch_size: Annotated[int | None, typer.Option(help="Images per batch (default: automatic).")] = None,
    deadline: Annotated[float, typer.Option(help="Time limit for one image, in seconds.")] = 30.0,
    max_megabytes: Annotated[float, typer.Option(help="Maximum size of one uploaded image.")] = 32.0,
    max_megapixels: Annotated[float, typer.Option(help="Maximum number of pixels of one image.")] = 64.0,
    keep_days: Annotated[float | None, typer.Option(help="Delete inspections older than this many days.")] = None,
    keep_gb: Annotated[float | None, typer.Option(help="Disk space for images; the oldest are deleted first.")] = None,
    golden_check: GoldenOption = "block",
    shift_start: Annotated[
        list[str] | None,
        typer.Option(metavar="HH:MM", help="Also check all models with their golden images at this local time."),
    ] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    search: SearchOption = "auto",
) -> None:
    """Serve models over HTTP, with a web page to inspect images, review results and train models."""
    require_extra()
    from math import isfinite

    from patchsvdd.apps.serve.settings import Limits, Retention, Settings

    sizes = {"--max-megabytes": max_megabytes, "--max-megapixels": max_megapixels, "--keep-gb": keep_gb}
    for option, value in sizes.items():
        if value is not None and not (isfinite(value) and 0 < value <= MAX_SIZE):
            raise ConfigError(f"{option} must be a number above 0 and at most {MAX_SIZE:,}; got {value}")

    settings = Settings(
        models=_each_model(models or ()),
        data=data,
        store=store,
        host=host,
        port=port,
        require_key=require_key,
        secure_cookies=https,
        device=device,
        engine=engine,
        search=search,
        limits=Limits(
            upload_bytes=round(max_megabytes * (1 << 20)),
            pixels=round(max_megapixels * 1e6),
            queue=queue,
            batch_size=batch_size,
            deadline=deadline,
        ),
        golden_check=golden_check,
        shift_starts=tuple(shift_start or ()),
        retention=Retention(keep_days, None if keep_gb is None else round(keep_gb * 1e9)),
    )
    run_service(settings)


def _each_model(given: Sequence[Path]) -> tuple[Path, ...]:
    """The given model folders, with a folder of models replaced by those."""
    from patchsvdd.apps.serve.model_registry import models_in

    folders: list[Path] = []
    for folder in given:
        inside = models_in(folder)
        if inside:
            say(f"models in {escape(str(folder))}: {escape(', '.join(path.name for path in inside))}")
        folders += inside or [folder]
    return tuple(folders)


def run_service(settings: Settings, line: LineSettings | None = None) -> None:
    """Serve until a signal stops it, with a line beside the routes if there is one."""
    import socket
    import sys
    from dataclasses import replace

    import uvicorn

    from patchsvdd.apps.serve.app import make_app
    from patchsvdd.apps.serve.http_protocol import HeaderTimeoutProtocol, Server
    from patchsvdd.apps.serve.service import Service
    from patchsvdd.core.files import locked

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    for noisy in ("alembic", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    _allow_many_files()
    sys.setswitchinterval(SWITCH_INTERVAL)
    require_writable(settings.data)
    stored = "images, training jobs and the database" if settings.store is None else "images and training jobs"
    say(f"storing {stored} in {escape(str(settings.data.resolve()))}  (--data chooses another folder)")
    with _private(settings.data), locked(settings.data, "starting a second service on this folder"):
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        with socket.socket(family) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind((settings.host.strip("[]"), settings.port))
            except OSError as error:
                raise ConfigError(
                    f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
                    f"choose another --host or --port"
                ) from None
            port = listening.getsockname()[1]
            service = Service(replace(settings, port=port))
            served = None if line is None else _served_line(line, service)
            listening.listen(1024)
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            names = ", ".join(model.name for model in service.models.all()) or "no model yet (train one on the page)"
            say(f"serving {escape(names)} at http://{escape(host)}:{port}/  (Ctrl-C to stop)")
            config = uvicorn.Config(
                make_app(service) if served is None else make_app(service, served.running),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
                timeout_keep_alive=30,
                h11_max_incomplete_event_size=1 << 16,
                http=HeaderTimeoutProtocol,
                ws="none",
                proxy_headers=False,
            )
            Server(config).run(sockets=[listening])
    say("stopped; the results of all answered requests are stored")


def _served_line(line: LineSettings, service: Service) -> ServedLine:
    """The line of a service, whose field buses listen; closes the service if the settings are unusable."""
    from patchsvdd.apps.serve.served_line import ServedLine

    try:
        service.line_view = served = ServedLine(line, service)
        served.listen()
    except BaseException:
        service.close()
        raise
    return served


@keys.command("add", epilog=KEY_EXAMPLE)
@one_line_errors
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key, such as its user.")],
    role: Annotated[str, typer.Option(help="inspect, review (inspect and review) or admin (everything).")] = "inspect",
    data: DataOption = Path("patchsvdd-data"),
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create a key and print it once; the database stores only its hash."""
    require_extra()
    from patchsvdd.apps.serve.auth import add_key

    with closing(open_store(data, store)) as opened:
        key = add_key(opened, name, role)
    if json:
        print_json({"name": name, "role": role, "key": key})
    else:
        stdout().print(key, markup=False)
        say(f"the key '{escape(name)}' is not shown again; store it in a safe place")


@keys.command("list", epilog="Example: patchsvdd key list")
@one_line_errors
def list_keys(data: DataOption = Path("patchsvdd-data"), store: StoreOption = None, json: JsonOption = False) -> None:
    """List all keys: name, role, and when they were created and revoked."""
    require_extra()
    with closing(open_store(data, store)) as opened:
        stored = opened.all_keys()
    rows = [
        {"name": row["name"], "role": row["role"], "created": day(row["created"]), "revoked": day(row["revoked"])}
        for row in stored
    ]
    if json:
        print_json({"keys": rows})
    else:
        print_table(
            ("name", "role", "created", "revoked"), [[str(value or "") for value in row.values()] for row in rows]
        )


@keys.command("revoke", epilog="Example: patchsvdd key revoke line-3")
@one_line_errors
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.")],
    data: DataOption = Path("patchsvdd-data"),
    store: StoreOption = None,
) -> None:
    """Revoke a key immediately and end its sessions."""
    require_extra()
    with closing(open_store(data, store)) as opened:
        if not opened.revoke_key(name):
            raise ConfigError(f"no active key is named '{name}'; list all keys with patchsvdd key list")
    say(f"revoked the key '{escape(name)}'")


def open_store(data: Path, store: str | None) -> Store:
    """Open the database of a service, which may be running."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from patchsvdd.apps.serve.audit_head_file import HeadFile
    from patchsvdd.apps.serve.settings import Settings
    from patchsvdd.apps.serve.store import Store

    url = Settings((), data, store).url
    if store is not None:
        opened = Store(url)
    else:
        require_writable(data)
        with _private(data):
            opened = Store(url)
    if data.is_dir():
        opened.on_audit = HeadFile(data, opened).advance
    return opened


@contextmanager
def _private(folder: Path) -> Iterator[None]:
    """Create the data folder for this user alone, and keep from others what this process writes in the block.

    An existing folder is closed too, unless it holds something else: then only what is written into it is private.
    """
    import os
    import sys

    before = os.umask(0o077)
    try:
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            found = folder.stat()
            is_own = sys.platform != "win32" and found.st_uid == os.geteuid()
            holds_data = any((folder / name).exists() for name in ("inspections.sqlite", "pictures"))
            if is_own and found.st_mode & 0o077 and (holds_data or not any(folder.iterdir())):
                folder.chmod(0o700)
                say(f"closed {escape(str(folder.resolve()))} to other users of this machine")
        yield
    finally:
        os.umask(before)


def _allow_many_files() -> None:
    """Raise this process's limit of open files and connections, as far as the system allows."""
    import sys

    if sys.platform != "win32":
        import resource
        from contextlib import suppress

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = min(hard, OPEN_FILES) if hard != resource.RLIM_INFINITY else OPEN_FILES
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


def require_extra() -> None:
    """Raise ConfigError with the installation command if a package is missing."""
    from importlib.util import find_spec

    for package in ("fastapi", "uvicorn", "sqlalchemy", "alembic", "multipart", "prometheus_client"):
        if find_spec(package) is None:
            raise ConfigError(
                f'the service requires the extra "serve" ({package} is missing): pip install "patchsvdd[serve]"'
            )


def day(at: float | None) -> str | None:
    """A stored time in words; None for none."""
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
