"""``patchsvdd info``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from patchsvdd.apps.cli.console import (
    JsonOption,
    one_line_errors,
    print_facts,
    print_json,
    print_table,
    say,
    stdout,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from patchsvdd.detector.unusual_images import UnusualImage
    from patchsvdd.scoring.trade_off_table import TradeOff

LISTED = 8
"""Unusual images listed at most."""
BAR = 16
"""Width of a bar of 100 %, in characters."""
EXAMPLE = "Example: patchsvdd info models/part"


@one_line_errors
def info(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    unusual: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Write pictures of the good images least like the others to this file."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a model's settings, provenance and last acceptance test, and verify the checksums of its files.

    The good images least like the others are listed: perhaps one of them shows a defect. If synthetic defects were
    drawn, a table shows what other thresholds would cost: false alarms and missed defects.
    """
    from patchsvdd.apps.cli.aims import aim_facts
    from patchsvdd.detector.model_folder import read_model
    from patchsvdd.detector.unusual_images import unusual_images
    from patchsvdd.evaluation.acceptance.record import last_acceptance
    from patchsvdd.scoring.calibration import Calibration
    from patchsvdd.scoring.trade_off_table import trade_off

    about = read_model(model).about
    calibration = Calibration.from_json(about["calibration"]) if about["calibration"] is not None else None
    shown = trade_off(calibration) if calibration is not None else None
    accepted = last_acceptance(model, about["identity"])
    if unusual is not None:
        from patchsvdd.baselines.load import load_detector
        from patchsvdd.report.unusual_sheet import save_unusual_sheet

        drawn = save_unusual_sheet(load_detector(model, "cpu"), unusual)
        say(f"{drawn} pictures in {escape(str(unusual))}")
    if json:
        more = {
            "trade_off": shown.to_json() if shown is not None else None,
            "acceptance": accepted.to_json() if accepted is not None else None,
        }
        print_json({"model": str(model), **about, **more})
        return
    facts = _facts(about)
    if accepted is not None:
        facts["acceptance"] = accepted.words
    if calibration is None:
        print_facts(f"Model {model}", facts)
        return
    print_facts(f"Model {model}", {**facts, **aim_facts(calibration, others=False)})
    _print_unusual(unusual_images(about["provenance"]))
    if shown is not None:
        _print_trade_off(shown)
    if calibration.caveat:
        say(f"[yellow]note:[/] {calibration.caveat}")


def _print_unusual(images: Sequence[UnusualImage]) -> None:
    """The good images least like the others."""
    if images:
        rows = [(one.name, one.times, "stands out" if one.stands_out else "") for one in images[:LISTED]]
        print_table(("good images least like the others", "times the usual", ""), rows)
    if len(images) > LISTED:
        say(f"and {len(images) - LISTED} more; --unusual FILE.png draws all of them")


def _print_trade_off(shown: TradeOff) -> None:
    """What thresholds around the current one cost, and which defects the current one misses."""
    plain = stdout().options.ascii_only
    rows = []
    for row in shown.rows:
        name = f"{row.threshold:.4g}{' (current)' if row.is_current else ''}"
        rows.append((name, *(bar(share, plain) for share in (row.false_alarms, row.missed))))
    print_table(("threshold", "false alarms", "missed synthetic defects"), rows)
    sizes, classes = shown.by_size()
    print_table(("missed, by contrast", *sizes), [(name, *cells) for name, cells in classes])


def bar(share: float, plain: bool) -> str:
    """A share and a bar of its length; of ASCII characters if ``plain``."""
    eighths = round(8 * BAR * share)
    whole = ("#" if plain else "█") * (eighths // 8)
    part = "" if plain or eighths % 8 == 0 else " ▏▎▍▌▋▊▉"[eighths % 8]
    return f"{whole + part:<{BAR}} {share:>4.0%}"


def _facts(about: dict[str, Any]) -> dict[str, str]:
    config, provenance, calibration = about["config"], about["provenance"], about["calibration"]
    data, training, versions = provenance["data"], provenance["training"], provenance["versions"]
    height, width = data["image_size"]
    scales = ", ".join(f"{scale['patch_size']} px every {scale['stride']}" for scale in config["scales"])
    if config.get("larger_patches") == "untrained" and len(config["scales"]) > 1:
        scales += " (untrained)"
    facts = {
        "identity": about["identity"],
        "created": provenance["created"],
        "preset": config["preset"],
        **_network(config, scales),
        "images": f"{data['images']} good images, {width}x{height} ({config['resize']})",
        **sizing_fact(data),
        "data": data["fingerprint"][:16],
        "skipped": f"{len(data['skipped'])} files",
        "training": f"{training['steps']:,} steps in {training['seconds']:.0f} s on {provenance['device']}, "
        f"{lambda_in_words(config['lambda_'], training)}, seed {provenance['seed']}",
    }
    if "reference_checkpoint" in provenance:
        facts["training"] = f"none; weights from {provenance['reference_checkpoint']}"
    if config.get("roi"):
        from patchsvdd.core.roi import Roi, roi_in_words

        facts["region"] = str(roi_in_words(Roi.from_json(config["roi"])))
    facts |= critic_facts(provenance)
    facts |= taught_fact(about.get("defects", ()))
    if calibration is not None:
        rate, aim = calibration["false_alarm_rate"], calibration.get("aim", "few-alarms")
        purpose = f"for a false-alarm rate of {rate:.1%}" if aim == "few-alarms" else f"with the aim {aim}"
        facts["threshold"] = f"{calibration['threshold']:.4g} {purpose} ({len(calibration['scores'])} scores)"
    facts |= min_area_fact(config.get("min_area", 0))
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    facts["files"] = ", ".join(f"{entry['name']} ({entry['bytes'] / 1e6:.1f} MB)" for entry in about["files"].values())
    return facts


def _network(config: dict[str, Any], scales: str) -> dict[str, str]:
    """The encoder, or the network of a baseline."""
    baseline = config.get("baseline")
    if baseline is None:
        return {"encoder": f"{config['encoder']}, {scales}; embeddings of {config['embedding_dim']}"}
    sees = "crops of 128 px" if baseline["view"] == "crops" else "whole images"
    return {"network": f"{baseline['kind']}, codes of {baseline['latent']}, sees {sees}"}


def lambda_in_words(configured: float, training: dict[str, Any]) -> str:
    """The λ used in training, and the configured one if that collapsed."""
    used = training.get("lambda", configured)  # models of early versions do not record it
    if used is None:
        return f"no λ used ({configured:g} collapsed)" if training.get("collapses") else "no λ used"
    return f"λ {used:g}" if used == configured else f"λ {used:g} ({configured:g} collapsed)"


def sizing_fact(data: dict[str, Any]) -> dict[str, str]:
    """How the image size was chosen, if it was not given."""
    sizing = data.get("sizing")
    return {"image size": sizing["sentence"]} if sizing else {}


def min_area_fact(min_area: int) -> dict[str, str]:
    """The smallest region that counts, if the model ignores small ones."""
    return {"ignored": f"regions smaller than {min_area:,} pixels of the original image"} if min_area else {}


def taught_fact(defects: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The kinds of confirmed defects that the model was taught."""
    kinds = Counter(one["kind"] for one in defects)
    return {"taught": ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))} if kinds else {}


def critic_facts(provenance: dict[str, Any]) -> dict[str, str]:
    """A model's critic and its fusion with the memory."""
    facts = {}
    critic, fusion = (provenance.get(name) for name in ("critic", "fusion"))
    if critic is not None:
        facts["critic"] = f"{critic['steps']:,} steps in {critic['seconds']:.0f} s"
    if fusion is not None:
        facts["map"] = f"memory {fusion['share']:.0%}, critic {1 - fusion['share']:.0%}"
    return facts
