"""The served models, which are replaced without dropping requests."""

from __future__ import annotations

import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from patchsvdd.apps.serve.problem_details import Problem, in_fields
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


@dataclass
class Refusal:
    """A model folder that could not be loaded."""

    name: str
    error: Exception
    retry_at: float


class ModelRegistry:
    """The served models by name, and those that cannot be served."""

    def __init__(
        self,
        load: Callable[[Path], PatchSVDD],
        on_note: Callable[[str], None],
        hide: Callable[[str], str] = lambda message: message,
        *,
        check: Callable[[str, Path, PatchSVDD], object] = lambda *_: None,
        live_folders: Mapping[str, Path] | None = None,
    ) -> None:
        """``check`` is called with a name, its folder and a detector before that is used under the name.

        ``live_folders`` has the folders that are served under a name instead of the folder of this name.
        """
        self._load, self._note, self._hide, self._check = load, on_note, hide, check
        self._live_folders = dict(live_folders or {})
        self._homes: dict[str, Path] = {}
        """Name → the folder of this name, whichever is served under it."""
        self._models: dict[str, FollowedModel] = {}
        self._refused: dict[Path, Refusal] = {}
        self._given: list[Path] = []
        """Folders named by the user, which are tried again if they could not be loaded."""
        self._adding = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.on_reload: Callable[[str], None] = lambda _: None

    def open(self, given: Sequence[Path], trained: Sequence[Path]) -> None:
        """Serve all of these models that can be loaded; the others are reported and tried again later.

        Raise an error if models were given and none at all can be served.
        """
        given = list({folder.resolve(): folder for folder in given}.values())
        self._given = given
        for folder in (*given, *trained):
            self._try_to_add(folder)
        if given and not self._models:
            raise self._refused[given[0]].error

    def add(self, folder: Path) -> ServedModel:
        """Serve the model of a folder under the folder's name."""
        name = folder.resolve().name
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"a model is served under its folder's name, which may contain only letters, digits and . _ -; "
                f"got '{name}': rename the folder"
            )
        if name in self._models:
            raise ConfigError(f"another model is served under the name '{name}' already; rename one folder")
        with self._adding:
            if name not in self._models:  # another thread may have added it since
                self._homes[name] = folder
                self._models[name] = self.opened(name, self._live_folders.get(name, folder))
        self._refused.pop(folder, None)
        return self[name]

    def opened(self, name: str, folder: Path, *, is_checked: bool = False) -> FollowedModel:
        """The model of a folder, loaded to be served under a name; raises an error if it is unusable.

        It is checked now, unless ``is_checked``, and whenever it is loaded again.
        """

        def load(folder: Path) -> PatchSVDD:
            nonlocal is_checked
            detector = self._in_use(folder) or self._load(folder)
            if not is_checked:
                self._check(name, folder, detector)
            is_checked = False
            return detector

        return FollowedModel(folder, load, self._note, lambda: self.on_reload(name))

    def _in_use(self, folder: Path) -> PatchSVDD | None:
        """The detector of a folder if it is served under another name already."""
        found = [model for model in list(self._models.values()) if model.folder.resolve() == folder.resolve()]
        identity = read_index(folder)["identity"] if found else None
        return next((model.detector for model in found if model.detector.identity == identity), None)

    def put(self, name: str, model: FollowedModel) -> None:
        """Serve a model under a name instead of the present one. Requests in progress finish with that one."""
        with self._adding:
            self._live_folders[name] = model.folder
            self._models[name] = model
        self._refused.pop(self._homes[name], None)

    def with_home(self, name: str, folder: Path) -> list[Path]:
        """A folder, and the folder of this name if that is another one."""
        return list({one.resolve(): one for one in (folder, self._homes.get(name, folder))}.values())

    def is_known(self, name: str) -> bool:
        """Whether a model of this name is served, or would be if its folder could be loaded."""
        return name in self._models or name in self._homes

    def __getitem__(self, name: str) -> ServedModel:
        model = self._models[name]
        return ServedModel(name, model.folder, model.detector, model.loaded_at)

    def get(self, name: str) -> ServedModel | None:
        """The model of that name; None if it is not served."""
        return self[name] if name in self._models else None

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def named(self, name: str) -> ServedModel:
        """The model of that name; raises Problem if it is not served."""
        if name not in self._models:
            if (reason := self.trouble(name)) is not None:
                raise Problem("model-unusable", f"the model '{name}' cannot be loaded: {reason}", retry_after=10)
            known = ", ".join(sorted(self._models)) or "none"
            raise Problem("not-found", f"no model '{name[:100]}' is served; available: {known}")
        return self[name]

    def all(self) -> list[ServedModel]:
        """All models, sorted by name."""
        return [self[name] for name in sorted(self._models)]

    def unavailable(self) -> list[tuple[str, str]]:
        """Name and reason of each model that cannot be served, sorted by name."""
        return sorted((refusal.name, self._told(refusal.error)) for refusal in list(self._refused.values()))

    def reload(self, name: str) -> tuple[ServedModel, bool]:
        """Reload a model if it was replaced; returns it, and whether it was. Raises an error if it is unusable."""
        replaced = self._models[name].reload()
        return self[name], replaced

    def trouble(self, name: str) -> str | None:
        """Why the model in the folder could not be loaded; None if it is in use."""
        if name in self._models:
            problem = self._models[name].problem
            return None if problem is None else self._hide(problem)
        return next((reason for other, reason in self.unavailable() if other == name), None)

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
                folders = [*self._given, *trained_models(trained)]
            except OSError as error:
                self._note(f"{trained} cannot be listed: {error}")
                continue
            for gone in self._refused.keys() - set(folders):  # deleted
                self._refused.pop(gone, None)
            served = {home for name, home in self._homes.items() if name in self._models}
            for folder in folders:
                if folder not in served:
                    self._try_to_add(folder)

    def _try_to_add(self, folder: Path) -> None:
        before = self._refused.get(folder)
        if before is not None and time.monotonic() < before.retry_at:
            return
        try:
            self.add(folder)
        except Exception as error:  # noqa: BLE001  # a broken folder must not end the checks
            if before is None or str(error) != str(before.error):
                self._note(f"the model in {folder} cannot be loaded: {error}")
            self._refused[folder] = Refusal(folder.resolve().name, error, time.monotonic() + RETRY_SECONDS)

    def _told(self, error: Exception) -> str:
        return in_fields(self._hide(str(error)))


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


def models_in(folder: Path) -> list[Path]:
    """The models in a folder of model folders, sorted; none if the folder is itself a model, or holds none."""
    if is_model(folder) or not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if is_model(path)]


def trained_models(folder: Path) -> list[Path]:
    """Finished models in a service's folder of models."""
    return [path for path in models_in(folder) if NAME.fullmatch(path.name)]
