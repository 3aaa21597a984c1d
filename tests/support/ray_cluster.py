"""A cluster of several nodes on this machine: every node is a raylet with workers of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ray.cluster_utils import Cluster

SMALL = 100 * 2**20
"""Bytes of a node's object store."""


@contextmanager
def nodes(*cpus: int, client_port: int | None = None) -> Iterator[Cluster]:
    """A cluster with a node per number of CPUs; the first is the head, and listens for ray:// at the port."""
    first, *others = cpus
    more = {} if client_port is None else {"ray_client_server_port": client_port}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": first, "object_store_memory": SMALL, "include_dashboard": False, **more},
    )
    try:
        for count in others:
            cluster.add_node(num_cpus=count, object_store_memory=SMALL)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def kill_worker(named: str, below: int | None = None) -> int:
    """Kill one worker process whose title holds ``named``, of the raylet ``below`` if given; returns its number."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            title = (path / "cmdline").read_bytes().decode(errors="replace")
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if title.startswith("ray::") and named in title and below in (None, parent):
            os.kill(int(path.name), signal.SIGKILL)
            return int(path.name)
    raise LookupError(f"no worker is called {named}")


def wait_for(what: Callable[[], bool], seconds: float = 240) -> None:
    """Until it is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
