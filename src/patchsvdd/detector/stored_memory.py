"""The memory of a stored model, with exact or graph search."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, cast, get_args

import torch

from patchsvdd.core.config import Config
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.detector.model_folder import StoredModel
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.graph_search import has_faiss, import_faiss
from patchsvdd.memory.segments import join, segments_of, with_graphs

Search = Literal["auto", "exact", "graph"]
"""How the nearest patch is found: exact search or a graph; "auto" uses a graph if there is one."""


def as_search(text: str, device: torch.device) -> Search:
    """Return ``text`` as a ``Search``; raise ConfigError if it is unknown or not supported on this device."""
    if text not in get_args(Search):
        raise ConfigError(f"`search` must be one of {', '.join(get_args(Search))}; got '{text}'")
    if text == "graph" and device.type == "cuda":
        raise ConfigError("`search=graph` is for CPUs; on a GPU the exact search is faster: use `search=exact`")
    if text == "graph":
        import_faiss()
    return cast(Search, text)


def wants_graphs(search: Search, device: torch.device) -> bool:
    """Return whether to use graphs."""
    search = as_search(search, device)
    return search == "graph" or (search == "auto" and device.type == "cpu" and has_faiss())


def stored_memory(
    stored: StoredModel,
    config: Config,
    folder: str | os.PathLike[str],
    device: torch.device,
    search: Search = "auto",
) -> Memory:
    """Return the memory of a stored model, with its graphs if ``search`` uses them on this device."""
    sizes = [scale.patch_size for scale in config.scales]
    names, segments = stored.about["image_names"], segments_of(stored.about)
    memory = join(names, segments, stored.parts, sizes, config.local_scaling)
    if wants_graphs(search, device) and (stored.graphs or search == "graph"):
        return _with_stored_graphs(memory, stored, Path(folder), required=search == "graph")
    return memory


def _with_stored_graphs(memory: Memory, stored: StoredModel, folder: Path, required: bool) -> Memory:
    """Return the memory with the graphs of a model folder; raise ModelError if a ``required`` one is missing."""
    for size, scale in memory.scales.items():
        if required and size not in stored.graphs and scale.is_worth_a_graph:
            raise ModelError(f"'{folder}' has no search graph; build one: patchsvdd prepare '{folder}'")
    return with_graphs(memory, segments_of(stored.about), stored.parts, stored.graphs, stored.added_graphs)
