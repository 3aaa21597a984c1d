from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from patchsvdd.critic.defect_fills import FILLS, Fill, Site
from patchsvdd.critic.synthetic_defects import SELECTION_KINDS
from patchsvdd.critic.training import LESSONS
from patchsvdd.critic.validation import (
    BRIGHTNESS,
    LOW_RATE,
    Light,
    ValidationResult,
    ValidationSet,
    hold_out,
    photograph,
    shift,
)
from patchsvdd.evaluation.metrics import auroc
from support.parts import draw_part


@pytest.fixture(scope="module")
def held_out() -> torch.Tensor:
    pictures = np.stack([draw_part(seed, (96, 96)) for seed in range(5)])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()


@pytest.fixture(scope="module")
def drawn(held_out: torch.Tensor) -> ValidationSet:
    return ValidationSet.draw(held_out, seed=3, at_least=24)


class TestHoldOut:
    @pytest.mark.parametrize(("count", "expected"), [(209, 42), (60, 12), (30, 8), (10, 5), (3, 1), (2, 1)])
    def test_a_fifth_but_never_most(self, count: int, expected: int) -> None:
        fit, out = hold_out(count)
        assert len(out) == expected
        assert sorted((*fit, *out)) == list(range(count))

    def test_the_seed_decides(self) -> None:
        assert hold_out(60) == hold_out(60)
        assert hold_out(60, seed=1) != hold_out(60)

    def test_one_image_is_not_enough(self) -> None:
        with pytest.raises(ValueError, match="at least 2; got 1"):
            hold_out(1)


class TestDraw:
    def test_no_kind_that_trains_is_drawn(self, held_out: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn = set()

        def noted(kind: str, fill: Callable[[Site], Fill]) -> Callable[[Site], Fill]:
            def note(site: Site) -> Fill:
                drawn.add(kind)
                return fill(site)

            return note

        for kind, fill in FILLS.items():
            monkeypatch.setitem(FILLS, kind, noted(kind, fill))
        ValidationSet.draw(held_out, seed=3, at_least=48)
        assert drawn == set(SELECTION_KINDS)
        assert not drawn & set(LESSONS)

    def test_half_are_good(self, drawn: ValidationSet) -> None:
        assert drawn.images.shape == (30, 3, 96, 96)  # 5 images, 3 times good and 3 times defective
        assert drawn.images.dtype == torch.uint8
        assert not drawn.labels[:15].any()
        assert int(drawn.labels.sum()) >= 13

    def test_the_seed_decides(self, held_out: torch.Tensor, drawn: ValidationSet) -> None:
        again, other = (ValidationSet.draw(held_out, seed, at_least=24) for seed in (3, 4))
        assert torch.equal(again.images, drawn.images)
        assert torch.equal(again.masks, drawn.masks)
        assert not torch.equal(other.masks, drawn.masks)

    @pytest.mark.parametrize("step", [0, 4])
    def test_light_varies_as_good_images_differ(self, held_out: torch.Tensor, step: int) -> None:
        levels = step * torch.arange(len(held_out))[:, None, None, None]
        good = (held_out[:1] // 2 + levels).byte()  # one picture, ever lighter
        spread = 2 * float(good.float().mean((1, 2, 3)).std(correction=0))
        taken = photograph(good.float(), torch.Generator().manual_seed(0), Light.of(good))
        change = (taken.float().mean((1, 2, 3)) - good.float().mean((1, 2, 3))).abs()
        assert float(change.max()) <= spread + 0.5  # rounding
        assert float(change.max()) >= spread / 4

    def test_light_never_changes_by_more_than_a_day_could(self) -> None:
        good = torch.stack([torch.full((3, 20, 20), value, dtype=torch.uint8) for value in (0, 250)])
        assert float(Light.of(good).brightness) == pytest.approx(BRIGHTNESS)

    def test_images_and_masks_move_together(self) -> None:
        images = torch.zeros(6, 3, 20, 20)
        images[:, :, 8:11, 9:12] = 1
        moved, masks = shift(images, images[:, 0] > 0, torch.Generator().manual_seed(0))
        assert torch.equal(moved[:, 0] > 0, masks)
        assert not torch.equal(moved, images)

    def test_a_photograph_keeps_the_shape_of_things(self, held_out: torch.Tensor) -> None:
        taken = photograph(held_out.float(), torch.Generator().manual_seed(0), Light.of(held_out)).float()
        for before, after in zip(held_out.float(), taken, strict=True):
            pair = torch.stack((before.flatten(), after.flatten()))
            assert float(torch.corrcoef(pair)[0, 1]) > 0.98


class TestScore:
    def test_the_truth_is_perfect_and_its_opposite_worthless(self, drawn: ValidationSet) -> None:
        best = drawn.score(drawn.masks.float(), drawn.labels.float())
        assert best == ValidationResult(1.0, 1.0, 1.0, 1.0, 1.0)
        assert best.criterion == 1
        worst = drawn.score(-drawn.masks.float(), -drawn.labels.float())
        assert worst.criterion == 0

    def test_the_same_numbers_as_the_metrics(self, drawn: ValidationSet) -> None:
        maps = torch.rand(drawn.masks.shape, generator=torch.Generator().manual_seed(0))
        maps = (maps + 0.3 * drawn.masks).round(decimals=2)  # ties
        found = drawn.score(maps, maps.amax((1, 2)))
        assert found.segmentation_auroc == pytest.approx(auroc(drawn.masks.numpy(), maps.numpy()), abs=1e-12)
        assert found.low_rate_auroc < found.segmentation_auroc
        assert 0 < LOW_RATE < 1
        assert found.to_json()["criterion"] == found.criterion

    def test_a_map_that_is_no_number_is_refused(self, drawn: ValidationSet) -> None:
        with pytest.raises(ValueError, match="NaN"):
            drawn.score(torch.full(drawn.masks.shape, torch.nan), drawn.labels.float())
