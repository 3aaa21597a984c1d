"""A command run for every anomalous image."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from typing import IO, Any

from patchsvdd.apps.watch.delivery import NotDelivered
from patchsvdd.apps.watch.outbox import Message
from patchsvdd.core.errors import ConfigError

TIMEOUT = 60.0
VARIABLES = ("image", "path", "score", "threshold", "verdict", "overlay", "model")
"""Keys of a row that are passed in environment variables such as PATCHSVDD_IMAGE."""

SECRETS = ("PATCHSVDD_WEBHOOK_SECRET", "PATCHSVDD_MQTT_PASSWORD")
"""Variables that the command does not receive."""


class Command:
    """A program run without a shell: the row as JSON on standard input, its main values in environment variables.

    It runs once per message, and again only if the watch was killed while it ran. Failures are reported, not
    retried.
    """

    name = "command"

    def __init__(self, line: str, timeout: float = TIMEOUT) -> None:
        try:
            self._arguments = shlex.split(line)
        except ValueError as error:
            raise ConfigError(f"`on_anomaly` cannot be read ({error}): {line}") from None
        if not self._arguments:
            raise ConfigError("`on_anomaly` must be a command, e.g. 'stop-belt --line 3'")
        if shutil.which(self._arguments[0]) is None:
            raise ConfigError(
                f"`on_anomaly`: there is no program '{self._arguments[0]}'; check the path and that it is executable"
            )
        self._timeout = timeout

    def deliver(self, message: Message) -> None:
        """Run the command to its end; raises NotDelivered, with no further attempts, if it fails."""
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as body:
            body.write(message.body)
            body.seek(0)
            code = self._run(message, body, errors)
            if code == 0:
                return
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - 500))
            last = errors.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        outcome = f"was killed after {self._timeout:.0f} s" if code is None else f"ended with code {code}"
        raise NotDelivered(f"the command {outcome}{f' ({last[0]})' if last else ''}", tries=1)

    def close(self) -> None:
        """Do nothing: every run has ended."""

    def _run(self, message: Message, body: IO[bytes], errors: IO[bytes]) -> int | None:
        """Return the exit code; None if the command timed out and was killed with every process that it started."""
        values: dict[str, Any] = {"delivery": message.id} | {key: message.row.get(key) for key in VARIABLES}
        variables = {f"PATCHSVDD_{key.upper()}": str(value) for key, value in values.items() if value is not None}
        try:
            process = subprocess.Popen(
                self._arguments,
                stdin=body,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={name: value for name, value in os.environ.items() if name not in SECRETS} | variables,
                start_new_session=True,
            )
        except OSError as error:
            raise NotDelivered(f"the command cannot be started ({error})", tries=1) from None
        try:
            return process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
