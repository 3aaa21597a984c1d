"""Table A2, Fig. 12 and Fig. 13: a flat encoder, the two scales of the hierarchy, and their product."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from patchsvdd.core.scales import Scale
from patchsvdd.evaluation.experiment import ExperimentResult
from patchsvdd.evaluation.paper.map_sheets import map_sheet
from patchsvdd.evaluation.paper.study import TASKS, Comparison, ItemReport, Metrics, Study, figure, reasons_of
from patchsvdd.evaluation.published import published
from patchsvdd.report.article import FigureBlock, Section

FLAT = (Scale(64, 16),)
VARIANTS = ("flat 64", "hierarchical 64", "hierarchical 32", "product")
CLAIMS = (
    ("flat 64", "hierarchical 64", "The hierarchical encoder"),
    ("hierarchical 64", "product", "The product, compared with only K = 64,"),
    ("hierarchical 32", "product", "The product, compared with only K = 32,"),
)
"""Worse and better variant, and the change between them."""
EQUAL_IN_PAPER = {("hierarchical 32", "segmentation_auroc"): "The paper has 0.957 for both."}
"""In the paper, K = 32 and the product have the same segmentation AUROC, so it claims no gain there."""


def run_hierarchy(study: Study) -> ItemReport:
    """Flat K = 64, hierarchical K = 64 and 32, and the product, on every category.

    The first variant has one seed. The others have those seeds for which every category has values per scale, which
    kept results may lack.
    """
    runs: dict[str, dict[str, list[Metrics]]] = {}
    reasons = {}
    whole: dict[Path, ExperimentResult] = {}
    results = {category: study.results(category) for category in study.categories}
    complete = [place for place, seed in enumerate(zip(*results.values(), strict=True)) if all(s.scales for s in seed)]
    for category, every in results.items():
        flat = study.result(category, encoder="flat", scales=FLAT)
        each = [every[place] for place in complete or (0,)]
        whole[category] = each[0]
        runs[category.name] = dict(zip(VARIANTS, _rows(flat, each), strict=True))
        if why := reasons_of([flat, *each]):
            reasons[category.name] = why
    comparison = Comparison.of_runs(runs, reasons)
    spreads = {task: study.seed_spread(study.categories, task) for task in TASKS}
    theirs = {name: published("hierarchy", name) for name in VARIANTS}
    section = Section(
        title="Hierarchical encoding",
        lead="Table A2, Fig. 12 and Fig. 13. The encoder for 64-px patches, built from the one for 32-px patches, "
        "compared with a flat encoder; and the product of the maps of both scales.",
        verdicts=comparison.verdicts(CLAIMS, EQUAL_IN_PAPER, spreads),
        blocks=[comparison.table("AUROC by encoder", theirs), *_figures(study, comparison, whole)],
        anchor="hierarchy",
    )
    return ItemReport("hierarchy", {**comparison.to_json(), "published": theirs}, section)


def _rows(flat: ExperimentResult, each: Sequence[ExperimentResult]) -> list[list[Metrics]]:
    """The metrics of each variant: those of the flat encoder with one seed, the others with every seed."""
    scales: list[list[Metrics]] = [[one.scales.get(size, {}) for one in each] for size in (64, 32)]
    return [[flat.metrics], *scales, [one.metrics for one in each]]


def _figures(study: Study, comparison: Comparison, whole: dict[Path, ExperimentResult]) -> list[FigureBlock]:
    blocks = comparison.bar_charts(study, "hierarchy", "by encoder (Fig. 12).", 0.6, with_mean=True)
    for category in study.one_of_each_kind():
        names = {64: "64 px", 32: "32 px", 0: "product"}
        sheet = map_sheet(category, whole[category], names, study.out / "hierarchy" / f"maps-{category.name}.jpg")
        if sheet is not None:
            caption = f"{category.name}: the large scale locates the defect roughly, the small one precisely (Fig. 13)."
            blocks.append(figure(study, sheet, caption, f"Maps of both scales and their product, {category.name}"))
    return blocks
