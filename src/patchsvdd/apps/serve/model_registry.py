"""The served models, which are replaced without dropping requests."""

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

from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.files import output_errors
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.followed_model import RETRY_SECONDS, FollowedModel
from patchsvdd.detector.model_folder import INDEX, is_model, read_index

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
CHECK_SECONDS = 2.0
"""Seconds between two checks of the folders."""


@dataclass(frozen=True)
class ServedModel:
    """A detector in use. A request keeps the one that it started with."""

    name: str
    folder: Path
    detector: PatchSVDD
    loaded_at: float

    @property
    def identity(self) -> str:
        """Short hash of the stored model."""
        return self.detector.identity or ""


class ModelRegistry:
    """The served models by name."""

    def __init__(self, load: Callable[[Path], PatchSVDD], on_note: Callable[[str], None]) -> None:
        self._load = load
        self._note = on_note
        self._models: dict[str, FollowedModel] = {}
        self._refused: dict[str, tuple[str, float]] = {}
        """Name of a new folder that could not be loaded → error message, and time of the next attempt."""
        self._adding = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.on_reload: Callable[[str], None] = lambda _: None

    def add(self, folder: Path) -> ServedModel:
        """Serve the model of a folder under the folder's name."""
        name = folder.resolve().name
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"a model is served under its folder's name, which may contain only letters, digits and . _ -; "
                f"got '{name}': rename the folder"
            )
        if name in self._models:
            raise ConfigError(
                f"two models are named '{name}': {self._models[name].folder} and {folder}; rename one folder"
            )
        with self._adding:
            if name not in self._models:  # another thread may have added it since
                self._models[name] = FollowedModel(folder, self._load, self._note, lambda: self.on_reload(name))
        return self[name]

    def __getitem__(self, name: str) -> ServedModel:
        model = self._models[name]
        return ServedModel(name, model.folder, model.detector, model.loaded_at)

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def named(self, name: str) -> ServedModel:
        """The model of that name; raises Problem if it is not served."""
        if name not in self._models:
            known = ", ".join(sorted(self._models)) or "none"
            raise Problem("not-found", f"no model '{name[:100]}' is served; available: {known}")
        return self[name]

    def all(self) -> list[ServedModel]:
        """All models, sorted by name."""
        return [self[name] for name in sorted(self._models)]

    def reload(self, name: str) -> tuple[ServedModel, bool]:
        """Reload a model if it was replaced; returns it, and whether it was. Raises an error if it is unusable."""
        replaced = self._models[name].reload()
        return self[name], replaced

    def trouble(self, name: str) -> str | None:
        """Why the model in the folder could not be loaded; None if it is in use."""
        if name in self._models:
            return self._models[name].problem
        return self._refused[name][0] if name in self._refused else None

    def follow(self, trained: Path) -> None:
        """Reload replaced models from now on, and serve models that appear in the folder ``trained``."""
        self._thread = threading.Thread(target=self._follow, args=(trained,), name="models", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following the folders."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, trained: Path) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            for model in list(self._models.values()):
                model.refresh()
            try:
                folders = trained_models(trained)
            except OSError as error:
                self._note(f"{trained} cannot be listed: {error}")
                continue
            for folder in folders:
                if folder.name not in self._models:
                    self._try_to_add(folder)

    def _try_to_add(self, folder: Path) -> None:
        error_before, retry_at = self._refused.get(folder.name, (None, 0.0))
        if time.monotonic() < retry_at:
            return
        try:
            self.add(folder)
            self._refused.pop(folder.name, None)
        except Exception as error:  # noqa: BLE001  # a broken folder must not end the checks
            if str(error) != error_before:
                self._note(f"the model in {folder} cannot be loaded: {error}")
            self._refused[folder.name] = (str(error), time.monotonic() + RETRY_SECONDS)


@contextmanager
def private_copy(folder: Path, parent: Path) -> Iterator[Path]:
    """Yield a private copy of a model to load, deleted when the block ends.

    A detector keeps reading the files that it was loaded from. Copying another model over them would crash the
    service; the files of the private copy never change.
    """
    names = [entry["name"] for entry in read_index(folder)["files"].values()]
    copy = parent / secrets.token_hex(8) / folder.name
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
