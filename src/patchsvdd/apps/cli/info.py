"""``patchsvdd info``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from patchsvdd.apps.cli.console import JsonOption, one_line_errors, print_facts, print_json, say

EXAMPLE = "Example: patchsvdd info models/part"


@one_line_errors
def info(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    json: JsonOption = False,
) -> None:
    """Show a model's settings and provenance, and verify the checksums of its files."""
    from patchsvdd.detector.model_folder import read_model

    about = read_model(model).about
    if json:
        print_json({"model": str(model), **about})
        return
    print_facts(f"Model {model}", _facts(about))
    calibration = about["calibration"]
    if calibration is not None:
        from patchsvdd.scoring.calibration import Calibration

        caveat = Calibration.from_json(calibration).caveat
        if caveat:
            say(f"[yellow]note:[/] {caveat}")


def _facts(about: dict[str, Any]) -> dict[str, str]:
    config, provenance, calibration = about["config"], about["provenance"], about["calibration"]
    data, training, versions = provenance["data"], provenance["training"], provenance["versions"]
    height, width = data["image_size"]
    scales = ", ".join(f"{scale['patch_size']} px every {scale['stride']}" for scale in config["scales"])
    facts = {
        "identity": about["identity"],
        "created": provenance["created"],
        "preset": config["preset"],
        "encoder": f"{config['encoder']}, {scales}; embeddings of {config['embedding_dim']}",
        "images": f"{data['images']} good images, {width}x{height} ({config['resize']})",
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
    if calibration is not None:
        facts["threshold"] = (
            f"{calibration['threshold']:.4g} for a false-alarm rate of {calibration['false_alarm_rate']:.1%} "
            f"({len(calibration['scores'])} scores)"
        )
    facts |= min_area_fact(config.get("min_area", 0))
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    facts["files"] = ", ".join(f"{entry['name']} ({entry['bytes'] / 1e6:.1f} MB)" for entry in about["files"].values())
    return facts


def lambda_in_words(configured: float, training: dict[str, Any]) -> str:
    """The λ used in training, and the configured one if that collapsed."""
    used = training.get("lambda", configured)  # models of early versions do not record it
    if used is None:
        return f"no λ used ({configured:g} collapsed)" if training.get("collapses") else "no λ used"
    return f"λ {used:g}" if used == configured else f"λ {used:g} ({configured:g} collapsed)"


def min_area_fact(min_area: int) -> dict[str, str]:
    """The smallest region that counts, if the model ignores small ones."""
    return {"ignored": f"regions smaller than {min_area:,} pixels of the original image"} if min_area else {}


def critic_facts(provenance: dict[str, Any]) -> dict[str, str]:
    """A model's critic and its fusion with the memory."""
    facts = {}
    critic, fusion = (provenance.get(name) for name in ("critic", "fusion"))
    if critic is not None:
        facts["critic"] = f"{critic['steps']:,} steps in {critic['seconds']:.0f} s"
    if fusion is not None:
        facts["map"] = f"memory {fusion['share']:.0%}, critic {1 - fusion['share']:.0%}"
    return facts
