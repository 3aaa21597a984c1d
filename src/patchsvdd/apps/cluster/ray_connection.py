"""Connection to a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from patchsvdd.core.errors import ClusterError, ConfigError, PatchSVDDError
from patchsvdd.core.extras import require

TRIES = 3
"""Attempts to connect to ray://: a busy cluster may need longer to start its server process than Ray waits."""
require("ray", "cluster", "`cluster`")
import ray as ray  # noqa: E402


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a cluster for the duration of the block.

    "auto" is the cluster that RAY_ADDRESS names or that runs on this machine; without one, it is the same as "local",
    which starts one process per core of this machine. "ray://host:10001" and "host:6379" are clusters on the network.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with _quiet_stdout():
        if ray.is_initialized():  # the caller is already connected
            yield
            return
        _join(address)
        try:
            yield
        finally:
            ray.shutdown()


def _join(address: str) -> None:
    _require_answer(address)
    logging.getLogger("ray._private.authentication.authentication_token_setup").addFilter(_is_worth_logging)
    tries = TRIES if address.startswith("ray://") else 1
    for left in reversed(range(tries)):
        try:
            ray.init(
                None if address == "auto" else address,
                logging_level=logging.ERROR,
                log_to_driver=False,
                configure_logging=False,
            )
            return
        except (ConnectionError, ValueError, RuntimeError) as error:
            if not left:
                raise ConfigError(
                    f"no cluster answers at '{address}' ({first_line(error)}); `cluster` must be auto, local or the "
                    f"address of a running cluster, such as ray://host:10001"
                ) from None
            ray.shutdown()


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """False for the notice that the cluster requires a token, which is the default; true for all other records."""
    return not record.getMessage().startswith("Token authentication is enabled for this Ray cluster")


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Send the output of Ray and its workers to stderr: stdout is for results."""
    sys.stdout.flush()
    try:
        before = os.dup(1)
    except OSError:  # stdout is closed
        yield
        return
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)


def _require_answer(address: str) -> None:
    """Raise ConfigError if nothing listens at the address: Ray would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ConfigError(
            f"no cluster answers at '{address}' ({error}); `cluster` must be auto, local or a running cluster's address"
        ) from None


def first_line(error: BaseException) -> str:
    """First line of an error message."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def answer_of(reference: Any) -> Any:
    """Return the result of a task or actor call; errors of this package are raised unchanged."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PatchSVDDError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise ClusterError(
            f"the cluster lost an actor repeatedly ({first_line(error)}); add machines or memory and run this again: "
            f"finished results are kept"
        ) from None


def here() -> tuple[str, int]:
    """IP address of this machine, and process id."""
    return str(ray.util.get_node_ip_address()), os.getpid()


def machines() -> list[dict[str, float]]:
    """Resources of each live machine of the cluster, such as "CPU" and "GPU"."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def resources() -> dict[str, float]:
    """Resources of all machines together."""
    return dict(ray.cluster_resources())
