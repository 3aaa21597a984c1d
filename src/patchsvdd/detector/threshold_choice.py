"""Another threshold from the scores that a model stores, without images."""

from __future__ import annotations

import os
from pathlib import Path

from patchsvdd.core.aims import Aim
from patchsvdd.core.config import current_settings
from patchsvdd.core.errors import ModelError
from patchsvdd.core.files import locked
from patchsvdd.detector.model_folder import change_model, read_index
from patchsvdd.detector.recalibration import Recalibration, aim_for
from patchsvdd.scoring.calibration import Calibration


def choose_threshold(
    folder: str | os.PathLike[str],
    aim: Aim | None = None,
    false_alarm_rate: float | None = None,
    *,
    threshold: float | None = None,
    dry_run: bool = False,
) -> Recalibration:
    """Set the threshold of the model in ``folder`` for another aim or rate, from the scores that it stores.

    A rate without an aim means "few-alarms"; a ``threshold`` is set as it is. With ``dry_run`` the model is not
    changed. Raise ModelError if the model has no scores, and ConfigError if the aim requires synthetic defects that it
    does not have.
    """
    model = Path(folder)
    about = read_index(model)
    if about["calibration"] is None:
        raise ModelError(f"'{model}' has no calibration; give a folder of good images to calibrate it")
    known = Calibration.from_json(about["calibration"])
    if threshold is not None:
        calibration = known.with_threshold(threshold)
    else:
        default = current_settings(about["config"])["aim"]
        calibration = known.with_aim(aim_for(aim, false_alarm_rate, known, default), false_alarm_rate)
    if not dry_run:
        with locked(model, "calibrating"):
            change_model(model, {"calibration": calibration.to_json()}, "calibrate", of=about["identity"])
    area = about["config"].get("min_area", 0)
    return Recalibration(calibration, known.threshold, 0, len(known.scores), (), (), None, area)
