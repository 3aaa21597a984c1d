"""Ray clusters on this machine: one in this process, or several nodes, each a raylet with its own workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

SMALL = 100 * 2**20
"""Bytes of a node's object store."""


def start_local_cluster() -> None:
    """Connect this process to a cluster of two CPUs on this machine, unless it is connected already.

    Its workers judge encoders by as few synthetic defects as this process does.
    """

    def judge_by_few() -> None:
        """Change the module when it is imported; most workers do not need it, and importing it takes seconds."""
        import sys
        from importlib.machinery import PathFinder
        from typing import Any

        class Few(PathFinder):
            @classmethod
            def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
                if fullname != "patchsvdd.detector.fitting":
                    return None
                spec: Any = PathFinder.find_spec(fullname, path, target)
                execute = spec.loader.exec_module

                def execute_and_change(module: Any) -> None:
                    execute(module)
                    module.JUDGED = 8

                spec.loader.exec_module = execute_and_change
                return spec

        sys.meta_path.insert(0, Few)

    if ray.is_initialized():
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
        patch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "240")
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=SMALL,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"worker_process_setup_hook": judge_by_few},
        )


@contextmanager
def nodes(*cpus: int, client_port: int | None = None) -> Iterator[Cluster]:
    """A cluster with one node per number of CPUs. The first node is the head and listens for ray:// at the port."""
    ray.shutdown()  # otherwise this process would use its own cluster
    first, *others = cpus
    more = {} if client_port is None else {"ray_client_server_port": client_port}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": first, "object_store_memory": SMALL, "include_dashboard": False, **more},
    )
    try:
        for count in others:
            add_node(cluster, count)
        yield cluster
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def add_node(cluster: Cluster, cpus: int = 1) -> None:
    """Add a node to a cluster and wait until it is alive."""
    cluster.add_node(num_cpus=cpus, object_store_memory=SMALL)
    cluster.wait_for_nodes()


def kill_worker(cluster: Cluster, named: str) -> int:
    """Kill one worker process of a cluster whose title contains ``named``; return its process ID."""
    members = cluster.list_all_nodes()  # type: ignore[no-untyped-call]
    raylets = {one.process.pid for node in members for one in node.all_processes["raylet"]}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            title = (path / "cmdline").read_bytes().decode(errors="replace")
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if title.startswith("ray::") and named in title and parent in raylets:
            os.kill(int(path.name), signal.SIGKILL)
            return int(path.name)
    raise LookupError(f"no worker is called {named}")
