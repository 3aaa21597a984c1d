"""Messages to clients without the server's paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FILE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?")


class HiddenPaths:
    """Shortens paths below the service's folders to the part that a client knows."""

    def __init__(self, data: Path, models: Iterable[Path] = ()) -> None:
        folders = {data / "models", data / "jobs", data, *(folder.absolute().parent for folder in models)}
        folders |= {folder.resolve() for folder in folders}
        longest_first = sorted((str(folder) for folder in folders if folder.name), key=len, reverse=True)
        self._folder = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest_first))})(/|(?![\w.-]))")
        self._upload = re.compile(r"(?<![\w./-])[0-9a-f]{24}/\w+/")
        """The folder of a job's images, below the folder of all jobs."""

    def hide(self, message: str, names: Mapping[str, str] | None = None) -> str:
        """Shorten the paths in a message; ``names`` has the clients' names of files."""
        message = self._folder.sub(lambda found: "" if found[2] else Path(found[1]).name, message)
        message = self._upload.sub("", message)
        if names:
            message = FILE_NAME.sub(lambda found: names.get(found[0], found[0]), message)
        return message

    def hide_in(self, value: Any, names: Mapping[str, str] | None = None) -> Any:
        """Do the same to all strings of a list, or to one string; anything else is returned as it is."""
        if isinstance(value, str):
            return self.hide(value, names)
        return [self.hide_in(one, names) for one in value] if isinstance(value, list) else value
