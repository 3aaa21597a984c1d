"""The model folder on disk.

    model.json                   config, calibration, fusion, provenance, and the checksum of every part
    encoder-<hash>.safetensors   weights and normalisation
    memory-<hash>.safetensors    embeddings of normal patches, their origins and (for local scaling) reach
    critic-<hash>.safetensors    weights and normalisation of the critic (where there is one)
    pictures-<hash>.safetensors  the good images, to look at (where they are kept)
    graph32-<hash>.faiss         graph to search the embeddings of 32-px patches with (where one was built)

Parts are written first, under names of their own; replacing ``model.json`` then switches from the old model
to the new in one step, so an interrupted save leaves the old model. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from patchsvdd.checkpoint import CheckpointFile
from patchsvdd.errors import ModelError
from patchsvdd.files import atomic_write

FORMAT = "patchsvdd model"
FORMAT_VERSION = 1
INDEX = "model.json"
REMEDY = "restore the model folder from a copy, or train again"


@dataclass(frozen=True)
class StoredModel:
    """What a model folder holds."""

    about: dict[str, Any]
    """JSON: config, calibration, fusion, provenance, image names."""
    parts: dict[str, dict[str, Tensor]]
    """Part ("encoder", "memory", "critic", "pictures") → tensors."""
    graphs: dict[int, Path]
    """Patch size → index file."""

    @property
    def identity(self) -> str:
        """Short hash of everything that decides a score or a verdict; equal models have equal ones."""
        return str(self.about["identity"])


def write_model(
    folder: Path,
    about: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Tensor]],
    graphs: Mapping[int, bytes] | None = None,
) -> str:
    """Write the model into ``folder``, replacing an older one only once all parts are on disk; its identity."""
    files: dict[str, dict[str, Any]] = {}
    for part, tensors in parts.items():
        data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})
        files[part] = _write_part(folder, part, "safetensors", data)
    for size, data in (graphs or {}).items():
        files[f"graph{size}"] = _write_part(folder, f"graph{size}", "faiss", data)
    identity = _write_index(folder, {"format": FORMAT, "format_version": FORMAT_VERSION, **about, "files": files})
    _remove_old_parts(folder, files)
    return identity


def rewrite_index(folder: Path, changes: Mapping[str, Any], *, of: str | None = None) -> str:
    """Change what ``model.json`` says, in one step, and none of the parts; the model's new identity.

    ``of``: the identity of the model that the changes were worked out from; another one in the folder is an error.
    """
    index = read_index(folder)
    if of is not None and index["identity"] != of:
        raise ModelError(f"the model in '{folder}' was replaced in the meantime; nothing was changed, run this again")
    return _write_index(folder, {**index, **changes})


def _write_index(folder: Path, index: dict[str, Any]) -> str:
    decisive = {key: index.get(key) for key in ("config", "calibration")}
    # Pictures are looked at and decide nothing: the model is the same without them.
    decisive["files"] = {part: entry for part, entry in index["files"].items() if not part.startswith("pictures")}
    if index.get("fusion") is not None:
        decisive["fusion"] = index["fusion"]
    index["identity"] = _digest(decisive)[:16]
    index["checksum"] = _digest({key: value for key, value in index.items() if key != "checksum"})
    with atomic_write(folder / INDEX) as file:
        # ASCII, because names of images that are not UTF-8 on disk hold lone surrogates.
        file.write(json.dumps(index, indent=1).encode("ascii"))
    return str(index["identity"])


def read_index(folder: Path) -> dict[str, Any]:
    """The verified content of ``model.json``; ModelError says what is wrong with it."""
    path = folder / INDEX
    if not os.path.isdir(folder):  # False, not an error, for a name too long
        raise ModelError(f"there is no model folder '{folder}'; check the path, or train one: patchsvdd train")
    if not path.exists():
        if CheckpointFile(folder).any_exists():
            raise ModelError(
                f"'{folder}' holds an unfinished training; finish it with the same train command and --resume"
            )
        raise ModelError(
            f"'{folder}' is not a model folder: it has no {INDEX}; check the path, or train one: patchsvdd train"
        )
    try:
        index = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is damaged ({error}); restore it from a copy, or train again") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise ModelError(f"{path} does not describe a patchsvdd model; check the path")
    version = index.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ModelError(
            f"{path} has format version {version}, newer than this software reads ({FORMAT_VERSION}); update patchsvdd"
        )
    checksum = index.pop("checksum", None)
    if checksum != _digest(index):
        raise ModelError(f"{path} was altered: its checksum does not fit; restore it from a copy")
    return index


def read_model(folder: Path) -> StoredModel:
    """The model of a folder, every byte checked; ModelError says which file is missing, cut short or altered."""
    index = read_index(folder)
    parts: dict[str, dict[str, Tensor]] = {}
    graphs: dict[int, Path] = {}
    with ThreadPoolExecutor() as pool:  # checksums of large files take a while, and all cores can help
        for check in [pool.submit(_check_part, folder / entry["name"], entry) for entry in index["files"].values()]:
            check.result()
    for part, entry in index["files"].items():
        path = folder / entry["name"]
        if part.startswith("graph"):
            graphs[int(part.removeprefix("graph"))] = path
        else:
            parts[part] = _read_part(path)
    return StoredModel(index, parts, graphs)


def is_model(folder: Path) -> bool:
    """Whether the folder holds a finished model."""
    return os.path.exists(folder / INDEX)


def _write_part(folder: Path, part: str, suffix: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    name = f"{part}-{digest[:12]}.{suffix}"
    with atomic_write(folder / name) as file:
        file.write(data)
    return {"name": name, "bytes": len(data), "sha256": digest}


def _check_part(path: Path, entry: Mapping[str, Any]) -> None:
    """Nothing, or a ModelError where a file is missing, cut short or altered."""
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise ModelError(f"{path} was cut short or altered: {size} bytes, not {entry['bytes']}; {REMEDY}")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != entry["sha256"]:
            raise ModelError(f"{path} was altered: its checksum does not fit; {REMEDY}")
    except FileNotFoundError:
        raise ModelError(f"the model lacks its file {path}; {REMEDY}") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error}); {REMEDY}") from None


def _read_part(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelError(f"{path} cannot be read ({error}); {REMEDY}") from None


def _digest(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _remove_old_parts(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Delete parts of earlier models that the index no longer names, and what a killed process left half-written."""
    for path in folder.glob(".????????????????.tmp"):
        path.unlink(missing_ok=True)
    named = {entry["name"] for entry in files.values()}
    tensors = [(part, "safetensors") for part in ("encoder", "memory", "critic", "pictures")]
    for part, suffix in (*tensors, ("graph*", "faiss")):
        for path in folder.glob(f"{part}-????????????.{suffix}"):
            if path.name not in named:
                path.unlink(missing_ok=True)
