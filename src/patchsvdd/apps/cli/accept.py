"""``patchsvdd accept``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    EngineOption,
    JsonOption,
    PrecisionOption,
    SearchOption,
    StageBars,
    escape,
    one_line_errors,
    print_facts,
    print_json,
    print_table,
    progress_bar,
    say,
    warn_of_skipped,
    with_options,
)
from patchsvdd.core.errors import ConfigError, ImageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchsvdd.evaluation.acceptance.agreement import Agreement
    from patchsvdd.evaluation.acceptance.limits import CheckedLimit, Limit
    from patchsvdd.evaluation.acceptance.result import Acceptance

EXAMPLE = (
    "Example: patchsvdd accept models/part --good photos/good-new --defects photos/defects "
    "--require 'miss<=5%' --require 'false-reject<=2%'"
)
NOT_MET = 3
"""Exit code when a requirement is not met."""


@one_line_errors
def accept(
    model: Annotated[
        Path | None, typer.Argument(metavar="[MODEL]", help="Model folder; not needed with --plan.")
    ] = None,
    good: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Good images that the model has not seen: false-reject rate.")
    ] = None,
    defects: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Images of defects: miss rate. Subfolders name kinds of defects.")
    ] = None,
    repeats: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Repeated shots, a subfolder per part: same verdicts, spread of the score."),
    ] = None,
    inspectors: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Verdicts of inspectors about --good and --defects: columns image, inspector, verdict (good or "
            "defect) and, for several, trial.",
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help=f"Exit with {NOT_MET} unless this is met: miss<=5%, miss:KIND<=5%, false-reject<=2%, "
            "repeatability>=90% or kappa>=0.75. A rate must meet it with --confidence.",
        ),
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT", help="A limit on a rate, as for --require: report whether it is shown, and what would."
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only print how many parts show each --claim; no model, no images.")
    ] = False,
    confidence: Annotated[float, typer.Option(help="Confidence of bounds and intervals.")] = 0.95,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the reports and the record to this folder.")
    ] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "float32",
    search: SearchOption = "auto",
    json: JsonOption = False,
) -> None:
    """Test a model at its threshold with images that it has not seen: what they prove, with exact bounds.

    Writes an HTML report, a PDF and a record with all results to MODEL/acceptance. Images that the model was trained or
    calibrated with are left out. To list how many parts show a claim: patchsvdd accept --plan --claim 'miss<=5%'
    """
    from patchsvdd.evaluation.acceptance.limits import COUNTED, parse_limits

    required, claimed = list(require or ()), list(claim or ())
    try:
        limits, claims = parse_limits(required), parse_limits(claimed, COUNTED)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--require or --claim") from None
    if plan:
        _check_plan(model, good, defects, repeats, inspectors, out)
        _plan([*claims, *(limit for limit in limits if limit.measure in COUNTED)], confidence, json)
        return
    if model is None:
        raise typer.BadParameter("give a model folder, or --plan", param_hint="MODEL")
    _check_folders(limits, claims, good, defects, repeats, inspectors)
    from patchsvdd.evaluation.acceptance.acceptance import accept as accept_model

    skipped: list[ImageError] = []
    options: dict[str, Any] = {"device": device, "engine": engine, "precision": precision, "search": search}
    with progress_bar() as progress:
        bars = StageBars(progress)
        result = accept_model(
            model,
            good=good,
            defects=defects,
            repeats=repeats,
            inspectors=inspectors,
            require=required,
            claim=claimed,
            confidence=confidence,
            out=out,
            on_error=skipped.append,
            on_stage=bars,
            **options,
        )
    warn_of_skipped(skipped)
    _warn_of_known(result)
    if json:
        files = result.files.to_json() if result.files is not None else None
        print_json({**result.to_json(), "model_folder": str(model), "files": files})
    else:
        _print(result)
    if result.is_accepted is False:
        raise typer.Exit(NOT_MET)


def _check_plan(model: Path | None, *others: Path | None) -> None:
    if model is not None or any(other is not None for other in others):
        raise typer.BadParameter("only --claim, --confidence and --json go with it", param_hint="--plan")


def _check_folders(
    limits: Sequence[Limit],
    claims: Sequence[Limit],
    good: Path | None,
    defects: Path | None,
    repeats: Path | None,
    inspectors: Path | None,
) -> None:
    """Raise BadParameter if a folder is missing that something else needs."""
    from patchsvdd.evaluation.acceptance.limits import check_given

    given = {"good": good, "defects": defects, "repeats": repeats}
    try:
        check_given(
            [*limits, *claims], [name for name, path in given.items() if path is not None], inspectors is not None
        )
    except ConfigError as error:
        raise typer.BadParameter(with_options(str(error)), param_hint="options") from None


def _plan(claims: Sequence[Limit], confidence: float, json: bool) -> None:
    from patchsvdd.evaluation.acceptance.limits import plans
    from patchsvdd.evaluation.acceptance.sampling_plan import BETTER

    if not claims:
        raise typer.BadParameter("needs a --claim, such as 'miss<=5%'", param_hint="--plan")
    found = plans(claims, confidence)
    if json:
        rows = [{"claim": claim, "plan": [row.to_json() for row in plan]} for claim, plan in found.items()]
        print_json({"confidence": confidence, "claims": rows})
        return
    for claim in claims:
        print_table(
            (
                "failures allowed",
                "parts needed",
                f"chance of passing at a rate of {100 * claim.failure_rate / BETTER:.4g}%",
            ),
            [(f"{row.allowed}", f"{row.parts:,}", f"{row.chance:.0%}") for row in found[claim.words]],
        )
        first = found[claim.words][0].parts
        say(f"{first:,} parts without a failure show {escape(claim.words)} with {confidence:.4g} confidence")


def _warn_of_known(result: Acceptance) -> None:
    """Report images that prove nothing, by reason."""
    reasons: dict[str, int] = {}
    for one in result.left_out:
        if not one.is_broken:
            reason = "it is a copy of another image" if one.reason.startswith("it is a copy of") else one.reason
            reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in reasons.items():
        images = "1 image was" if count == 1 else f"{count} images were"
        say(f"[yellow]note:[/] {images} left out: {escape(reason)}; such images prove nothing about new ones")
    if result.too_few_shots:
        names = escape(", ".join(result.too_few_shots))
        say(f"[yellow]note:[/] parts left out, with fewer than two usable shots: {names}")


def _print(result: Acceptance) -> None:
    from patchsvdd.evaluation.acceptance.sections import sections_of, shown
    from patchsvdd.report.article import TableBlock

    rates = next((one.blocks for one in sections_of(result) if one.title == "Error rates"), ())
    for block in rates:
        if isinstance(block, TableBlock):
            print_table(block.columns, block.rows)
    if result.inspectors is not None:
        _print_inspectors(result.inspectors)
    facts = {}
    if result.repeats is not None:
        nearest, within = result.repeats.nearest, result.repeats.within
        between = f", {result.repeats.between:.4g} between parts" if result.repeats.between is not None else ""
        facts["score spread"] = f"standard deviation {within:.4g} within a part{between}"
        if nearest is not None and nearest.margin is not None:
            facts["nearest part"] = f"{nearest.name}: {nearest.margin:.1f} standard deviations from the threshold"
    if result.files is not None:
        facts["report"] = str(result.files.page)
        pdf = result.files.pdf
        facts["PDF"] = str(pdf) if pdf is not None else "not written; it needs: pip install 'patchsvdd[serve]'"
        facts["record"] = str(result.files.record)
    titles = {True: "Accepted", False: "Not accepted", None: "Tested"}
    print_facts(f"{titles[result.is_accepted]}: {result.model}, {result.identity}", facts)
    for words in shown(result):
        typer.echo(words)
    _print_limits(result.requirements, ("met", "not met", "not met"))
    _print_limits(result.claims, ("shown", "not shown", "refuted"))


def _print_inspectors(study: Agreement) -> None:
    """Each inspector and the model, compared with the reference."""
    same = {one.name: one for one in study.with_model}
    rows = []
    for one in study.against:
        model = same.get(one.name)
        counted = [f"{part.hits}/{part.trials}" for part in (one.right, one.misses, one.false_alarms)]
        rows.append((one.name, *counted, _kappa(one.kappa), _kappa(model.kappa) if model else "", one.word))
    print_table(("inspector", "right", "misses", "false alarms", "kappa", "with model", "result"), rows)


def _kappa(kappa: float | None) -> str:
    return f"{kappa:.3f}" if kappa is not None else "–"


def _print_limits(limits: Sequence[CheckedLimit], words: tuple[str, str, str]) -> None:
    """Print whether each limit is met, is not, or is refuted."""
    for one in limits:
        word = words[0] if one.is_met else words[2] if one.is_refuted else words[1]
        typer.echo(f"{word}: {one.words}")
