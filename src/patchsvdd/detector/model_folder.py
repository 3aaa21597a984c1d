"""The model folder on disk.

    model.json                   config, calibration, fusion, provenance, and the checksum of every part
    encoder-<hash>.safetensors   weights and normalisation
    memory-<hash>.safetensors    embeddings of normal patches, their origins and (for local scaling) local scale
    critic-<hash>.safetensors    weights and normalisation of the critic (if any)
    defects-<hash>.safetensors   confirmed defects and the filters fitted to them (if any were taught)
    baseline-<hash>.safetensors  weights of a baseline, instead of encoder, memory and critic
    pictures-<hash>.safetensors  thumbnails of the good images (if kept)
    graph32-<hash>.faiss         graph to search the embeddings of 32-px patches (if built)
    added1-<hash>.safetensors    like the memory: the patches of images added later, one part per addition
    addedgraph32-<hash>.faiss    graph over the patches of all additions
    pictures1-<hash>.safetensors thumbnails of the images of that addition
    history/0001.json            model.json as it was before change 1
    golden/                      images with known verdicts, no part of the model (golden_images.py)
    acceptance/                  records and reports of acceptance tests, no part of the model

Parts are written first, under unique names; replacing ``model.json`` then switches from the old model to the new one
atomically, so an interrupted save leaves the old model. Parts used by an earlier state in ``history`` are kept, so that
an undo is atomic as well. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from patchsvdd.core.errors import ModelError
from patchsvdd.core.files import atomic_write
from patchsvdd.training.checkpoint import CheckpointFile

FORMAT = "patchsvdd model"
FORMAT_VERSION = 1
INDEX = "model.json"
HISTORY = "history"
KEPT = 20
"""Number of changes that can be undone."""
PART = re.compile(
    r"((encoder|memory|critic|defects|baseline|pictures[0-9]*|added[0-9]+)-[0-9a-f]{12}\.safetensors)|((added)?graph[0-9]+-[0-9a-f]{12}\.faiss)"
)
"""File names of a model's parts."""
REMEDY = "restore the model folder from a copy, or train again"


@dataclass(frozen=True)
class StoredModel:
    """The content of a model folder."""

    about: dict[str, Any]
    """JSON: config, calibration, fusion, provenance, image names."""
    parts: dict[str, dict[str, Tensor]]
    """Part ("encoder", "memory", "critic", "pictures") → tensors."""
    graphs: dict[int, Path]
    """Patch size → index file of the memory's graph."""
    added_graphs: dict[int, Path] = field(default_factory=dict)
    """Patch size → index file of the graph over patches added later."""

    @property
    def identity(self) -> str:
        """Short hash of everything that affects a score or a verdict; equal models have equal hashes."""
        return str(self.about["identity"])


def write_model(
    folder: Path,
    about: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Tensor]],
    graphs: Mapping[int, bytes] | None = None,
) -> str:
    """Write the model, replacing an older one only once all parts are on disk, and return its identity.

    A new model has no history: the older one cannot be restored.
    """
    files = write_parts(folder, parts, {f"graph{size}": data for size, data in (graphs or {}).items()})
    identity = _write_index(folder, {"format": FORMAT, "format_version": FORMAT_VERSION, **about, "files": files})
    _tidy(folder)
    return identity


def write_parts(
    folder: Path, parts: Mapping[str, Mapping[str, Tensor]], graphs: Mapping[str, bytes]
) -> dict[str, dict[str, Any]]:
    """Write parts of a model and return their index entries."""
    files: dict[str, dict[str, Any]] = {}
    for part, tensors in parts.items():
        data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})
        files[part] = _write_part(folder, part, "safetensors", data)
    for name, content in graphs.items():
        files[name] = _write_part(folder, name, "faiss", content)
    return files


def change_model(
    folder: Path, changes: Mapping[str, Any], what: str, images: Sequence[str] = (), *, of: str | None = None
) -> str:
    """Change ``model.json`` atomically, record the change in its journal, and return the new identity.

    ``of``: identity of the model that the changes apply to; raise ModelError if the folder holds another one.
    The caller holds the folder's lock.
    """
    before = read_index(folder)
    if of is not None and before["identity"] != of:
        raise ModelError(f"the model in '{folder}' was replaced in the meantime; nothing was changed, run this again")
    if {**before, **changes} == before:
        return str(before["identity"])
    journal = journal_of(before)
    number = len(journal) + 1
    with atomic_write(_earlier(folder, number)) as file:
        file.write((folder / INDEX).read_bytes())
    entry = {"number": number, "at": _now(), "change": what, "images": list(images), "before": before["identity"]}
    identity = _write_index(folder, {**before, **changes, "journal": [*journal, entry]})
    _tidy(folder)
    return identity


def undo_change(folder: Path, entry: int | None = None, identity: str | None = None) -> dict[str, Any]:
    """Restore the model from before its last change, atomically, and return that change's journal entry.

    ``entry`` is the number of the change to undo and ``identity`` that of the model; raise ModelError if another change
    is the last one, or the model is another one. The caller holds the folder's lock.
    """
    now = read_index(folder)
    journal = journal_of(now)
    number = require_last(now, folder, entry, identity)["number"]
    if not _earlier(folder, number).exists():
        raise ModelError(f"change {number} of '{folder}' is too long ago to undo: the last {KEPT} changes can be")
    earlier = _verified(_earlier(folder, number))
    record = {"number": len(journal) + 1, "at": _now(), "change": "undo", "undoes": number, "before": now["identity"]}
    _write_index(folder, {**earlier, "journal": [*journal, record]})
    _tidy(folder)
    undone: dict[str, Any] = journal[number - 1]
    return undone


def journal_of(index: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every change of a model since it was trained, in order."""
    return list(index.get("journal", []))


def undoable(journal: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of the changes in effect, oldest first."""
    numbers: list[int] = []
    for entry in journal:
        if entry["change"] == "undo":
            numbers.pop()
        else:
            numbers.append(int(entry["number"]))
    return numbers


def last_change(index: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the journal entry of the last change in effect; None if there is none."""
    journal = journal_of(index)
    numbers = undoable(journal)
    return journal[numbers[-1] - 1] if numbers else None


def require_last(
    index: Mapping[str, Any], model: Path | str, entry: int | None, identity: str | None = None
) -> dict[str, Any]:
    """Return the last change in effect; raise ModelError if it is not number ``entry`` of the model ``identity``.

    ``model`` is the model's name in messages.
    """
    last = last_change(index)
    if last is None:
        raise ModelError(f"there is no change of '{model}' to undo")
    if entry is not None and last["number"] != entry:
        raise ModelError(f"the last change is now {change_in_words(last)}; nothing was undone")
    if identity is not None and index["identity"] != identity:
        raise ModelError("the model was replaced in the meantime; nothing was undone: check it and try again")
    return last


def change_in_words(entry: Mapping[str, Any]) -> str:
    """Return what a journal entry did, and when: "a calibration of 2026-11-16 12:03 UTC"."""
    count = len(entry.get("images", ()))
    images = f"{count} image{'' if count == 1 else 's'}"
    kinds = {
        "add": f"an addition of {images}",
        "remove": f"a removal of {images}",
        "teach": f"teaching {count} confirmed defect{'' if count == 1 else 's'}",
        "calibrate": "a calibration",
    }
    words = kinds.get(str(entry["change"]), f"the change '{entry['change']}'")
    at = datetime.fromisoformat(str(entry["at"])).astimezone(UTC)
    joint = "on" if count else "of"
    return f"{words} {joint} {at:%Y-%m-%d %H:%M} UTC"


def _earlier(folder: Path, number: int) -> Path:
    return folder / HISTORY / f"{number:04}.json"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write_index(folder: Path, index: dict[str, Any]) -> str:
    decisive = {key: index.get(key) for key in ("config", "calibration")}
    # Thumbnails do not affect scores: the model is the same without them.
    decisive["files"] = {part: entry for part, entry in index["files"].items() if not part.startswith("pictures")}
    decisive |= {key: index[key] for key in ("fusion", "segments") if index.get(key) is not None}
    index["identity"] = _digest(decisive)[:16]
    index["checksum"] = _digest({key: value for key, value in index.items() if key != "checksum"})
    with atomic_write(folder / INDEX) as file:
        # ASCII, because names of images that are not UTF-8 on disk hold lone surrogates.
        file.write(json.dumps(index, indent=1).encode("ascii"))
    return str(index["identity"])


def read_index(folder: Path) -> dict[str, Any]:
    """Return the verified content of ``model.json``; raise ModelError if it is missing or damaged."""
    path = folder / INDEX
    if not os.path.isdir(folder):  # False, not an error, for a name too long
        raise ModelError(f"there is no model folder '{folder}'; check the path, or train one: patchsvdd train")
    if not path.exists():
        if CheckpointFile(folder).any_exists():
            raise ModelError(
                f"'{folder}' holds an unfinished training; finish it with the same settings and `resume=True`"
            )
        raise ModelError(
            f"'{folder}' is not a model folder: it has no {INDEX}; check the path, or train one: patchsvdd train"
        )
    return _verified(path)


def _verified(path: Path) -> dict[str, Any]:
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
        raise ModelError(f"{path} was altered: its checksum does not match; restore it from a copy")
    return index


def read_model(folder: Path, *, without: Callable[[str], bool] = lambda _: False) -> StoredModel:
    """Return the model in a folder, every byte verified; raise ModelError if a file is missing, truncated or altered.

    Parts selected by ``without`` are verified but not loaded.
    """
    index = read_index(folder)
    while True:
        try:
            return _read_parts(folder, index, without)
        except ModelError:
            again = read_index(folder)
            if again["identity"] == index["identity"]:
                raise
            index = again  # the model was changed while reading, and parts it no longer needs were removed


def _read_parts(folder: Path, index: dict[str, Any], without: Callable[[str], bool]) -> StoredModel:
    parts: dict[str, dict[str, Tensor]] = {}
    graphs: dict[str, dict[int, Path]] = {"graph": {}, "addedgraph": {}}
    with ThreadPoolExecutor() as pool:  # checksums of large files are slow, so use all cores
        for check in [pool.submit(_check_part, folder / entry["name"], entry) for entry in index["files"].values()]:
            check.result()
    for part, entry in index["files"].items():
        path = folder / entry["name"]
        kind = part.rstrip("0123456789")
        if kind in graphs:
            graphs[kind][int(part.removeprefix(kind))] = path
        elif not without(part):
            parts[part] = _read_part(path)
    return StoredModel(index, parts, graphs["graph"], graphs["addedgraph"])


def is_model(folder: Path) -> bool:
    """Return whether the folder holds a finished model."""
    return os.path.exists(folder / INDEX)


def holds_parts(folder: Path) -> bool:
    """Return whether the folder holds parts of a model, perhaps without ``model.json``."""
    return folder.is_dir() and any(PART.fullmatch(path.name) for path in folder.iterdir())


def _write_part(folder: Path, part: str, suffix: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    name = f"{part}-{digest[:12]}.{suffix}"
    with atomic_write(folder / name) as file:
        file.write(data)
    return {"name": name, "bytes": len(data), "sha256": digest}


def _check_part(path: Path, entry: Mapping[str, Any]) -> None:
    """Raise ModelError if a file is missing, truncated or altered."""
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise ModelError(f"{path} was truncated or altered: {size} bytes, not {entry['bytes']}; {REMEDY}")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != entry["sha256"]:
            raise ModelError(f"{path} was altered: its checksum does not match; {REMEDY}")
    except FileNotFoundError:
        raise ModelError(f"the model's file {path} is missing; {REMEDY}") from None
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


def _tidy(folder: Path) -> None:
    """Delete files that neither the model nor an undo needs, and temporary files of killed processes."""
    index = _verified(folder / INDEX)
    kept = {_earlier(folder, number).name for number in undoable(journal_of(index))[-KEPT:]}
    named = {entry["name"] for entry in index["files"].values()}
    for path in (folder / HISTORY).glob("[0-9]*.json"):
        if path.name not in kept:
            path.unlink(missing_ok=True)
            continue
        try:
            named |= {entry["name"] for entry in _verified(path)["files"].values()}
        except ModelError:  # its parts are unknown: delete nothing; an undo will report the damage
            return
    if not kept and (folder / HISTORY).is_dir():
        with suppress(OSError):  # it contains a user's file
            (folder / HISTORY).rmdir()
    for path in (*folder.glob(".????????????????.tmp"), *folder.glob(f"{HISTORY}/.????????????????.tmp")):
        path.unlink(missing_ok=True)
    for path in folder.iterdir():
        if PART.fullmatch(path.name) and path.name not in named:
            path.unlink(missing_ok=True)
