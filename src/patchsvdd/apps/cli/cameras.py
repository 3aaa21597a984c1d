"""``patchsvdd cameras``."""

from __future__ import annotations

from dataclasses import asdict

from patchsvdd.apps.cli.console import JsonOption, one_line_errors, print_json, print_table, say

EXAMPLE = "Example: patchsvdd cameras"


@one_line_errors
def cameras(json: JsonOption = False) -> None:
    """List the GenICam cameras that answer (GigE Vision and USB3 Vision), for the file of a line."""
    from patchsvdd.apps.line.sources.aravis import list_cameras

    rows = [asdict(camera) for camera in list_cameras()]
    if json:
        print_json({"cameras": rows})
    elif not rows:
        say("no camera answers; check its cable, its power and that its address is in this machine's network")
    else:
        print_table(tuple(rows[0]), [[str(value) for value in row.values()] for row in rows])
