"""One verdict from the views of a part, by the calibrations of the models that are served at present."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from patchsvdd.apps.line.line_file import LineSettings
from patchsvdd.apps.line.parts import PartView
from patchsvdd.apps.line.verdicts import Judgement
from patchsvdd.apps.serve.model_registry import ModelRegistry
from patchsvdd.core.errors import ConfigError, ModelError, PatchSVDDError
from patchsvdd.detector.parts import read_part
from patchsvdd.scoring.part_calibration import PartCalibration, bonferroni_parts


class LineRules:
    """Judges the parts of a line.

    With one view, the verdict is that of its model. With several, the calibration of whole parts decides if the file
    names one and it was made with these versions of the models; otherwise the false-alarm rate is divided among the
    views. If a model guarantees no rate, each view keeps its own threshold, and ``caveat`` says so.
    """

    def __init__(self, settings: LineSettings, models: ModelRegistry, on_note: Callable[[str], None]) -> None:
        """Read the calibration that the settings name; raise ConfigError if it is unusable."""
        self._settings, self._models, self._note = settings, models, on_note
        self._given = _read(settings)
        self._known: dict[tuple[str, ...], PartCalibration | None] = {}
        self.caveat: str | None = None
        """Why no false-alarm rate is guaranteed for whole parts; None if one is, or none was needed yet."""

    def __call__(self, product: str, views: Sequence[PartView], missing: Sequence[str]) -> Judgement:
        """Judge a part of a product. One with a missing view is never good."""
        required = self._settings.required(product)
        calibration = None if len(required) == 1 else self._calibration(product, views)
        if calibration is None:
            score = max((one.relative for one in views), default=None)
            is_above = any(one.verdict == "anomalous" for one in views)
        else:
            judged = calibration.judge({one.view: one.score for one in views})
            score, is_above = (
                judged.score,
                judged.verdict == "anomalous" and any(ratio > 1 for ratio in judged.relative.values()),
            )
        if is_above:
            return Judgement("anomalous", score)
        if missing or len(views) < len(required):
            words = "the view" if len(missing) == 1 else "the views"
            reason = f"{words} {', '.join(missing)} did not arrive in time" if missing else None
            return Judgement(self._settings.parts.incomplete, score, reason)
        return Judgement("good", score)

    def _calibration(self, product: str, views: Sequence[PartView]) -> PartCalibration | None:
        """The calibration for the versions of the models that inspected these views, or would have."""
        inspected = {one.view: one.identity for one in views}
        folders = self._settings.products[product]
        served = {view: self._models.get(folders[view].resolve().name) for view in self._settings.required(product)}
        identities = {
            view: inspected.get(view) or (model.identity if model is not None else "") for view, model in served.items()
        }
        key = (product, *identities.values())
        if key in self._known:
            return self._known[key]
        found = self._given if self._given is not None and self._given.identities == identities else None
        if found is None:
            if self._given is not None:
                self._note(
                    f"the calibration {self._settings.parts.calibration} is for other versions of the models: "
                    f"calibrate the parts again; until then the false-alarm rate is divided among the views"
                )
            calibrations = {
                view: model.detector.calibration
                for view, model in served.items()
                if model is not None and model.identity == identities[view] and model.detector.calibration is not None
            }
            if len(calibrations) < len(identities):
                return None  # a model was replaced while it inspected; the next part finds the new one
            rate = self._settings.parts.false_alarm_rate
            try:
                found = bonferroni_parts(calibrations, rate, identities)
            except PatchSVDDError as error:
                self.caveat = f"no false-alarm rate is guaranteed for whole parts: {error}"
                self._note(self.caveat)
        if found is not None:
            self.caveat = found.caveat
        self._known[key] = found
        return found


def _read(settings: LineSettings) -> PartCalibration | None:
    path = settings.parts.calibration
    if path is None:
        return None
    try:
        found = read_part(path).calibration
    except ModelError as error:
        raise ConfigError(f"`parts.calibration`: {error}") from None
    if not any(set(found.names) == set(settings.required(product)) for product in settings.products):
        raise ConfigError(
            f"`parts.calibration`: '{path}' is for the views {', '.join(found.names)}, and this line has "
            f"{', '.join(settings.views)}"
        )
    return found
