"""Station: pose, light and camera of one shot, as a fixed camera over a conveyor gives them."""

from __future__ import annotations

from dataclasses import dataclass
from math import radians

import numpy as np

from patchsvdd.demo.camera import Camera
from patchsvdd.demo.drawing import Pose
from patchsvdd.demo.surface import Light

SHIFT = 1.2 / 160  # image widths
TURN = radians(1.0)


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
                elevation=radians(47 + rng.uniform(-1.5, 1.5)),
                key=rng.uniform(0.68, 0.74),
                ambient=rng.uniform(0.28, 0.32),
                falloff=rng.uniform(0.11, 0.18),
                softness=rng.uniform(0.004, 0.007),
            ),
            camera=Camera(
                exposure=rng.uniform(0.96, 1.04),
                white_balance=(rng.uniform(0.99, 1.01), 1.0, rng.uniform(0.985, 1.015)),
                vignette=rng.uniform(0.12, 0.20),
                lens_blur=rng.uniform(0.42, 0.55),
                noise=rng.uniform(1.2, 1.8),
                noise_seed=int(rng.integers(2**32)),
            ),
        )
