"""Station: pose, light and camera of one shot, as a fixed camera over a conveyor gives them."""

from __future__ import annotations

from dataclasses import dataclass
from math import radians

import numpy as np

from patchsvdd.demo.camera import Camera
from patchsvdd.demo.drawing import Pose
from patchsvdd.demo.surface import Light

SHIFT = 0.5 / 160  # image widths
TURN = radians(0.3)


@dataclass(frozen=True)
class Station:
    """All that chance decides about one shot, apart from the part itself."""

    pose: Pose
    light: Light
    camera: Camera

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Station:
        """A shot as the line happens to take it."""
        return cls(
            pose=Pose(
                shift=(rng.uniform(-SHIFT, SHIFT), rng.uniform(-SHIFT, SHIFT)),
                angle=rng.uniform(-TURN, TURN),
            ),
            light=Light(
                azimuth=radians(-128 + rng.uniform(-1.5, 1.5)),
                elevation=radians(47 + rng.uniform(-1, 1)),
                key=rng.uniform(0.69, 0.73),
                ambient=rng.uniform(0.29, 0.31),
                falloff=rng.uniform(0.13, 0.17),
                softness=rng.uniform(0.004, 0.007),
            ),
            camera=Camera(
                exposure=rng.uniform(0.98, 1.02),
                white_balance=(rng.uniform(0.995, 1.005), 1.0, rng.uniform(0.995, 1.005)),
                vignette=rng.uniform(0.15, 0.18),
                lens_blur=rng.uniform(0.72, 0.78),
                noise=rng.uniform(1.0, 1.4),
                noise_seed=int(rng.integers(2**32)),
            ),
        )
