"""Trainings that have lost their way are found out."""

from __future__ import annotations

from typing import Any

import pytest

from patchsvdd import preset
from patchsvdd.core.errors import TrainingCollapsed
from patchsvdd.training.collapse import check_collapse, check_stuck, is_constant

CONFIG = preset("encoder", lambda_=0.3)


def row(step: int, accuracy: float = 0.5, spread: float = 0.4) -> dict[str, Any]:
    """A look at a training with two scales; the larger one tells fewer positions."""
    small = {"spread": spread, "position_loss": 1.0, "position_accuracy": accuracy}
    return {"step": step, "scales": {"32": small, "64": small | {"position_accuracy": accuracy / 2}}}


def test_embeddings_that_shrink_to_a_point() -> None:
    check_collapse([row(1), row(2, spread=0.01)], CONFIG)
    with pytest.raises(TrainingCollapsed, match=r"collapsed by step 2: .*`lambda_=0\.03`"):
        check_collapse([row(1), row(2, spread=0.001)], CONFIG)


def test_chance_position_accuracy_is_noticed_at_half_of_the_schedule() -> None:
    looks = [row(1000, 0.13), row(2000, 0.14)]
    check_stuck(looks[:1], CONFIG, 4000)
    with pytest.raises(TrainingCollapsed, match=r"still at chance after 2000 steps \(14% correct"):
        check_stuck(looks, CONFIG, 4000)
    check_stuck([*looks, row(3000, 0.14)], CONFIG, 4000)  # once is enough


@pytest.mark.parametrize(
    ("accuracy", "steps", "changes"),
    [(0.25, 4000, {}), (0.13, 900, {}), (0.13, 4000, {"lambda_": 0.0}), (0.13, 4000, {"objective": "svdd-prime"})],
    ids=["learning", "too short to tell", "nothing pulls", "no positions asked for"],
)
def test_what_is_no_reason_to_start_anew(accuracy: float, steps: int, changes: dict[str, Any]) -> None:
    check_stuck([row(steps // 4, accuracy), row(steps // 2, accuracy)], CONFIG.replace(**changes), steps)


class TestConstantEmbeddings:
    def test_every_scale_must_be_constant(self) -> None:
        config = CONFIG.replace(objective="svdd-prime")
        look = row(500, spread=0.0)
        assert is_constant([row(1), look], config)
        look["scales"]["32"] = look["scales"]["32"] | {"spread": 1e-9}
        assert not is_constant([row(1), look], config)

    def test_a_training_with_positions_goes_on_or_collapses(self) -> None:
        assert not is_constant([row(1, spread=0.0)], CONFIG)

    def test_nothing_is_known_before_the_first_look(self) -> None:
        assert not is_constant([], CONFIG.replace(objective="svdd"))
