"""A parser for HTML pages, and a file name that breaks careless ones."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

NASTY = """a "quoted" <b>bold & 'single' #1 100% ?x=1 größe 日本:\\.png"""


class Page(HTMLParser):
    """The tags and the text of a page; fails unless every tag is closed in order."""

    VOID = frozenset({"meta", "img", "input", "wbr"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attrs
            for name, attrs in self.tags
            if name == tag and all((attrs.get(key) or "").split()[:2].count(value) for key, value in wanted.items())
        ]
