"""Being connected to a cluster."""

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
"""How often ray:// is tried: a busy cluster may take longer than Ray waits to start the process that answers."""
require("ray", "cluster", "`cluster`")
import ray as ray  # noqa: E402


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connected to a cluster inside the block.

    "auto" is the cluster that RAY_ADDRESS names or that runs on this machine, and where there is none as many processes
    as this machine has cores; "local" is always the latter; "ray://host:10001" and "host:6379" are clusters elsewhere.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is ever sent anywhere
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with _quiet_stdout():
        if ray.is_initialized():  # the caller's own
            yield
            return
        _join(address)
        try:
            yield
        finally:
            ray.shutdown()


def _join(address: str) -> None:
    _require_answer(address)
    logging.getLogger("ray._private.authentication.authentication_token_setup").addFilter(_is_news)
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
                    f"no cluster answers at '{address}' ({first_line(error)}); give `cluster` as auto, local or the "
                    f"address of a running one, such as ray://host:10001"
                ) from None
            ray.shutdown()


def _is_news(record: logging.LogRecord) -> bool:
    """Not that a cluster started here asks for a token, which is its default. That one asks for none is a warning."""
    return not record.getMessage().startswith("Token authentication is enabled for this Ray cluster")


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """What Ray and its workers print goes to stderr: stdout is for results."""
    sys.stdout.flush()
    try:
        before = os.dup(1)
    except OSError:  # there is none
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
    """Nothing, or a ConfigError where nobody listens at the address: Ray itself would try again for minutes."""
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
    """What an error says, in short."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def answer_of(reference: Any) -> Any:
    """What a task or an actor answers; an error of this package as it was raised there."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PatchSVDDError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise ClusterError(
            f"what a machine of the cluster held was lost with it, again and again ({first_line(error)}); add "
            f"machines or memory, and run this again: what is done is kept"
        ) from None


def here() -> tuple[str, int]:
    """This machine and process."""
    return str(ray.util.get_node_ip_address()), os.getpid()


def machines() -> list[dict[str, float]]:
    """What each machine of the cluster has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def resources() -> dict[str, float]:
    """What all machines together have."""
    return dict(ray.cluster_resources())
