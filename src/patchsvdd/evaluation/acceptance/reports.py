"""Store an acceptance test: the HTML report, the PDF and the record."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from patchsvdd.core.files import atomic_write
from patchsvdd.evaluation.acceptance.record import FOLDER, AcceptanceFiles, stem_of, write_record
from patchsvdd.evaluation.acceptance.result import Acceptance
from patchsvdd.evaluation.acceptance.sections import facts_of, intro_of, sections_of
from patchsvdd.report.article import write_article
from patchsvdd.report.article_pdf import article_pdf

NAME = "acceptance"
"""Name of the files in a folder that was asked for."""


def save_acceptance(result: Acceptance, model: Path, out: Path | None = None) -> AcceptanceFiles:
    """Write the reports and the record into the model folder, and also into ``out``; return the files of the latter."""
    content = {**result.to_json(), "images": [one.to_json() for one in result.images]}
    report = _Report(result)
    files = _write(model / FOLDER, stem_of(result.at, result.identity), report, content)
    return files if out is None else _write(out, NAME, report, content)


@dataclass(frozen=True)
class _Report:
    """The report, from which both formats are made."""

    result: Acceptance

    @property
    def title(self) -> str:
        return f"Acceptance test of {self.result.model}"

    def page(self, path: Path) -> Path:
        return write_article(
            path,
            title=self.title,
            kind="patchsvdd",
            intro=intro_of(self.result),
            facts=facts_of(self.result),
            sections=sections_of(self.result),
            overlays=bool(self.result.missed or self.result.rejected),
        )

    def pdf(self) -> bytes:
        return article_pdf(
            self.title, intro=intro_of(self.result), facts=facts_of(self.result), sections=sections_of(self.result)
        )


def _write(folder: Path, stem: str, report: _Report, content: dict[str, Any]) -> AcceptanceFiles:
    page = report.page(folder / f"{stem}.html")
    reports, pdf = {"html": page}, None
    if find_spec("reportlab") is not None:
        pdf = folder / f"{stem}.pdf"
        with atomic_write(pdf) as file:
            file.write(report.pdf())
        reports["pdf"] = pdf
    return AcceptanceFiles(write_record(folder / f"{stem}.json", content, reports), page, pdf)
