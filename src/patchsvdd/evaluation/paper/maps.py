"""Fig. 1, 7 and A1–A3: the anomaly map of one image of every defect type."""

from __future__ import annotations

from typing import Any

from patchsvdd.evaluation.paper.map_sheets import map_sheet
from patchsvdd.evaluation.paper.study import ItemReport, Study, figure, show
from patchsvdd.report.article import FigureBlock, Section, TableBlock, Verdict


def run_maps(study: Study) -> ItemReport:
    """The image with the median score of every defect type of every category, next to its anomaly map."""
    blocks: list[TableBlock | FigureBlock] = []
    data: dict[str, Any] = {}
    gaps = []
    for category in study.categories:
        result = study.result(category)
        kept = [one for one in result.sample_maps().about if one["rank"] == "median"]
        data[category.name] = [{key: one[key] for key in ("image", "defect", "score")} for one in kept]
        path = map_sheet(category, result, {0: "anomaly map"}, study.out / "maps" / f"{category.name}.jpg")
        if path is not None:
            values = " / ".join(show(result.metrics.get(f"{task}_auroc")) for task in ("detection", "segmentation"))
            caption = f"{category.name} (detection / segmentation AUROC {values}); red: contour of the ground truth."
            blocks.append(figure(study, path, caption, f"Images of {category.name} next to their anomaly maps"))
        else:
            why = result.missing.get("detection_auroc", "no map was stored")
            gaps.append(Verdict.remark(f"{category.name} is not shown: {why}."))
    section = Section(
        title="Anomaly maps",
        lead="Fig. 1, 7 and A1–A3. The image with the median score of every defect type, neither the best nor the "
        "worst; darker is more anomalous, with one scale per category.",
        verdicts=gaps,
        blocks=blocks,
        anchor="maps",
    )
    return ItemReport("maps", {"categories": data}, section)
