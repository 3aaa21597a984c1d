"""A PostgreSQL server in a folder, for tests and benchmarks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

USER = "postgres"
"""The user that runs it when this process is root, since PostgreSQL refuses root."""


def binaries() -> Path | None:
    """The folder of the newest PostgreSQL on this machine, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    return Path(path).parent if path is not None else None


def missing() -> str | None:
    """The reason why PostgreSQL cannot be used, or None if it can."""
    if binaries() is None:
        return "PostgreSQL is not installed"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "PostgreSQL does not run as root, and there is no runuser"
    return None


class Postgres:
    """A server with a database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._run("initdb", "-D", str(folder / "db"), "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8")
        self.start()
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "tester", "inspections")
        self.url = f"postgresql://tester@127.0.0.1:{self.port}/inspections"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder}"
        self._run("pg_ctl", "-D", str(self.folder / "db"), "-o", options, "-l", str(self.folder / "log"), "-w", "start")

    def stop(self, how: str = "fast") -> None:
        """Stop the server; "immediate" is a crash."""
        self._run("pg_ctl", "-D", str(self.folder / "db"), "-m", how, "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        bin_folder = binaries()
        assert bin_folder is not None
        command = [str(bin_folder / program), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", USER, "--", *command]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server that is removed at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="postgres"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        server = Postgres(folder)
        try:
            yield server
        finally:
            with suppress(subprocess.CalledProcessError):  # it has been stopped
                server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
