"""``patchsvdd run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.apps.cli.console import JsonOption, escape, one_line_errors, print_json, stdout
from patchsvdd.core.errors import ConfigError

if TYPE_CHECKING:
    from patchsvdd.apps.line.line_file import LineSettings
    from patchsvdd.apps.serve.settings import Settings

EXAMPLE = "Example: patchsvdd run line.toml"


@one_line_errors
def run(
    file: Annotated[Path, typer.Argument(metavar="LINE.toml", help="The line: models, sources, field buses.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only check the file, then exit: nothing is opened or started.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run an inspection line: images from cameras, one verdict per part to the PLC, and a page for the operator."""
    from patchsvdd.apps.cli.serve import require_extra, run_service

    require_extra()
    from patchsvdd.apps.line.line_file import read_line_file
    from patchsvdd.apps.line.sources.make import make_source

    line = read_line_file(file)
    for view, table in line.sources.items():
        make_source(view, table)
    settings = _service_settings(line)
    if check:
        _describe(line, json)
        return
    run_service(settings, line)


def _service_settings(line: LineSettings) -> Settings:
    """The settings of the service that runs the line."""
    from typing import Any

    from patchsvdd.apps.serve.settings import Limits, Retention, Settings

    service = line.service
    golden: Any = service.golden_check
    return Settings(
        models=line.models,
        data=service.data,
        store=service.store,
        host=service.host,
        port=service.port,
        require_key=service.require_key,
        secure_cookies=service.https,
        device=service.device,
        limits=Limits(),
        golden_check=golden,
        shift_starts=service.shift_starts,
        retention=Retention(service.keep_days, None if service.keep_gb is None else round(service.keep_gb * 1e9)),
    )


def _describe(line: LineSettings, json: bool) -> None:
    from patchsvdd.detector.model_folder import read_index

    models = {str(folder): read_index(folder)["identity"] for folder in line.models}
    names = [folder.name for folder in line.models]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two model folders have the name '{name}', under which they are served; rename one")
    sources = {view: table["kind"] for view, table in line.sources.items()}
    facts = {
        "name": line.name,
        "views": list(line.views),
        "products": [product for product in line.products if product],
        "models": models,
        "sources": sources,
        "buses": [bus for bus in ("opcua", "modbus") if getattr(line, bus) is not None],
        "trigger": line.parts.trigger,
        "deadline": line.parts.deadline,
        "timeout": line.parts.timeout,
    }
    if json:
        print_json(facts)
        return
    stdout().print(escape(f"{line.name} can run: {len(line.views)} views, {len(models)} models"), soft_wrap=True)
    for view, kind in sources.items():
        stdout().print(escape(f"  {view}: {kind}"), soft_wrap=True)
