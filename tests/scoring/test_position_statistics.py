from __future__ import annotations

import pytest
import torch

from patchsvdd.scoring.position_statistics import PositionStatistics, smooth


@pytest.fixture
def maps() -> torch.Tensor:
    """Maps of good images: restless on the left, calm on the right."""
    generator = torch.Generator().manual_seed(0)
    unit = torch.rand((40, 48, 64), generator=generator)
    unit[:, :, :32] *= 10
    return unit


def test_good_maps_look_alike_everywhere(maps: torch.Tensor) -> None:
    applied = PositionStatistics.fit(maps, sigma=2, floor=0.01).apply(maps)
    assert applied[:, :, :24].mean() == pytest.approx(float(applied[:, :, 40:].mean()), rel=0.05)
    statistics = PositionStatistics.fit(maps, sigma=0, floor=0.01)
    z = (maps - statistics.mean) / statistics.deviation
    torch.testing.assert_close(z.mean(0), torch.zeros(48, 64), rtol=0, atol=1e-4)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(48, 64), rtol=0, atol=1e-3)


def test_a_faint_defect_counts_where_good_images_agree(maps: torch.Tensor) -> None:
    statistics = PositionStatistics.fit(maps, sigma=2, floor=0.01)
    odd = maps[:1].clone()
    odd[0, 20, 50] = 6  # less than the left shows all the time
    assert odd.argmax() != 20 * 64 + 50
    assert statistics.apply(odd).argmax() == 20 * 64 + 50


def test_no_place_explodes(maps: torch.Tensor) -> None:
    maps[:, 10:14, 40:44] = 0
    statistics = PositionStatistics.fit(maps, sigma=0, floor=0.5)
    assert float(statistics.deviation.min()) == pytest.approx(0.5 * float(statistics.deviation.median()), rel=0.05)
    nothing = PositionStatistics.fit(torch.zeros(3, 8, 8))
    assert nothing.apply(torch.zeros(1, 8, 8)).isfinite().all()


def test_maps_of_another_size_are_left_alone(maps: torch.Tensor) -> None:
    other = torch.rand(2, 30, 20)
    statistics = PositionStatistics.fit(maps)
    assert torch.equal(statistics.apply(other), other)


def test_one_map_is_not_enough() -> None:
    with pytest.raises(ValueError, match="at least 2 maps, got 1"):
        PositionStatistics.fit(torch.ones(1, 8, 8))


@pytest.mark.parametrize("sigma", [0.0, 0.7, 4.0])
def test_smoothing_keeps_a_constant(sigma: float) -> None:
    torch.testing.assert_close(smooth(torch.full((9, 30), 3.0), sigma), torch.full((9, 30), 3.0))
