"""The files of deploy/line: a systemd unit, a compose file and the line's own."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from patchsvdd.apps.cli import program
from patchsvdd.apps.line.line_file import read_line_file
from support.parts import ROOT

HERE = ROOT / "deploy" / "line"
COMPOSE: dict[str, Any] = yaml.safe_load((HERE / "compose.yaml").read_text())


def unit(key: str) -> list[str]:
    lines = (HERE / "patchsvdd-line.service").read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def test_their_commands_exist() -> None:
    commands = [shlex.split(one)[1:] for key in ("ExecStartPre", "ExecStart") for one in unit(key)]
    commands.append(COMPOSE["services"]["line"]["command"][1:])
    assert [command[0] for command in commands] == ["run"] * 3
    known = {option for one in program("run").registered_commands for option in ("--check",) if one.name == "run"}
    assert {word for command in commands for word in command if word.startswith("--")} <= known


def test_the_compose_file_fits_the_line() -> None:
    line = read_line_file(HERE / "line.toml")
    services = COMPOSE["services"]
    assert set(services) == {"line", "database", "broker"}
    assert line.service.store == "postgresql://patchsvdd@127.0.0.1/patchsvdd"
    environment = services["database"]["environment"]
    assert (environment["POSTGRES_USER"], environment["POSTGRES_DB"]) == ("patchsvdd", "patchsvdd")
    mounted = [volume.split(":")[1] for volume in services["line"]["volumes"]]
    assert str(line.service.data) in mounted
    assert f":{line.service.port}/" in " ".join(services["line"]["healthcheck"]["test"])
    for service in services.values():
        for secret in service.get("secrets", []):
            assert secret in COMPOSE["secrets"]
        for volume in service.get("volumes", []):
            name = volume.split(":")[0]
            assert name.startswith(("./", "/")) or name in COMPOSE["volumes"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (HERE / "patchsvdd-line.service").read_text().replace("/opt/patchsvdd/bin/patchsvdd", sys.executable)
    (tmp_path / "patchsvdd-line.service").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "patchsvdd-line.service")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in checked.stderr.splitlines() if "patchsvdd-line" in line]
    assert not complaints, complaints
