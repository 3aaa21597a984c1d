"""The models that are served, each swapped for its successor without a dropped request."""

from __future__ import annotations

import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.files import output_errors
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import INDEX, is_model, read_index

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
CHECKED = 2.0
"""Seconds between two looks at the folders."""
RETRIED = 15.0
"""Seconds after which a successor that could not be loaded is tried again."""


@dataclass(frozen=True)
class ServedModel:
    """A detector in use. A request keeps the one it began with."""

    name: str
    folder: Path
    detector: PatchSVDD
    loaded_at: float

    @property
    def identity(self) -> str:
        """Of the model, as stored."""
        return self.detector.identity or ""


class ModelRegistry:
    """The models by name."""

    def __init__(self, load: Callable[[Path], PatchSVDD], on_note: Callable[[str], None]) -> None:
        self._load = load
        self._note = on_note
        self._loaded: dict[str, ServedModel] = {}
        self._states: dict[str, tuple[int, ...]] = {}
        self._refused: dict[str, tuple[str, float]] = {}
        self._changing = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.on_reload: Callable[[str], None] = lambda _: None

    def add(self, folder: Path) -> ServedModel:
        """Serve the model of a folder under the folder's name."""
        name = folder.resolve().name
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"a model is served under its folder's name, of letters, digits and . _ - alone; got '{name}': "
                f"rename the folder"
            )
        if name in self._loaded:
            raise ConfigError(
                f"two models are named '{name}': {self._loaded[name].folder} and {folder}; rename one folder"
            )
        with self._changing:
            return self._take(name, folder)

    def __getitem__(self, name: str) -> ServedModel:
        return self._loaded[name]

    def __contains__(self, name: str) -> bool:
        return name in self._loaded

    def named(self, name: str) -> ServedModel:
        """The model of that name; a Problem if it is not served."""
        found = self._loaded.get(name)
        if found is None:
            known = ", ".join(sorted(self._loaded)) or "none"
            raise Problem("not-found", f"no model '{name[:100]}' is served; there are: {known}")
        return found

    def all(self) -> list[ServedModel]:
        """All of them, by name."""
        return [self._loaded[name] for name in sorted(self._loaded)]

    def reload(self, name: str) -> tuple[ServedModel, bool]:
        """The model as its folder holds it now, and whether that is another one; raises what is wrong with it."""
        with self._changing:
            now = self._loaded[name]
            state = _state(now.folder)
            if read_index(now.folder)["identity"] == now.identity:
                self._states[name] = state
                self._refused.pop(name, None)
                return now, False
            fresh = self._take(name, now.folder)
        self._refused.pop(name, None)
        self._note(f"model {name} replaced: {fresh.identity}, threshold {fresh.detector.threshold:.4g}")
        self.on_reload(name)
        return fresh, True

    def _take(self, name: str, folder: Path) -> ServedModel:
        state = _state(folder)  # before it is loaded: what is written meanwhile is seen later
        fresh = ServedModel(name, folder, self._load(folder), time.time())
        self._loaded[name], self._states[name] = fresh, state
        return fresh

    def trouble(self, name: str) -> str | None:
        """Why the folder's present model is not the one in use; None if it is."""
        refused = self._refused.get(name)
        return refused[0] if refused is not None else None

    def follow(self, also: Path) -> None:
        """Look after the folders from now on, and serve what appears in the folder ``also``."""
        self._thread = threading.Thread(target=self._follow, args=(also,), name="models", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, also: Path) -> None:
        while not self._stopped.wait(CHECKED):
            for name, now in list(self._loaded.items()):
                refused = self._refused.get(name)
                if refused is None and _state(now.folder) == self._states[name]:
                    continue
                if refused is not None and time.monotonic() < refused[1]:
                    continue
                self._attempt(name, lambda name=name: self.reload(name))  # type: ignore[misc]
            for folder in self._appeared(also):
                refused = self._refused.get(folder.name)
                if folder.name not in self._loaded and (refused is None or time.monotonic() >= refused[1]):
                    self._attempt(folder.name, lambda folder=folder: self.add(folder))  # type: ignore[misc]

    def _appeared(self, also: Path) -> list[Path]:
        try:
            return trained_models(also)
        except OSError as error:
            self._note(f"{also} cannot be looked at: {error}")
            return []

    def _attempt(self, name: str, act: Callable[[], Any]) -> None:
        try:
            act()
            self._refused.pop(name, None)
        except Exception as error:  # noqa: BLE001  # whatever lies there, the next look must come
            told = self._refused.get(name)
            if told is None or told[0] != str(error):
                self._note(f"model {name} cannot be loaded, the one before stays in use: {error}")
            self._refused[name] = (str(error), time.monotonic() + RETRIED)


@contextmanager
def private_copy(folder: Path, among: Path) -> Iterator[Path]:
    """A copy of a model to load, gone afterwards.

    A detector looks into the files that it was loaded from as long as it is used; a model that is copied over another
    one changes those files, and would take the service down. Nobody finds the files of the copy.
    """
    names = [entry["name"] for entry in read_index(folder)["files"].values()]
    copy = among / secrets.token_hex(8) / folder.name
    try:
        with output_errors(copy):
            copy.mkdir(parents=True)
        for name in (*names, INDEX):
            try:
                shutil.copyfile(folder / Path(name).name, copy / Path(name).name)
            except FileNotFoundError:
                raise ModelError(f"the model lacks its file {folder / name}") from None
        yield copy
    finally:
        shutil.rmtree(copy.parent, ignore_errors=True)


def trained_models(folder: Path) -> list[Path]:
    """Finished models in a folder of model folders."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if NAME.fullmatch(path.name) and is_model(path)]


def _state(folder: Path) -> tuple[int, ...]:
    """What changes when another model is put in place."""
    try:
        status = (folder / INDEX).stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
