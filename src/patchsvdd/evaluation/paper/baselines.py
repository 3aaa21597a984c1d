"""Table 3: nearest-neighbour search on random features and on raw patches."""

from __future__ import annotations

import statistics

from patchsvdd.evaluation.experiment import ExperimentResult
from patchsvdd.evaluation.paper.study import TASK_NAMES, TASKS, ItemReport, Study, figure, reasons_of, show
from patchsvdd.evaluation.published import published
from patchsvdd.report.article import FigureBlock, Section, TableBlock, Verdict
from patchsvdd.report.figures import bar_chart, have_matplotlib

ENCODERS = {"random": "random_encoder", "raw": "raw_patch"}
"""Kind of encoder → name in the table of published values."""
FAR = 0.05
"""Differences from the paper above this are reported (docs/paper.md explains them)."""
COMPARED = "64"
"""The paper does not state the patch size of Table 3; its values agree best with those of 64-px patches only."""
MAPS = {"32": "32 px", "64": "64 px", "product": "product"}


def run_baselines(study: Study) -> ItemReport:
    """Results of a random encoder and of raw patches on every category, for each scale and the product."""
    data = {}
    reasons = {}
    for category in study.categories:
        results = {kind: study.result(category, encoder=kind) for kind in ENCODERS}
        data[category.name] = {kind: _entry(category.name, kind, result) for kind, result in results.items()}
        if why := reasons_of(list(results.values())):
            reasons[category.name] = why
    notes = [f"{name}: {reason}" for name, why in reasons.items() for reason in dict.fromkeys(why.values())]
    section = Section(
        title="Without training",
        lead="Table 3. The distance to the nearest normal patch, for features of a random encoder and for raw pixels.",
        verdicts=[_together(data), *_agreement(data), *_distances(data)],
        blocks=[*(_table(data, kind, notes) for kind in ENCODERS), *_figures(study, data)],
        anchor="baselines",
    )
    return ItemReport("baselines", {"categories": data, "missing": reasons}, section)


def _entry(category: str, kind: str, result: ExperimentResult) -> dict[str, dict[str, float]]:
    """Detection and segmentation metrics of each map, and the paper's values."""
    rows = {str(size): values for size, values in result.scales.items()} | {"product": result.metrics}
    entry = {name: {task: values[task] for task in TASKS if task in values} for name, values in rows.items()}
    return {**entry, "published": published(ENCODERS[kind], category)}


def _table(data: dict[str, dict[str, dict[str, dict[str, float]]]], kind: str, notes: list[str]) -> TableBlock:
    caption = {"random": "Random encoder", "raw": "Raw patches"}[kind]
    columns = ["category", *(f"{words}, {task}" for task in ("det.", "seg.") for words in [*MAPS.values(), "paper"])]
    rows = [
        [name, *(show(entry[kind][one].get(task)) for task in TASKS for one in [*MAPS, "published"])]
        for name, entry in data.items()
    ]
    return TableBlock(caption, columns, rows, notes)


def _together(data: dict[str, dict[str, dict[str, dict[str, float]]]]) -> Verdict:
    """Verdict on the paper's claim: categories that random features separate, raw patches separate as well."""
    pairs = [
        (entry["random"]["product"][task], entry["raw"]["product"][task])
        for entry in data.values()
        for task in TASKS
        if task in entry["random"]["product"] and task in entry["raw"]["product"]
    ]
    if len(pairs) < 3:
        return Verdict(None, "Too few categories to say whether random features and raw patches go together.")
    agreeing, compared = 0, 0
    for index, (random, raw) in enumerate(pairs):
        for other_random, other_raw in pairs[:index]:
            compared += 1
            agreeing += (random - other_random) * (raw - other_raw) > 0
    return Verdict(
        agreeing > compared / 2,
        f"What random features separate well, raw patches separate well too: {agreeing} of {compared} pairs of "
        f"results are in the same order.",
    )


def _agreement(data: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[Verdict]:
    """Mean absolute difference of each map from the paper's values."""
    means = {}
    for one, words in MAPS.items():
        gaps = [
            abs(values[one][task] - values["published"][task])
            for entry in data.values()
            for values in entry.values()
            for task in TASKS
            if task in values.get(one, {}) and task in values["published"]
        ]
        if gaps:
            means[words] = statistics.fmean(gaps)
    if not means:
        return []
    words = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
    return [Verdict.remark(f"Mean distance from Table 3: {words}; the paper does not say which patches it used.")]


def _distances(data: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[Verdict]:
    """Every value that differs from the paper's by more than FAR."""
    verdicts = []
    for name, entry in data.items():
        for kind, values in entry.items():
            for task in TASKS:
                ours, theirs = values.get(COMPARED, {}).get(task), values["published"].get(task)
                if ours is not None and theirs is not None and abs(ours - theirs) > FAR:
                    words = f"{name}, {kind}, {TASK_NAMES[task]}: {ours:.3f} at 64 px, {theirs:.2f} in the paper."
                    verdicts.append(Verdict.remark(words))
    return verdicts


def _figures(study: Study, data: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[FigureBlock]:
    blocks = []
    for task in TASKS if have_matplotlib() else ():
        series = {kind: [entry[kind].get(COMPARED, {}).get(task) for entry in data.values()] for kind in ENCODERS}
        theirs = {kind: [entry[kind]["published"].get(task) for entry in data.values()] for kind in ENCODERS}
        path = bar_chart(
            study.out / "baselines" / f"{TASK_NAMES[task]}.svg",
            list(data),
            series,
            ylabel=f"{TASK_NAMES[task]} AUROC",
            floor=0.4,
            reference=theirs,
        )
        caption = f"{TASK_NAMES[task].capitalize()} AUROC without training, 64-px patches (Table 3)."
        blocks.append(figure(study, path, caption, caption))
    return blocks
