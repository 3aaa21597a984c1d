"""On many machines: Ray runs what the rest of the package computes. No other module imports Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from patchsvdd.errors import ConfigError

INSTALL = 'pip install "patchsvdd[cluster]"'

try:
    import ray
except ImportError as error:
    raise ConfigError(f"--cluster takes Ray ({error}); install it: {INSTALL}") from None


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connected to a cluster inside the block.

    "auto" is the cluster that RAY_ADDRESS names or that runs on this machine, and where there is none as many processes
    as this machine has cores; "local" is always the latter; "ray://host:10001" and "host:6379" are clusters elsewhere.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is ever sent anywhere
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if ray.is_initialized():  # the caller's own
        yield
        return
    try:
        ray.init(
            None if address == "auto" else address,
            logging_level=logging.ERROR,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"no cluster answers at '{address}' ({_first_line(error)}); give --cluster auto, local or the address "
            f"of a running one, such as ray://host:10001"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
