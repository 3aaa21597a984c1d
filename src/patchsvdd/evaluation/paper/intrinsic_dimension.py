"""Fig. 11: the intrinsic dimension of the embeddings under the three losses."""

from __future__ import annotations

import statistics

from patchsvdd.evaluation.paper.embeddings import DIMENSION_POINTS, IMAGES, LOSSES, intrinsic_dimensions
from patchsvdd.evaluation.paper.study import ItemReport, Study, figure
from patchsvdd.report.article import FigureBlock, Section, TableBlock, Verdict
from patchsvdd.report.figures import bar_chart

Dimensions = dict[str, dict[str, dict[str, float | None]]]
"""Category → loss → patch size → dimension; None for a collapsed encoder."""
PROPOSED = list(LOSSES)[-1]


def run_intrinsic_dimension(study: Study) -> ItemReport:
    """The intrinsic dimension of the embeddings under the three losses, for every category."""
    data: Dimensions = {}
    for category in study.categories:
        data[category.name] = {
            name: intrinsic_dimensions(study, category, study.with_loss(objective))
            for name, objective in LOSSES.items()
        }
    sizes = [str(scale.patch_size) for scale in study.config.scales]
    means = {size: {name: _mean(data, name, size) for name in LOSSES} for size in sizes}
    section = Section(
        title="Intrinsic dimension by loss",
        lead=f"Fig. 11. TwoNN over {DIMENSION_POINTS:,} embeddings of patches of {IMAGES} training images. The paper "
        "finds the lowest dimension with L_SSL: the embeddings are close to low-dimensional manifolds.",
        verdicts=[_verdict(size, row) for size, row in means.items()],
        blocks=[_table(data, means), *_chart(study, data, sizes[-1])],
        anchor="intrinsic-dimension",
    )
    return ItemReport("intrinsic-dimension", {"categories": data, "means": means, "estimator": "TwoNN"}, section)


def _mean(data: Dimensions, loss: str, size: str) -> float | None:
    """Mean over the categories with a value for every loss that has any; None if there are none."""
    losses = [name for name in LOSSES if any(row[name][size] is not None for row in data.values())]
    complete = [row for row in data.values() if all(row[name][size] is not None for name in losses)]
    known = [value for row in complete if (value := row[loss][size]) is not None]
    return statistics.fmean(known) if known else None


def _table(data: Dimensions, means: dict[str, dict[str, float | None]]) -> TableBlock:
    columns = ["category", *(f"{name}, {size} px" for size in means for name in LOSSES)]
    rows = [[c, *(_show(row[name][size]) for size in means for name in LOSSES)] for c, row in data.items()]
    rows.append(["mean", *(_show(means[size][name]) for size in means for name in LOSSES)])
    collapsed = [
        f"{c}, {name}: the encoder has collapsed" for c, row in data.items() for name in row if _lacks_value(row[name])
    ]
    return TableBlock("Intrinsic dimension", columns, rows, collapsed)


def _lacks_value(dimensions: dict[str, float | None]) -> bool:
    return any(value is None for value in dimensions.values())


def _verdict(size: str, row: dict[str, float | None]) -> Verdict:
    words = ", ".join(f"{name} {'collapsed' if value is None else f'{value:.1f}'}" for name, value in row.items())
    known = {name: value for name, value in row.items() if value is not None}
    if PROPOSED not in known or len(known) < 2:
        return Verdict(None, f"{size} px: {words}; there is nothing to compare.")
    lowest = min(known, key=lambda name: known[name])
    return Verdict(lowest == PROPOSED, f"{size} px: {words}; the lowest is {lowest}.")


def _chart(study: Study, data: Dimensions, size: str) -> list[FigureBlock]:
    path = bar_chart(
        study.out / "intrinsic-dimension" / "dimension.svg",
        list(data),
        {name: [row[name][size] for row in data.values()] for name in LOSSES},
        ylabel=f"intrinsic dimension of {size}-px embeddings",
    )
    caption = "Intrinsic dimension of the embeddings under three losses (Fig. 11)."
    return [figure(study, path, caption, caption)]


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
