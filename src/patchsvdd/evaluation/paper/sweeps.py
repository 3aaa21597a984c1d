"""Fig. 14 and Fig. 15: the effect of λ and of the embedding dimension D."""

from __future__ import annotations

import math
import statistics
from typing import Any

from patchsvdd.evaluation.paper.embeddings import intrinsic_dimensions
from patchsvdd.evaluation.paper.study import TASK_NAMES, TASKS, ItemReport, Study, figure, show
from patchsvdd.evaluation.published import kind_of
from patchsvdd.report.article import FigureBlock, Section, TableBlock, Verdict
from patchsvdd.report.figures import have_matplotlib, line_chart

LAMBDAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
DIMENSIONS = (16, 32, 64, 128)


def run_lambda(study: Study) -> ItemReport:
    """The sweep of λ for one object and one texture."""
    data: dict[str, Any] = {}
    notes = []
    for category in study.one_of_each_kind():
        data[category.name] = {}
        for value in LAMBDAS:
            result = study.result(category, lambda_=value)
            data[category.name][f"{value:g}"] = {t: result.metrics[t] for t in TASKS if t in result.metrics}
            notes += [f"{category.name}, λ = {value:g}: {why}" for why in dict.fromkeys(result.missing.values())]
    columns = ["category", *(f"λ = {value:g}, {task[:3]}." for value in LAMBDAS for task in TASK_NAMES.values())]
    rows = [
        [name, *(show(row[f"{value:g}"].get(task)) for value in LAMBDAS for task in TASKS)]
        for name, row in data.items()
    ]
    section = Section(
        title="The effect of λ",
        lead="Fig. 14. A large λ pulls embeddings together, a small one makes them encode positions. The paper finds "
        "that objects prefer a smaller λ than textures. No value is chosen here: the whole sweep is shown.",
        verdicts=[_verdict_on_lambda(study, data)],
        blocks=[TableBlock("AUROC by λ", columns, rows, notes), *_lambda_figures(study, data)],
        anchor="lambda",
    )
    return ItemReport("lambda", {"categories": data, "lambdas": list(LAMBDAS)}, section)


def _verdict_on_lambda(study: Study, data: dict[str, Any]) -> Verdict:
    """Whether detection of the object is best at a smaller λ than that of the texture."""
    best = []
    for category in study.one_of_each_kind():
        rows = data[category.name].items()
        values = {float(key): row["detection_auroc"] for key, row in rows if "detection_auroc" in row}
        if values and kind_of(category.name) is not None:
            best.append((category.name, max(values, key=lambda key: values[key])))
    if len(best) < 2:
        return Verdict(None, "Detection AUROC of one object and one texture is needed to compare their best λ.")
    (one, first), (other, second) = best
    words = f"Detection of {one} is best at λ = {first:g}, of {other} at λ = {second:g}."
    return Verdict(None if first == second else first < second, words)


def _lambda_figures(study: Study, data: dict[str, Any]) -> list[FigureBlock]:
    blocks = []
    for task in TASKS if have_matplotlib() else ():
        series = {}
        for name, row in data.items():
            known = [(float(key), values[task]) for key, values in row.items() if task in values]
            if known:
                series[name] = ([x for x, _ in known], [y for _, y in known])
        if series:
            path = line_chart(
                study.out / "lambda" / f"{TASK_NAMES[task]}.svg",
                series,
                xlabel="λ",
                ylabel=f"{TASK_NAMES[task]} AUROC",
                logx=True,
            )
            caption = f"{TASK_NAMES[task].capitalize()} AUROC against λ (Fig. 14)."
            blocks.append(figure(study, path, caption, caption))
    return blocks


def run_dimension(study: Study) -> ItemReport:
    """The sweep of D for one object and one texture: AUROC and intrinsic dimension."""
    data: dict[str, Any] = {}
    notes: list[str] = []
    for category in study.one_of_each_kind():
        data[category.name] = {}
        for length in DIMENSIONS:
            result = study.result(category, embedding_dim=length)
            notes += [f"{category.name}, D = {length}: {why}" for why in dict.fromkeys(result.missing.values())]
            entry: dict[str, float | None] = {t: result.metrics[t] for t in TASKS if t in result.metrics}
            found = intrinsic_dimensions(study, category, study.config.replace(embedding_dim=length))
            entry["intrinsic_dimension"] = found[str(max(scale.patch_size for scale in study.config.scales))]
            data[category.name][str(length)] = entry
    means = {
        name: _means([[row[str(length)].get(name) for length in DIMENSIONS] for row in data.values()])
        for name in (*TASKS, "intrinsic_dimension")
    }
    columns = ["", *(f"D = {length}" for length in DIMENSIONS)]
    rows = [[name.replace("_", " "), *(show(value) for value in values)] for name, values in means.items()]
    section = Section(
        title="The embedding dimension",
        lead="Fig. 15. Mean of one object and one texture of AUROC and of the intrinsic dimension (TwoNN) of the "
        "embeddings of 64-px patches, for embeddings of D numbers.",
        verdicts=_verdicts_on_dimension(study, means),
        blocks=[
            TableBlock("Mean over the categories that have the value for every D", columns, rows, notes),
            *_dimension_figures(study, means),
        ],
        anchor="dimension",
    )
    return ItemReport("dimension", {"categories": data, "dimensions": list(DIMENSIONS), "means": means}, section)


def _verdicts_on_dimension(study: Study, means: dict[str, list[float | None]]) -> list[Verdict]:
    """Whether each value is higher at the largest D; a difference of AUROC within that of seeds decides nothing."""
    verdicts = []
    for name, values in means.items():
        known = [value for value in values if value is not None]
        if len(known) == len(DIMENSIONS):
            words = f"{name.replace('_', ' ')}: {show(known[0])} at D = {DIMENSIONS[0]}, {show(known[-1])} at D = "
            spread = study.seed_spread(study.one_of_each_kind(), name) * math.sqrt(2) if name in TASKS else 0.0
            rise = known[-1] - known[0]
            holds = None if spread and abs(rise) <= spread else rise > 0
            verdicts.append(Verdict(holds, f"A larger D raises {words}{DIMENSIONS[-1]}."))
    return verdicts


def _dimension_figures(study: Study, means: dict[str, list[float | None]]) -> list[FigureBlock]:
    if not have_matplotlib():
        return []

    def chart(names: tuple[str, ...], ylabel: str, file: str, diagonal: bool) -> FigureBlock:
        series = {}
        for name in names:
            known = [(d, value) for d, value in zip(DIMENSIONS, means[name], strict=True) if value is not None]
            if known:
                series[TASK_NAMES.get(name, name.replace("_", " "))] = ([d for d, _ in known], [v for _, v in known])
        path = line_chart(
            study.out / "dimension" / file,
            series,
            xlabel="embedding dimension D",
            ylabel=ylabel,
            logx=True,
            diagonal=diagonal,
            ticks=DIMENSIONS,
        )
        return figure(study, path, f"{ylabel} against D (Fig. 15).", f"{ylabel} against D")

    return [
        chart(TASKS, "AUROC", "auroc.svg", False),
        chart(("intrinsic_dimension",), "intrinsic dimension", "intrinsic-dimension.svg", True),
    ]


def _means(rows: list[list[float | None]]) -> list[float | None]:
    """The mean of each column over the complete rows; all None if no row is complete."""
    full = [[value for value in row if value is not None] for row in rows if None not in row]
    return [statistics.fmean(column) for column in zip(*full, strict=True)] if full else [None] * len(DIMENSIONS)
