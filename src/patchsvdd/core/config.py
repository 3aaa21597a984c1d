"""All settings of a detector in one frozen dataclass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from patchsvdd.core.aims import Aim
from patchsvdd.core.baseline_settings import BaselineSettings, check_baseline
from patchsvdd.core.critic_settings import CriticSettings, check_critic
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.image_size import check_image_size, size_settings
from patchsvdd.core.memory_size import MemorySize, parse_memory_size
from patchsvdd.core.placement import Fit, Placement, place
from patchsvdd.core.scales import Scale, check_scales

if TYPE_CHECKING:  # importing settings must not import numpy
    from patchsvdd.core.roi import PixelMask, Roi, RoiCrop

Resize = Literal["nearest", "area", "bicubic"]
Centering = Literal["pixel", "channel", "image", "exposure"]
EncoderKind = Literal["hierarchical", "flat", "random", "raw"]
Objective = Literal["patch-svdd", "svdd-prime", "svdd"]
Sampling = Literal["patches", "dense"]
Schedule = Literal["constant", "cosine"]
Stop = Literal["end", "validation"]
LargerPatches = Literal["trained", "untrained"]

LARGE_PIXELS = 1_000_000
"""Larger images are processed in strips, which bounds memory use."""
REMOVED = {"selection"}
"""Settings that older versions stored; every stored model has them off."""
SYNTHETIC_DEFECTS = 128
"""Synthetic defects that estimate misses, unless set otherwise."""
FEWEST_IMAGES = 2
"""Good images that training requires at least, for an aim that weighs nothing."""


def is_large(height: int, width: int) -> bool:
    """Return whether an image of this size is processed in strips."""
    return height * width > LARGE_PIXELS


@dataclass(frozen=True)
class Config:
    """The settings of one detector. ``preset(name, **changes)`` creates one."""

    preset: str
    """Name of the preset these settings started from."""

    # Images
    image_size: tuple[int, int] | None
    """(height, width) of the canvas for every image; None keeps the original size."""
    resize: Resize
    """Resize filter. The paper uses nearest neighbour."""
    centering: Centering
    """Subtract the mean training image ("pixel"), one mean per channel ("channel"), or each image's own ("image");
    "exposure" also divides by each image's contrast."""
    standardize: bool
    """Divide by the standard deviation of each channel; otherwise by 255."""

    # Encoder
    encoder: EncoderKind
    """hierarchical (the paper's), flat (its ablation), random (untrained), raw (the pixels themselves)."""
    scales: tuple[Scale, ...]
    """Patch sizes and strides, smallest first; a hierarchical encoder doubles from 32."""
    embedding_dim: int
    """Length D of an embedding."""

    # Training
    objective: Objective
    """patch-svdd (Eq. 6), svdd-prime (only Eq. 4) or svdd (Eq. 2, one centre)."""
    sampling: Sampling
    """patches: cut every pair out of the images (the paper). dense: read pairs off whole feature maps."""
    steps: int | None
    """Optimiser steps; None if ``epochs`` is set."""
    epochs: int | None
    """Passes of 100 samples per training image, as the authors count them."""
    batch_size: int
    """patches: pairs per stream and step. dense: images per step."""
    crop_size: int
    """dense: side of the square crop of each image, in pixels."""
    pairs_per_crop: int
    """dense: pairs per crop, scale and loss."""
    learning_rate: float
    """Adam's learning rate (at the start, for a falling schedule)."""
    schedule: Schedule
    """constant, or cosine down to zero at the last step."""
    lambda_: float
    """Weight λ of L_SVDD' against L_SSL (Eq. 6)."""
    relative_svdd: bool
    """Measure L_SVDD' relative to the spread of the embeddings, so that shrinking all of them does not lower it."""
    rgb_shift: float
    """Standard deviation of the colour shift of position pairs, in normalised units."""
    noise: float
    """Standard deviation of the pixel noise of position pairs, in normalised units."""
    photometric: float
    """Strength of brightness and contrast changes between the two sides of a pair; 0 is the paper."""
    frozen_position_output: bool
    """Keep the position classifier's last weight random, as the authors' code does."""
    seed: int
    """Fixes weights, sampling and noise."""

    # Verdict
    false_alarm_rate: float
    """Share of good images that may be called anomalous."""
    memory: str = "100%"
    """Normal patches to keep in the memory: a share, or a number per scale."""

    # Added in later versions; the defaults reproduce earlier versions
    svdd_before_tanh: bool = False
    """Measure L_SVDD' before the final tanh, so that saturating the tanh does not lower a relative L_SVDD'."""
    warmup: int = 0
    """Steps over which the learning rate rises linearly from 0."""
    clip: float = 0.0
    """Largest gradient norm; larger gradients are scaled down. 0 disables clipping."""
    ema: float = 0.0
    """Decay of the moving average of the weights, which training returns; 0 for no average."""
    position_normalization: bool = False
    """Normalise each pixel of the anomaly map by the values of good images there; for parts in a fixed position."""
    lamp: float = 0.0
    """Strength of illumination gradients that differ between the two sides of a pair, in normalised units."""
    local_scaling: bool = False
    """Divide distances by the local scale: how much good patches vary around the nearest one; for parts that move."""
    stop: Stop = "end"
    """Which encoder to keep. "end": the trained one. "validation": the untrained one if it finds more synthetic
    defects in held-out images, or if every training collapses."""
    larger_patches: LargerPatches = "trained"
    """Encoder of all patches but the smallest: the trained one (the paper's), or an untrained one."""
    retries: int = 0
    """How often a collapsed training restarts, each time with a tenth of λ."""
    critic: CriticSettings | None = None
    """Settings of the critic; None for no critic."""
    baseline: BaselineSettings | None = None
    """Settings of a baseline, which replaces encoder, memory and critic; None for Patch SVDD."""
    fusion_share: float | None = None
    """Weight of the memory in the fused map, 0 to 1; None to choose it with synthetic defects."""
    minutes: float | None = None
    """Maximum training time; schedules are shortened to fit. None for no limit."""
    roi: Roi | None = None
    """Region of interest: the model never sees anything else. None for the whole image."""
    inspect_roi: Roi | None = None
    """Smaller region to inspect with a model trained on more; None for all of it."""
    min_area: int = 0
    """Smallest connected region above the threshold that makes an image anomalous, in pixels of the original image;
    0 for any."""
    aim: Aim = "few-alarms"
    """What the threshold is for: "few-alarms" (``false_alarm_rate`` is guaranteed), "balanced" (a small sum of
    false alarms and missed synthetic defects) or "few-misses"."""
    synthetic_defects: int = 0
    """Synthetic defects to draw at least, to estimate what the threshold misses; 0 for no estimate."""
    fit: Fit = "stretch"
    """How an image fills ``image_size``: "stretch" ignores its aspect ratio, "letterbox" keeps it and fills the rest
    with the mirrored image."""
    pixel_scale: float | None = None
    """letterbox: the same factor for all images, except for those that would not fit; None for the largest possible."""
    auto_size: bool = False
    """Choose ``image_size``, ``fit`` and ``pixel_scale`` from the good images (`image_size="auto"`)."""
    smallest_defect: float | None = None
    """Diameter of the smallest defect that must be visible, in pixels of the original image, for ``auto_size``."""

    def __post_init__(self) -> None:
        _check(self)

    def replace(self, **changes: Any) -> Config:
        """Return a copy with some settings changed; ``None`` leaves a setting unchanged.

        A false-alarm rate without an aim means "few-alarms": only that aim guarantees a rate.
        """
        known = {field.name for field in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise ConfigError(f"unknown setting '{name}'; known settings: {', '.join(sorted(known))}")
        changes = {name: value for name, value in changes.items() if value is not None}
        if "steps" in changes and "epochs" in changes:
            raise ConfigError("`steps` and `epochs` both set the length of training; give only one")
        if "steps" in changes:
            changes["epochs"] = None
        elif "epochs" in changes:
            changes["steps"] = None
        if "false_alarm_rate" in changes:
            changes.setdefault("aim", "few-alarms")
        if changes.get("aim", "few-alarms") != "few-alarms" and self.synthetic_defects == 0:
            changes.setdefault("synthetic_defects", SYNTHETIC_DEFECTS)
        if "image_size" in changes:
            changes |= size_settings(changes)
        return dataclasses.replace(self, **changes)

    def total_steps(self, image_count: int) -> int:
        """Return the number of optimiser steps for ``image_count`` training images."""
        if self.encoder in ("random", "raw"):
            return 0
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        # The authors count 100 samples per image and epoch, whole batches only.
        return self.epochs * max(1, 100 * image_count // self.batch_size)

    @property
    def fewest_images(self) -> int:
        """Fewest good images that training accepts: two held-out scores are the least that can be weighed."""
        return FEWEST_IMAGES if self.aim == "few-alarms" else 2 * FEWEST_IMAGES

    def placement(self, original: tuple[int, int]) -> Placement:
        """Return where an image of (height, width) lies on the canvas."""
        if self.image_size is None:
            return Placement(original, original)
        return place(original, self.image_size, self.fit, self.pixel_scale)

    def content_size(self, original: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return (height, width) of an image after resizing; the canvas if its ``original`` size is not known."""
        return self.image_size if original is None else self.placement(original).content

    @property
    def memory_size(self) -> MemorySize:
        """``memory``, parsed."""
        return parse_memory_size(self.memory)

    @property
    def frame(self) -> RoiCrop | None:
        """The crop of the resized image; None for the whole image."""
        if self.roi is None:
            return None
        return self.roi.frame(self.image_size or self.roi.size, max(scale.patch_size for scale in self.scales))

    def area(self, size: tuple[int, int]) -> PixelMask | None:
        """Return the pixels that count in the crop of an image of (height, width); None for all."""
        frame = self.frame
        if self.inspect_roi is None:
            return frame.area if frame is not None else None
        return self.inspect_roi.at(size) if frame is None else frame.with_roi(self.inspect_roi)

    @property
    def learns_positions(self) -> bool:
        """Whether L_SSL is part of the objective; the ablations of Table 2 omit it."""
        return self.objective == "patch-svdd"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary that ``from_json`` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Config:
        """Return the config that ``to_json`` wrote."""
        known = {field.name for field in dataclasses.fields(cls)}
        data = current_settings(data)
        if set(data) != known:
            odd = sorted(set(data) ^ known)
            raise ConfigError(f"the stored settings do not fit this version: {', '.join(odd)}")
        data["scales"] = tuple(Scale(**scale) for scale in data["scales"])
        for name in ("roi", "inspect_roi"):
            if data[name] is not None:
                from patchsvdd.core.roi import Roi

                data[name] = Roi.from_json(data[name])
        if data["critic"] is not None:
            data["critic"] = CriticSettings.from_json(data["critic"])
        if data.get("baseline") is not None:
            data["baseline"] = BaselineSettings.from_json(data["baseline"])
        if data["image_size"] is not None:
            data["image_size"] = tuple(data["image_size"])
        return cls(**data)


def current_settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that an older version stored, with defaults for new ones and without removed ones."""
    return defaults_for_old_models() | {name: value for name, value in stored.items() if name not in REMOVED}


def defaults_for_old_models() -> dict[str, Any]:
    """Return the values of settings that older versions did not store: version 0.1 kept every patch, for example."""
    fields = dataclasses.fields(Config)
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def _check(config: Config) -> None:
    """Raise ConfigError for a setting that cannot work."""

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise ConfigError(message)

    for name, value, choices in (
        ("resize", config.resize, Resize),
        ("fit", config.fit, Fit),
        ("centering", config.centering, Centering),
        ("stop", config.stop, Stop),
        ("larger_patches", config.larger_patches, LargerPatches),
        ("aim", config.aim, Aim),
        ("encoder", config.encoder, EncoderKind),
        ("objective", config.objective, Objective),
        ("sampling", config.sampling, Sampling),
        ("schedule", config.schedule, Schedule),
    ):
        require(
            value in get_args(choices),
            f"`{name}` must be one of {', '.join(get_args(choices))}; got '{value}'",
        )
    check_scales(config.scales, config.encoder, config.larger_patches == "untrained")
    require(
        (config.steps is None) != (config.epochs is None),
        "give the length of training as either `steps` or `epochs`",
    )
    require(config.steps is None or config.steps >= 0, f"`steps` must be at least 0; got {config.steps}")
    require(config.epochs is None or config.epochs >= 1, f"`epochs` must be at least 1; got {config.epochs}")
    require(config.batch_size >= 1, f"`batch_size` must be at least 1; got {config.batch_size}")
    require(config.pairs_per_crop >= 1, f"`pairs_per_crop` must be at least 1; got {config.pairs_per_crop}")
    require(config.embedding_dim >= 1, f"`embedding_dim` must be at least 1; got {config.embedding_dim}")
    largest = max(scale.patch_size for scale in config.scales)
    require(
        config.sampling != "dense" or config.crop_size >= largest,
        f"`crop_size` must be at least the largest patch ({largest} px); got {config.crop_size}",
    )
    require(0 < config.learning_rate < math.inf, f"`learning_rate` must be above 0; got {config.learning_rate}")
    for name, number in (
        ("lambda_", config.lambda_),
        ("rgb_shift", config.rgb_shift),
        ("noise", config.noise),
        ("clip", config.clip),
        ("lamp", config.lamp),
    ):
        require(0 <= number < math.inf, f"`{name}` must be at least 0; got {number}")
    require(config.warmup >= 0, f"`warmup` must be at least 0 steps; got {config.warmup}")
    require(config.retries >= 0, f"`retries` must be at least 0; got {config.retries}")
    require(
        0 <= config.ema < 1,
        f"`ema` must be a fraction from 0 (no average) to below 1, such as 0.999; got {config.ema}",
    )
    require(
        0 <= config.photometric <= 1,
        f"`photometric` must be a strength between 0 (none) and 1; got {config.photometric}",
    )
    require(
        0 < config.false_alarm_rate < 1,
        f"`false_alarm_rate` must be between 0 and 1 (0.01 is one good image in a hundred); "
        f"got {config.false_alarm_rate}",
    )
    parse_memory_size(config.memory)
    area = config.min_area
    require(isinstance(area, int) and area >= 0, f"`min_area` must be a whole number of pixels, 0 or more; got {area}")
    defects = config.synthetic_defects
    require(isinstance(defects, int) and defects >= 0, f"`synthetic_defects` must be 0 or more; got {defects}")
    require(
        config.aim == "few-alarms" or defects > 0,
        f"`aim={config.aim}` requires synthetic defects: set `synthetic_defects` to 64 or more",
    )
    share = config.fusion_share
    require(share is None or 0 <= share <= 1, f"`fusion_share` must be between 0 (critic) and 1 (memory); got {share}")
    check_image_size(
        config.image_size,
        max(scale.patch_size for scale in config.scales),
        fit=config.fit,
        pixel_scale=config.pixel_scale,
        auto_size=config.auto_size,
        smallest_defect=config.smallest_defect,
    )
    minutes = config.minutes
    require(minutes is None or 0 < minutes < math.inf, f"`minutes` must be above 0; got {minutes}")
    if config.critic is not None:
        check_critic(config.critic)
    if config.baseline is not None:
        check_baseline(config.baseline)
    require(0 <= config.seed < 2**63, f"`seed` must be between 0 and 2^63; got {config.seed}")
