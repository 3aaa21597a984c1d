from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.scoring.anomaly_map import image_score
from patchsvdd.scoring.fusion import (
    PIXELS_BEYOND,
    SHARES,
    Fusion,
    TailQuantiles,
    best_share,
    critic_scale,
    memory_scale,
)

numbers = st.floats(-50, 50, width=32)
many = st.lists(numbers, min_size=1, max_size=300)


def rarity(tail: TailQuantiles, *values: float) -> list[float]:
    found: list[float] = tail(torch.tensor(values)).tolist()
    return found


def normal(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


class TestTail:
    @given(good=many, values=st.lists(numbers, min_size=2, max_size=50))
    def test_what_is_larger_is_not_less_rare(self, good: list[float], values: list[float]) -> None:
        found = TailQuantiles.fit(torch.tensor(good))(torch.tensor(sorted(values)))
        assert found.isfinite().all()
        assert float(found.min()) >= 0
        # A float32 knows seven digits of the knots, and of the rarities between them.
        assert (found.diff() >= -1e-3 - 1e-5 * found[1:]).all()

    @given(good=many)
    def test_knots_rise(self, good: list[float]) -> None:
        tail = TailQuantiles.fit(torch.tensor(good))
        assert len(tail.values) == len(tail.rarities) >= 2
        assert list(tail.values) == sorted(set(tail.values))
        assert list(tail.rarities) == sorted(set(tail.rarities))

    @pytest.mark.parametrize("decades", [0.5, 1.0, 2.0, 3.0])
    def test_decades_of_how_many_good_pixels_lie_above(self, decades: float) -> None:
        good = normal(200_000)
        value = float(good.quantile(1 - 10**-decades))
        assert rarity(TailQuantiles.fit(good), value)[0] == pytest.approx(decades, abs=0.05)

    def test_common_values_are_not_rare(self) -> None:
        tail = TailQuantiles.fit(normal(10_000))
        assert rarity(tail, -100.0, -3.0, -2.0) == [0, 0, 0]
        assert rarity(tail, 0.0)[0] == pytest.approx(math.log10(2), abs=0.05)

    def test_a_threshold_keeps_its_false_alarms(self) -> None:
        found = TailQuantiles.fit(normal(100_000))(normal(100_000, seed=1))
        for decades in (1.0, 2.0, 3.0):
            assert float((found > decades).float().mean()) == pytest.approx(10**-decades, rel=0.3)

    def test_beyond_all_good_pixels_it_goes_on_rising(self) -> None:
        good = normal(50_000)
        tail, largest = TailQuantiles.fit(good), float(good.max())
        beyond = rarity(tail, largest, largest + 1, largest + 2, largest + 4)
        steps = [after - before for before, after in pairwise(beyond)]
        assert steps[0] > 0.5
        assert steps[1] == pytest.approx(steps[0], rel=1e-3), "in a straight line"
        assert steps[2] == pytest.approx(2 * steps[0], rel=1e-3)

    def test_the_last_knot_has_pixels_above_it(self) -> None:
        good = normal(50_000)
        tail = TailQuantiles.fit(good)
        assert int((good > tail.values[-1]).sum()) == pytest.approx(PIXELS_BEYOND, abs=1)

    @pytest.mark.parametrize("value", [0.0, -27.6, 16.1, 1e-9])
    @pytest.mark.parametrize("count", [1, 4096])
    def test_pixels_that_are_all_alike(self, value: float, count: int) -> None:
        tail = TailQuantiles.fit(torch.full((count,), value))
        below, same, above = rarity(tail, value - 1, value, value + 1)
        assert below == 0
        assert 0 < same < 10
        assert above > same + 10
        assert math.isfinite(above)

    def test_of_equal_values_the_rarest_counts(self) -> None:
        good = torch.cat((torch.zeros(9_000), 1 + torch.rand(1_000, generator=torch.Generator().manual_seed(0))))
        tail = TailQuantiles.fit(good)
        assert tail.values[0] == 0
        assert rarity(tail, 0.0)[0] == pytest.approx(1, abs=1 / 8), "a tenth of the pixels lies above"

    def test_any_shape_and_memory_layout(self) -> None:
        good = normal(4 * 6 * 10).view(4, 6, 10)
        tail = TailQuantiles.fit(good)
        assert tail == TailQuantiles.fit(good.flatten().flip(0))
        assert torch.equal(tail(good).transpose(1, 2), tail(good.transpose(1, 2)))

    @given(good=many)
    def test_written_is_read(self, good: list[float]) -> None:
        tail = TailQuantiles.fit(torch.tensor(good))
        assert TailQuantiles.from_json(json.loads(json.dumps(tail.to_json()))) == tail


@pytest.fixture(scope="module")
def maps() -> tuple[Tensor, Tensor]:
    """Product maps and critic maps (6, 32, 32) of good images."""
    generator = torch.Generator().manual_seed(0)
    product = torch.rand((6, 32, 32), generator=generator) ** 4
    marked = torch.rand((6, 32, 32), generator=generator) ** 8
    return product, marked


class TestFusion:
    def test_one_part_alone_ranks_as_the_part_does(self, maps: tuple[Tensor, Tensor]) -> None:
        fusion = Fusion.fit(*maps)
        for share, part in ((1.0, maps[0]), (0.0, maps[1])):
            fused = fusion.with_share(share)(*maps).flatten()[part.flatten().argsort()]
            assert (fused.diff() >= -1e-6).all()
            assert int(image_score(fusion.with_share(share)(*maps)).argmax()) == int(image_score(part).argmax())

    @given(share=st.floats(0, 1))
    def test_between_is_the_weighted_mean(self, maps: tuple[Tensor, Tensor], share: float) -> None:
        fusion = Fusion.fit(*maps)
        far, odd = fusion.with_share(1.0)(*maps), fusion.with_share(0.0)(*maps)
        fused = fusion.with_share(share)(*maps)
        torch.testing.assert_close(fused, share * far + (1 - share) * odd)
        assert (fused <= torch.maximum(far, odd) + 1e-5).all()
        assert (fused >= torch.minimum(far, odd) - 1e-5).all()

    def test_both_parts_are_in_the_same_unit(self, maps: tuple[Tensor, Tensor]) -> None:
        fusion = Fusion.fit(*maps)
        for share in (0.0, 1.0):
            fused = fusion.with_share(share)(*maps)
            assert float((fused > 1).float().mean()) == pytest.approx(0.1, abs=0.01)
            assert float((fused > 2).float().mean()) == pytest.approx(0.01, abs=0.005)

    @pytest.mark.parametrize("share", SHARES)
    def test_units_of_the_parts_do_not_matter(self, maps: tuple[Tensor, Tensor], share: float) -> None:
        # Distances in another unit are the same distances: the encoder's scale must not decide.
        product, marked = maps
        small, large = (Fusion.fit(product * unit, marked, share)(product * unit, marked) for unit in (1e-3, 1e3))
        torch.testing.assert_close(small, large, rtol=1e-2, atol=2e-2)

    def test_one_part_makes_up_for_the_other(self, maps: tuple[Tensor, Tensor]) -> None:
        fusion = Fusion.fit(*maps, share=0.5)
        near, far = torch.full((1, 4, 4), 0.01), torch.full((1, 4, 4), 100.0)
        normal_looking, odd = torch.full((1, 4, 4), 1e-4), torch.full((1, 4, 4), 0.9999)
        nothing = float(fusion(near, normal_looking).max())
        assert float(fusion(far, normal_looking).min()) > nothing + 0.5
        assert float(fusion(near, odd).min()) > nothing + 0.5
        assert float(fusion(far, odd).min()) > float(fusion(far, normal_looking).max())

    @pytest.mark.parametrize("share", SHARES)
    @pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
    def test_constant_maps(self, share: float, value: float) -> None:
        flat = torch.full((2, 8, 8), value)
        fusion = Fusion.fit(flat, flat, share)
        assert fusion(flat, flat).isfinite().all()
        assert fusion(torch.ones(1, 8, 8), torch.ones(1, 8, 8)).isfinite().all()

    def test_written_is_read(self, maps: tuple[Tensor, Tensor]) -> None:
        fusion = Fusion.fit(*maps, share=0.25)
        again = Fusion.from_json(json.loads(json.dumps(fusion.to_json())))
        assert again == fusion
        assert torch.equal(again(*maps), fusion(*maps))


@pytest.mark.parametrize("scale", [memory_scale, critic_scale])
def test_scales_keep_the_order_and_know_no_infinity(scale: object) -> None:
    assert callable(scale)
    found: Tensor = scale(torch.tensor([0.0, 1e-6, 0.1, 0.5, 0.9, 1.0]))
    assert found.isfinite().all()
    assert (found.diff() > 0).all()


class TestBestShare:
    """Qualities are given in the order of SHARES: the critic alone first, the memory alone last."""

    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            ((0.90, 0.90, 0.90, 0.90, 0.90, 0.90), 0.5),
            ((0.92, 0.91, 0.91, 0.90, 0.89, 0.88), 0.0),
            ((0.88, 0.89, 0.89, 0.90, 0.91, 0.92), 1.0),
            ((0.95, 0.96, 0.93, 0.90, 0.80, 0.70), 0.125),
            ((0.70, 0.80, 0.80, 0.90, 0.96, 0.95), 0.75),
            ((0.95, 0.95, 0.93, 0.80, 0.93, 0.95), 0.125),  # of equally good ones the most even
            ((0.90, 0.93, 0.95, 0.80, 0.95, 0.93), 0.25),  # of two equally even ones the lower
        ],
    )
    def test_is_the_best_one(self, found: tuple[float, ...], expected: float) -> None:
        quality = dict(zip(SHARES, found, strict=True))
        assert best_share(quality) == expected
        assert best_share(dict(reversed(quality.items()))) == expected, "the order of the table does not matter"
