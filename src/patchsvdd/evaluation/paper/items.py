"""The items of the paper by name, and the files written for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from patchsvdd.core.files import atomic_write
from patchsvdd.evaluation.experiment import ExperimentResult, origin_of
from patchsvdd.evaluation.paper.baselines import run_baselines
from patchsvdd.evaluation.paper.hierarchy import run_hierarchy
from patchsvdd.evaluation.paper.intrinsic_dimension import run_intrinsic_dimension
from patchsvdd.evaluation.paper.losses import run_losses
from patchsvdd.evaluation.paper.maps import run_maps
from patchsvdd.evaluation.paper.methods import run_methods
from patchsvdd.evaluation.paper.study import ItemReport, Study
from patchsvdd.evaluation.paper.sweeps import run_dimension, run_lambda
from patchsvdd.evaluation.paper.tsne import run_tsne
from patchsvdd.evaluation.published import source
from patchsvdd.evaluation.run_info import circumstances
from patchsvdd.report.article import Section, TableBlock, write_article

ITEMS: dict[str, Callable[[Study], ItemReport]] = {
    "methods": run_methods,
    "losses": run_losses,
    "hierarchy": run_hierarchy,
    "lambda": run_lambda,
    "dimension": run_dimension,
    "baselines": run_baselines,
    "tsne": run_tsne,
    "intrinsic-dimension": run_intrinsic_dimension,
    "maps": run_maps,
}
NEEDS_LIBRARIES = ("dimension", "tsne", "intrinsic-dimension")
"""Items that require the libraries of ``patchsvdd[paper]``; without them, the others only lack their charts."""
LIBRARIES = ("matplotlib", "sklearn", "skdim")


def write_item(study: Study, report: ItemReport) -> Path:
    """Write ITEM.html and ITEM.json next to the figures; returns the path of ITEM.html."""
    about = _circumstances(study, study.used)
    data = {
        "command": f"patchsvdd paper {report.item}",
        "seed": study.config.seed,
        "seeds": list(study.every_seed),
        **about,
        "settings": study.config.to_json(),
        **report.data,
        "verdicts": [{"result": one.result, "holds": one.holds, "words": one.words} for one in report.section.verdicts],
    }
    with atomic_write(study.out / f"{report.item}.json") as file:
        file.write((json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))
    return _write_page(study, study.out / f"{report.item}.html", report.section.title, [report.section], about)


def write_all(study: Study, reports: Sequence[ItemReport]) -> Path:
    """Write index.html, one file with every item and a summary of the paper's claims; returns its path."""
    rows = [
        [report.section.title, verdict.result, verdict.words]
        for report in reports
        for verdict in report.section.verdicts
    ]
    summary = Section(
        title="Do the paper's claims hold here?",
        lead="One sentence each, based on the numbers below.",
        blocks=[TableBlock("Claims", ["item", "result", "details"], rows, is_text=True)],
        anchor="claims",
    )
    sections = [summary, *(report.section for report in reports)]
    about = _circumstances(study, list(study.known.values()))
    return _write_page(study, study.out / "index.html", "The paper's evidence", sections, about, self_contained=True)


def _circumstances(study: Study, used: Sequence[ExperimentResult]) -> dict[str, Any]:
    """Where the results were computed, possibly another machine; this machine if no result was used."""
    return origin_of(used) if used else circumstances(study.store.device)


def _seeds(study: Study) -> str:
    seeds = study.every_seed
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"


def _write_page(
    study: Study,
    path: Path,
    title: str,
    sections: Sequence[Section],
    about: dict[str, Any],
    *,
    self_contained: bool = False,
) -> Path:
    steps = study.config.steps
    length = f"{steps:,} steps" if steps is not None else f"{study.config.epochs} epochs"
    facts = {
        "Categories": ", ".join(category.name for category in study.categories),
        "Settings": f"{study.config.preset}, {length}, {_seeds(study)}",
        "Computed on": f"{about['hardware']}, {about['date']}, commit {about['commit']}",
        "The paper": source(),
    }
    kind = "Patch SVDD, the paper"
    return write_article(path, title=title, kind=kind, facts=facts, sections=sections, self_contained=self_contained)
