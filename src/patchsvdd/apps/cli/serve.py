"""``patchsvdd serve`` and ``patchsvdd key``."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    EngineOption,
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

if TYPE_CHECKING:
    from patchsvdd.apps.serve.settings import Settings
    from patchsvdd.apps.serve.store import Store

EXAMPLE = "Example: patchsvdd serve models/bottle models/pill"
KEY_EXAMPLE = "Example: patchsvdd key add line-3 --role inspect"
MOST = 1_000_000
"""Gigabytes, megabytes or megapixels that may be asked for."""
FILES = 8192
"""Connections and files that may be open at a time."""
SWITCH = 0.001
"""Seconds after which a thread that computes lets another one answer."""
GRACE = 30
"""Seconds that requests have to end when the service is stopped."""

DataOption = Annotated[Path, typer.Option(help="Folder for pictures, trainings and the embedded database.")]
StoreOption = Annotated[
    str | None, typer.Option(metavar="URL", help="postgresql://user@host/database instead of the embedded database.")
]

keys = typer.Typer(help="API keys of the service.", no_args_is_help=True)


@one_line_errors
def serve(
    models: Annotated[
        list[Path] | None, typer.Argument(metavar="MODEL…", help="Model folders, served under their names.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; beyond this machine an API key is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")] = 8000,
    data: DataOption = Path("patchsvdd-data"),
    store: StoreOption = None,
    require_key: Annotated[bool, typer.Option("--require-key", help="Ask for a key on this machine too.")] = False,
    https: Annotated[bool, typer.Option("--https", help="Browsers come by HTTPS: cookies go no other way.")] = False,
    queue: Annotated[int, typer.Option(help="Images on their way at a time; more are answered with 503.")] = 64,
    batch_size: Annotated[int | None, typer.Option(help="Images computed together; chosen if not given.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds within which an image is answered.")] = 30.0,
    max_megabytes: Annotated[float, typer.Option(help="Largest upload of one image.")] = 32.0,
    max_megapixels: Annotated[float, typer.Option(help="Largest image.")] = 64.0,
    keep_days: Annotated[float | None, typer.Option(help="Forget inspections older than this.")] = None,
    keep_gb: Annotated[float | None, typer.Option(help="Room for pictures; the oldest go first.")] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    search: SearchOption = "auto",
) -> None:
    """Answer over HTTP, keep every inspection, and show a page to look at, review and learn from them."""
    _require_extra()
    from math import isfinite

    from patchsvdd.apps.serve.settings import Limits, Retention, Settings

    sizes = {"--max-megabytes": max_megabytes, "--max-megapixels": max_megapixels, "--keep-gb": keep_gb}
    for option, value in sizes.items():
        if value is not None and not (isfinite(value) and 0 < value <= MOST):
            raise ConfigError(f"{option} takes a number, more than 0 and at most {MOST:,}; got {value}")

    settings = Settings(
        models=tuple(models or ()),
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
        retention=Retention(keep_days, None if keep_gb is None else round(keep_gb * 1e9)),
    )
    _run(settings)


def _run(settings: Settings) -> None:
    import socket
    import sys

    import uvicorn

    from patchsvdd.apps.serve.app import make_app
    from patchsvdd.apps.serve.http_protocol import HeaderTimeoutProtocol, Server
    from patchsvdd.apps.serve.service import Service
    from patchsvdd.core.files import locked, require_writable

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    for noisy in ("alembic", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    _allow_many_files()
    sys.setswitchinterval(SWITCH)
    require_writable(settings.data)
    settings.data.mkdir(parents=True, exist_ok=True)
    kept = "pictures, trainings and the database" if settings.store is None else "pictures and trainings"
    say(f"keeping {kept} in {escape(str(settings.data.resolve()))}  (--data chooses another folder)")
    with locked(settings.data, "starting a second service on this folder"):
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        with socket.socket(family) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind((settings.host.strip("[]"), settings.port))
            except OSError as error:
                raise ConfigError(
                    f"cannot listen at {settings.host}:{settings.port}: {error.strerror}; "
                    f"choose another --host or --port"
                ) from None
            service = Service(settings)
            listening.listen(1024)
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            names = ", ".join(model.name for model in service.models.all()) or "no model yet: train one on the page"
            say(f"serving {escape(names)} at http://{escape(host)}:{listening.getsockname()[1]}/  (Ctrl-C ends it)")
            config = uvicorn.Config(
                make_app(service),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE,
                timeout_keep_alive=30,
                h11_max_incomplete_event_size=1 << 16,
                http=HeaderTimeoutProtocol,
                ws="none",
                proxy_headers=False,
            )
            Server(config).run(sockets=[listening])
    say("stopped; everything that was answered is stored")


@keys.command("add", epilog=KEY_EXAMPLE)
@one_line_errors
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will use it.")],
    role: Annotated[str, typer.Option(help="inspect, review (also reviews), or admin (everything).")] = "inspect",
    data: DataOption = Path("patchsvdd-data"),
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Make a key. It is shown this once: the database holds only its hash."""
    _require_extra()
    from patchsvdd.apps.serve.auth import add_key

    opened = _open(data, store)
    try:
        key = add_key(opened, name, role)
    finally:
        opened.close()
    if json:
        print_json({"name": name, "role": role, "key": key})
    else:
        stdout().print(key, markup=False)
        say(f"this is the only time that the key of '{escape(name)}' is shown; keep it in a safe place")


@keys.command("list")
@one_line_errors
def list_keys(data: DataOption = Path("patchsvdd-data"), store: StoreOption = None, json: JsonOption = False) -> None:
    """All keys: names, roles, when they were made and revoked."""
    _require_extra()
    opened = _open(data, store)
    try:
        found = opened.all_keys()
    finally:
        opened.close()
    rows = [
        {"name": row["name"], "role": row["role"], "created": _day(row["created"]), "revoked": _day(row["revoked"])}
        for row in found
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
    name: Annotated[str, typer.Argument(metavar="NAME", help="The key's name.")],
    data: DataOption = Path("patchsvdd-data"),
    store: StoreOption = None,
) -> None:
    """Make a key worth nothing, at once, and end the sessions that it opened."""
    _require_extra()
    opened = _open(data, store)
    try:
        if not opened.revoke_key(name):
            raise ConfigError(f"there is no key named '{name}' in use; patchsvdd key list shows all")
    finally:
        opened.close()
    say(f"the key of '{escape(name)}' is revoked")


def _open(data: Path, store: str | None) -> Store:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from patchsvdd.apps.serve.settings import Settings
    from patchsvdd.apps.serve.store import Store

    return Store(Settings((), data, store).url)


def _allow_many_files() -> None:
    """As many connections and files as the system lets this process have."""
    import sys

    if sys.platform != "win32":
        import resource
        from contextlib import suppress

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(hard, FILES) if hard != resource.RLIM_INFINITY else FILES
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _require_extra() -> None:
    """ConfigError with the command that installs what is missing."""
    from importlib.util import find_spec

    for package in ("fastapi", "uvicorn", "sqlalchemy", "alembic", "multipart", "prometheus_client"):
        if find_spec(package) is None:
            raise ConfigError(
                f'the service takes the extra "serve" ({package} is missing): pip install "patchsvdd[serve]"'
            )


def _day(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
