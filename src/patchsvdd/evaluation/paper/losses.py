"""Table 2, Fig. 9 and Fig. 3: L_SVDD, L_SVDD', and L_SVDD' with L_SSL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from patchsvdd.core.config import Objective
from patchsvdd.evaluation.experiment import ExperimentResult
from patchsvdd.evaluation.paper.map_sheets import compare_maps
from patchsvdd.evaluation.paper.study import ABLATION_STEPS, Comparison, ItemReport, Study, figure
from patchsvdd.evaluation.published import published
from patchsvdd.report.article import FigureBlock, Section

NEAREST = "L_SVDD, nearest"
VARIANTS: dict[str, Objective] = {
    "L_SVDD": "svdd",
    NEAREST: "svdd",
    "L_SVDD′": "svdd-prime",
    "L_SVDD′ + L_SSL": "patch-svdd",
}
"""Name → objective. L_SVDD is scored by the distance to its centre, as in Section 3.1 of the paper. Scored by the
nearest normal patch, it differs from the others only in its loss."""
Results = dict[str, list[ExperimentResult]]
"""Variant → result of each seed."""
HEADLINES = ("L_SVDD′", "L_SVDD′ + L_SSL")
"""Variants that are trained with every seed; the others have the first."""
CLAIMS = (
    ("L_SVDD", "L_SVDD′", "Replacing L_SVDD by L_SVDD′"),
    (NEAREST, "L_SVDD′", "Replacing L_SVDD by L_SVDD′, both scored by the nearest patch,"),
    ("L_SVDD′", "L_SVDD′ + L_SSL", "Adding L_SSL"),
)
"""The steps of the paper's Table 2: worse and better variant, and the change between them."""


def run_losses(study: Study) -> ItemReport:
    """The three losses on every category."""
    results = {category.name: _results(study, category) for category in study.categories}
    comparison = Comparison.of(results)
    remarks = ended_early(results)
    theirs = {name: published("losses", objective) for name, objective in VARIANTS.items() if name != NEAREST}
    section = Section(
        title="The effect of the losses",
        lead="Table 2, Fig. 3 and Fig. 9. The encoder trained with one centre for all patches (L_SVDD), with pairs of "
        "neighbouring patches (L_SVDD′), and also with the relative position of two patches (L_SSL). Trainings "
        f"without L_SSL are in float32 and have at most {ABLATION_STEPS:,} steps.",
        verdicts=comparison.verdicts(CLAIMS),
        blocks=[comparison.table("AUROC by loss", theirs, remarks), *_figures(study, comparison, results)],
        anchor="losses",
    )
    return ItemReport(
        "losses",
        {
            **comparison.to_json(),
            "steps_without_l_ssl": study.with_loss("svdd").steps,
            "published": theirs,
            "ended_early": remarks,
        },
        section,
    )


def ended_early(results: Mapping[str, Results]) -> list[str]:
    """A sentence per training that ended early because its embeddings were all the same."""
    sentences = []
    for category, row in results.items():
        for name, each in row.items():
            for one in each:
                training = one.data["training"]
                if "scheduled_steps" in training:
                    sentences.append(
                        f"{category}, {name}, seed {one.experiment.config.seed}: all embeddings were equal after "
                        f"{training['steps']:,} of {training['scheduled_steps']:,} steps, where training ended"
                    )
    return list(dict.fromkeys(sentences))


def _results(study: Study, category: Path) -> Results:
    return {
        name: [
            study.result_of(category, study.with_loss(objective, seed), "center" if name == "L_SVDD" else "nearest")
            for seed in (study.every_seed if name in HEADLINES else study.every_seed[:1])
        ]
        for name, objective in VARIANTS.items()
    }


def _figures(study: Study, comparison: Comparison, rows: dict[str, Results]) -> list[FigureBlock]:
    blocks = comparison.bar_charts(study, "losses", "by loss and category (Fig. 9).", 0.4)
    for category in study.one_of_each_kind():
        shown = {name: rows[category.name][name][0] for name in ("L_SVDD", "L_SVDD′ + L_SSL")}
        sheet = compare_maps(category, shown, study.out / "losses" / f"maps-{category.name}.jpg")
        if sheet is not None:
            caption = f"{category.name}: maps of the encoder trained with L_SVDD and with L_SVDD′ + L_SSL (Fig. 3)."
            blocks.append(figure(study, sheet, caption, f"Anomaly maps of {category.name} under two losses"))
    return blocks
