"""The report of an acceptance test as sections of an article, for HTML and PDF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patchsvdd.core.version import __version__
from patchsvdd.evaluation.acceptance.agreement import AgainstReference, Agreement, kappa_word
from patchsvdd.evaluation.acceptance.limits import CheckedLimit
from patchsvdd.evaluation.acceptance.proportions import Proportion, percent_at_least, percent_at_most
from patchsvdd.evaluation.acceptance.repeatability import Repeatability
from patchsvdd.evaluation.acceptance.result import Acceptance
from patchsvdd.evaluation.acceptance.sampling_plan import BETTER
from patchsvdd.evaluation.acceptance.tested_images import WrongImage
from patchsvdd.report.article import Picture, PicturesBlock, Section, TableBlock, Verdict

LISTED = 200
"""Images left out that are listed at most."""
SHOWN_PARTS = 100
"""Parts in the table of repeated shots, the least repeatable first."""
RATES = ("", "images", "errors", "rate", "upper bound", "interval")
METHODS = (
    "Bounds and intervals are exact (Clopper-Pearson). They hold for images drawn independently from those that the "
    "model will inspect; several pictures of one part are not independent.",
    "A limit on a rate is met if the one-sided bound meets it. A kappa is compared as it is.",
    "Fix the number of images before the test. If images are added until a claim is shown, the confidence is lower "
    "than stated.",
    "Images that the model was trained, calibrated or taught with are left out, and so are copies of another image.",
)


def intro_of(result: Acceptance) -> str:
    """The result in one or two sentences."""
    verdict = {True: "All requirements are met.", False: "Requirements are not met.", None: ""}[result.is_accepted]
    return " ".join([verdict, *shown(result)]).strip()


def facts_of(result: Acceptance) -> dict[str, str]:
    """What was tested."""
    settings = result.settings
    folders = {role: str(settings[role]) for role in ("good", "defects", "repeats") if role in settings}
    inspectors = settings["inspectors"]
    return {
        "Model": f"{result.model}, {result.identity}",
        "Threshold": f"{result.threshold:.4g}",
        "Tested": f"{result.at:%Y-%m-%d %H:%M} UTC",
        "Confidence": f"{result.confidence:.4g}",
        **{f"Images: {role}": folder for role, folder in folders.items()},
        **({"Inspectors": str(inspectors["file"])} if inspectors is not None else {}),
        "Device": f"{settings['device']}, engine {settings['engine']}",
        "Version": f"patchsvdd {__version__}",
    }


def shown(result: Acceptance) -> list[str]:
    """What the images show, in sentences: "59 of 59 defects were found …"."""
    said = []
    confidence = f"With {100 * result.confidence:g}% confidence"
    if result.misses is not None:
        found = result.misses.inverse
        said.append(
            f"{found.hits} of {found.trials} defects were found. {confidence}, at least "
            f"{percent_at_least(found.lower)} of defects like these are found."
        )
    if result.false_rejects is not None:
        one = result.false_rejects
        said.append(
            f"{one.hits} of {one.trials} good images were rejected. {confidence}, at most "
            f"{percent_at_most(one.upper)} of good images like these are."
        )
    if result.repeats is not None:
        same = result.repeats.same
        said.append(
            f"{same.hits} of {same.trials} parts got the same verdict in all shots. {confidence}, at least "
            f"{percent_at_least(same.lower)} of such parts do."
        )
    return said


def sections_of(result: Acceptance) -> list[Section]:
    """All sections, in order."""
    return [section for section in _sections(result) if section.verdicts or section.blocks]


def _sections(result: Acceptance) -> Iterator[Section]:
    yield _limits("Requirements", result.requirements, ("met", "not met", "not met"))
    yield _error_rates(result)
    yield _claims(result)
    if result.repeats is not None:
        yield _repeats(result.repeats, result)
    if result.inspectors is not None:
        yield _inspectors(result.inspectors, result)
    yield _pictures("Missed defects", result.missed, result.misses)
    yield _pictures("Rejected good images", result.rejected, result.false_rejects)
    yield _left_out(result)
    yield Section("Method", verdicts=[Verdict.remark(words) for words in METHODS])


def _limits(title: str, limits: Sequence[CheckedLimit], words: tuple[str, str, str]) -> Section:
    """``words`` for a limit that is met, that is not, and that is refuted."""
    verdicts = [
        Verdict(one.is_met, one.words, label=words[0] if one.is_met else words[2] if one.is_refuted else words[1])
        for one in limits
    ]
    return Section(title, verdicts=verdicts)


def _error_rates(result: Acceptance) -> Section:
    rows: list[tuple[str, Proportion]] = []
    if result.misses is not None:
        rows.append(("missed defects", result.misses))
        if len(result.misses_by_kind) > 1 or any(kind != "unnamed" for kind in result.misses_by_kind):
            rows += [(f"missed: {kind}", one) for kind, one in result.misses_by_kind.items()]
    if result.false_rejects is not None:
        rows.append(("rejected good images", result.false_rejects))
    if not rows:
        return Section("Error rates")
    percent = f"{100 * result.confidence:g}%"
    notes = [
        f"upper bound: with {percent} confidence, the true rate is at most this; interval: two-sided, {percent}",
    ]
    if result.kappa is not None:
        notes.append(f"Cohen's kappa of the model with the folders: {result.kappa:.3f} ({kappa_word(result.kappa)})")
    table = TableBlock("Errors at the model's threshold", RATES, [_rate(*row) for row in rows], notes)
    return Section("Error rates", blocks=[table])


def _rate(name: str, one: Proportion) -> list[str]:
    low, high = one.interval
    rate = f"{one.share:.1%}" if one.share is not None else "–"
    interval = f"{percent_at_least(low)} to {percent_at_most(high)}"
    return [name, f"{one.trials:,}", f"{one.hits:,}", rate, percent_at_most(one.upper), interval]


def _claims(result: Acceptance) -> Section:
    section = _limits("What the images prove", result.claims, ("shown", "not shown", "refuted"))
    planned = {one.limit.words: one for one in (*result.claims, *result.requirements) if one.plan}
    tables = [
        TableBlock(
            f"Images or parts that show {words}",
            ("failures allowed", "needed", "chance of passing"),
            [[f"{row.allowed}", f"{row.parts:,}", f"{row.chance:.0%}"] for row in one.plan],
            [f"chance of passing: if the true rate of failures is {100 * one.limit.failure_rate / BETTER:.4g}%"],
        )
        for words, one in planned.items()
    ]
    lead = "How many images, chosen before the test, show a limit when some of them may fail." if tables else ""
    return Section(section.title, lead, section.verdicts, tables)


def _repeats(repeats: Repeatability, result: Acceptance) -> Section:
    same, nearest = repeats.same, repeats.nearest
    spread = [["standard deviation within a part", f"{repeats.within:.4g}"]]
    if repeats.between is not None:
        spread.append(["standard deviation between parts", f"{repeats.between:.4g}"])
    if repeats.part_share is not None:
        spread.append(["share of the variance between parts", percent_at_least(repeats.part_share)])
    if nearest is not None and nearest.margin is not None:
        spread.append(["smallest distance to the threshold", f"{nearest.margin:.1f} standard deviations"])
        spread.append(["of the part", nearest.name])
    low, high = same.interval
    spread.append(["parts with the same verdict", f"{same.hits} of {same.trials}"])
    spread.append(["interval of their share", f"{percent_at_least(low)} to {percent_at_most(high)}"])
    notes = [f"left out, with fewer than two shots: {', '.join(result.too_few_shots)}"] if result.too_few_shots else []
    parts = sorted(repeats.parts, key=lambda part: (part.is_same, part.margin if part.margin is not None else 0.0))
    rows = [
        [
            part.name,
            f"{len(part.scores)}",
            f"{part.rejected}",
            f"{part.mean:.4g}",
            f"{part.deviation:.2g}",
            f"{part.margin:.1f}" if part.margin is not None else "–",
        ]
        for part in parts[:SHOWN_PARTS]
    ]
    more = [f"and {len(parts) - SHOWN_PARTS} more parts; the record has all"] if len(parts) > SHOWN_PARTS else []
    head = ("part", "shots", "rejected", "mean score", "deviation", "distance")
    distance = "distance: of the mean from the threshold, in standard deviations within a part"
    blocks = [
        TableBlock("Spread of the scores", ("", "value"), spread, notes),
        TableBlock("Parts, those with different verdicts first", head, rows, [distance, *more]),
    ]
    return Section("Repeated shots", blocks=blocks)


def _inspectors(study: Agreement, result: Acceptance) -> Section:
    lead = f"{study.images} images were judged by all inspectors; {study.defects} of them show defects."
    if result.ignored_judgements:
        lead += f" {result.ignored_judgements} verdicts about images that are left out do not count."
    blocks = [_against(study.against)]
    rows = [[one.name, f"{one.same} of {one.verdicts}", _kappa(one.kappa)] for one in study.with_model]
    blocks.append(TableBlock("The model and each inspector", ("inspector", "same verdict", "kappa"), rows))
    if study.within:
        same = [[one.name, f"{one.trials}", _counted(one.same), _kappa(one.kappa)] for one in study.within]
        blocks.append(TableBlock("Within inspectors", ("inspector", "trials", "same in all trials", "kappa"), same))
    if study.between is not None:
        row = [f"{study.between.inspectors} inspectors", _counted(study.between.same), _kappa(study.between.kappa)]
        blocks.append(TableBlock("Between inspectors", ("", "same verdict from all", "Fleiss' kappa"), [row]))
    return Section("Inspectors", lead, blocks=blocks)


def _against(rows: Sequence[AgainstReference]) -> TableBlock:
    cells = [
        [one.name, one.word, _counted(one.right), _share(one.misses), _share(one.false_alarms), _kappa(one.kappa)]
        for one in rows
    ]
    return TableBlock(
        "Against the reference",
        ("inspector", "result", "effectiveness", "miss rate", "false-alarm rate", "kappa"),
        cells,
        [
            "effectiveness: images judged as the reference in all trials; the rates count verdicts",
            "acceptable (AIAG): effectiveness at least 90%, miss rate at most 2%, false-alarm rate at most 5%; "
            "marginal: 80%, 5% and 10%",
            "kappa: above 0.75 good, below 0.40 poor",
        ],
    )


def _counted(one: Proportion) -> str:
    low, high = one.interval
    return f"{one.hits} of {one.trials} ({percent_at_least(low)} to {percent_at_most(high)})"


def _share(one: Proportion) -> str:
    return f"{one.share:.1%} ({one.hits} of {one.trials})" if one.share is not None else "–"


def _kappa(kappa: float | None) -> str:
    return f"{kappa:.3f} ({kappa_word(kappa)})" if kappa is not None else kappa_word(None)


def _pictures(title: str, wrong: Sequence[WrongImage], counted: Proportion | None) -> Section:
    if not wrong or counted is None:
        return Section(title)
    pictures = [Picture(one.picture, one.name, f"score {one.ratio:.2f} times the threshold") for one in wrong]
    some = f"The {len(wrong)} furthest from the threshold of {counted.hits}" if len(wrong) < counted.hits else "All"
    return Section(title, blocks=[PicturesBlock(f"{some}, with heat maps", pictures)])


def _left_out(result: Acceptance) -> Section:
    if not result.left_out:
        return Section("Images left out")
    rows = [[one.name, one.reason] for one in result.left_out[:LISTED]]
    more = [f"and {len(result.left_out) - LISTED} more; the record has all"] if len(result.left_out) > LISTED else []
    lead = f"{len(result.left_out)} images do not count."
    return Section(
        "Images left out",
        lead,
        blocks=[TableBlock("Images and reasons", ("image", "reason"), rows, more, is_text=True)],
    )
