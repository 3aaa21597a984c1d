"""Station: pose, light and camera of one shot by a fixed camera over a conveyor."""

from __future__ import annotations

from dataclasses import dataclass
from math import radians

import numpy as np

from patchsvdd.apps.demo.camera import Camera
from patchsvdd.apps.demo.drawing import Pose
from patchsvdd.apps.demo.surface import Light

SHIFT = 0.5 / 160  # image widths
TURN = radians(0.3)


@dataclass(frozen=True)
class Station:
    """The random parameters of one shot, except those of the part."""

    pose: Pose
    light: Light
    camera: Camera

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Station:
        """A shot with random parameters."""
        return cls(
            pose=Pose(
                shift=(rng.uniform(-SHIFT, SHIFT), rng.uniform(-SHIFT, SHIFT)),
                angle=rng.uniform(-TURN, TURN),
            ),
            light=Light(
                azimuth=radians(-128 + rng.uniform(-1.5, 1.5)),
                elevation=radians(47 + rng.uniform(-1, 1)),
                key=rng.uniform(0.70, 0.72),
                ambient=rng.uniform(0.295, 0.305),
                falloff=rng.uniform(0.14, 0.16),
                softness=rng.uniform(0.004, 0.007),
            ),
            camera=Camera(
                exposure=rng.uniform(0.985, 1.015),
                white_balance=(rng.uniform(0.995, 1.005), 1.0, rng.uniform(0.995, 1.005)),
                vignette=rng.uniform(0.16, 0.17),
                lens_blur=rng.uniform(0.72, 0.78),
                noise=rng.uniform(0.8, 1.1),
                noise_seed=int(rng.integers(2**32)),
            ),
        )
