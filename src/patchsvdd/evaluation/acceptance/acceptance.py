"""The acceptance test of a stored model: what images that it has not seen prove about it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from patchsvdd.baselines.load import load_detector
from patchsvdd.core.errors import ConfigError, DatasetError, ImageError
from patchsvdd.core.files import require_writable
from patchsvdd.core.progress import OnStage
from patchsvdd.detector.base import Detector
from patchsvdd.detector.model_folder import read_index
from patchsvdd.detector.stored_memory import Search
from patchsvdd.encoder.embedder import Engine
from patchsvdd.encoder.engines import Precision
from patchsvdd.evaluation.acceptance.agreement import Agreement, agreement, cohen_kappa
from patchsvdd.evaluation.acceptance.inspectors_file import file_digest, match_judgements, read_judgements
from patchsvdd.evaluation.acceptance.limits import (
    COUNTED,
    Measured,
    check_confidence,
    check_given,
    check_kinds,
    parse_limits,
)
from patchsvdd.evaluation.acceptance.proportions import Proportion
from patchsvdd.evaluation.acceptance.record import FOLDER
from patchsvdd.evaluation.acceptance.repeatability import Repeatability, repeatability
from patchsvdd.evaluation.acceptance.reports import save_acceptance
from patchsvdd.evaluation.acceptance.result import Acceptance
from patchsvdd.evaluation.acceptance.tested_images import (
    FoundImages,
    ImageTest,
    InspectedImage,
    Role,
    find_role,
    known_digests,
    names_in_files,
)
from patchsvdd.scoring.conformal import CONFIDENCE


def accept(
    model: str | os.PathLike[str],
    *,
    good: str | os.PathLike[str] | None = None,
    defects: str | os.PathLike[str] | None = None,
    repeats: str | os.PathLike[str] | None = None,
    inspectors: str | os.PathLike[str] | None = None,
    require: Sequence[str] = (),
    claim: Sequence[str] = (),
    confidence: float = CONFIDENCE,
    save: bool = True,
    out: str | os.PathLike[str] | None = None,
    device: str = "auto",
    engine: Engine = "auto",
    precision: Precision = "float32",
    search: Search = "auto",
    on_error: Callable[[ImageError], None] | None = None,
    on_stage: OnStage | None = None,
) -> Acceptance:
    """Test a stored model at its own threshold with images that it has not seen, and store the record beside it.

    ``good`` and ``defects`` are folders of images; subfolders of ``defects`` name kinds. ``repeats`` has a subfolder of
    shots per part. ``inspectors`` is a CSV with the columns image, inspector, verdict (good or defect) and, if there
    are several, trial. ``require`` and ``claim`` are limits such as "miss<=5%", "false-reject<=2%",
    "repeatability>=90%" or "kappa>=0.75". A rate meets its limit only if its exact one-sided bound does, at
    ``confidence``. Images that the model was trained, calibrated or taught with are left out, and so are copies.

    With ``save``, the record, an HTML report and a PDF are written to the folder ``acceptance`` of the model, and also
    to ``out``. An unusable image raises ImageError, or is passed to ``on_error`` and left out.
    """
    folder = Path(model)
    index = read_index(folder)
    folders: dict[Role, str | os.PathLike[str] | None] = {"good": good, "defects": defects, "repeats": repeats}
    given = {role: Path(path) for role, path in folders.items() if path is not None}
    requirements, claims = parse_limits(require), parse_limits(claim, COUNTED)
    check_confidence(confidence)
    check_given([*requirements, *claims], list(given), inspectors is not None)
    judged = read_judgements(Path(inspectors)) if inspectors is not None else None
    found = {role: find_role(role, path) for role, path in given.items()}
    if "defects" in found:
        check_kinds([*requirements, *claims], {found["defects"].kind_of(path) for path in found["defects"].files})
    if save:
        for place in (folder / FOLDER, *([Path(out)] if out is not None else [])):
            require_writable(place)
    detector = load_detector(folder, device, engine=engine, precision=precision, search=search)
    if not math.isfinite(detector.threshold):
        raise ConfigError(f"'{model}' has no threshold to test; set one: patchsvdd calibrate {model} GOOD")
    calibration = detector.calibration.digests if detector.calibration is not None else ()
    taught = [str(one["digest"]) for one in index.get("defects") or ()]
    test = ImageTest(detector, known_digests(detector.provenance, calibration, taught), on_error, on_stage)
    for one in found.values():
        test.add(one)
    scores, too_few = _shots(test.tested, given.get("repeats"))
    shots = repeatability(scores, detector.threshold, confidence) if scores else None
    study, ignored = None, 0
    if judged is not None and inspectors is not None:
        labelled = [one for one in test.tested if one.role != "repeats"]
        names = names_in_files([found["good"], found["defects"]])
        matched = match_judgements(judged, names, [one.name for one in labelled], Path(inspectors))
        chosen = {one.name: one for one in labelled}
        model_says = np.array([chosen[name].is_anomalous for name in matched.images])
        reference = np.array([chosen[name].role == "defects" for name in matched.images])
        study, ignored = agreement(matched.verdicts, model_says, reference, confidence), matched.ignored
    measured = _measured(test.tested, shots, study, confidence)
    result = Acceptance(
        model=folder.resolve().name,
        identity=detector.identity or str(index["identity"]),
        threshold=detector.threshold,
        min_area=detector.min_area,
        at=datetime.now(UTC),
        confidence=confidence,
        settings=_settings(found, inspectors, detector, {"engine": engine, "precision": precision, "search": search}),
        misses=measured.misses,
        misses_by_kind=dict(measured.misses_by_kind),
        false_rejects=measured.false_rejects,
        kappa=measured.kappas[0] if measured.kappas else None,
        repeats=shots,
        inspectors=study,
        ignored_judgements=ignored,
        images=tuple(test.tested),
        left_out=tuple(test.left_out),
        too_few_shots=too_few,
        requirements=tuple(measured.check(limit) for limit in requirements),
        claims=tuple(measured.check(limit) for limit in claims),
        missed=tuple(test.missed),
        rejected=tuple(test.rejected),
    )
    if not save:
        return result
    return replace(result, files=save_acceptance(result, folder, Path(out) if out is not None else None))


def _shots(tested: Sequence[InspectedImage], folder: Path | None) -> tuple[dict[str, list[float]], tuple[str, ...]]:
    """Part → the scores of its shots; and the parts with too few of them."""
    parts: dict[str, list[float]] = {}
    for one in tested:
        if one.role == "repeats":
            parts.setdefault(one.kind, []).append(one.score)
    several = {name: scores for name, scores in parts.items() if len(scores) > 1}
    if parts and not several:
        raise DatasetError(f"no part in '{folder}' has two different shots; give several shots of each part")
    return several, tuple(name for name in parts if name not in several)


def _measured(
    tested: Sequence[InspectedImage], shots: Repeatability | None, study: Agreement | None, confidence: float
) -> Measured:
    good = [one.is_anomalous for one in tested if one.role == "good"]
    defects = [one for one in tested if one.role == "defects"]

    def missed(kind: str | None = None) -> Proportion:
        these = [one for one in defects if kind in (None, one.kind)]
        return Proportion(sum(not one.is_anomalous for one in these), len(these), confidence)

    kappas: list[float | None] = []
    if good and defects:
        said = np.array([*good, *(one.is_anomalous for one in defects)])
        kappas.append(cohen_kappa(said, np.arange(len(said)) >= len(good)))
    if study is not None:
        kappas += [one.kappa for one in study.with_model]
    return Measured(
        misses=missed() if defects else None,
        misses_by_kind={kind: missed(kind) for kind in sorted({one.kind for one in defects})},
        false_rejects=Proportion(sum(good), len(good), confidence) if good else None,
        different=shots.same.inverse if shots is not None else None,
        kappas=kappas,
        confidence=confidence,
    )


def _settings(
    found: dict[Role, FoundImages],
    inspectors: str | os.PathLike[str] | None,
    detector: Detector,
    options: dict[str, str],
) -> dict[str, Any]:
    """What was tested, and how, for the record."""
    judged = None
    if inspectors is not None:
        judged = {"file": str(inspectors), "sha256": file_digest(Path(inspectors))}
    folders = {str(role): str(one.folder) for role, one in found.items()}
    return {**folders, "inspectors": judged, "device": detector.processor, **options}
