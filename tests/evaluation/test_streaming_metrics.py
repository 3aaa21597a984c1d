from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from patchsvdd.evaluation.metrics import aupro, auroc, average_precision, best_f1, roc_curve
from patchsvdd.evaluation.streaming_metrics import PixelCurves

pytestmark = pytest.mark.slow

Images = tuple[list[NDArray[np.float32]], list[NDArray[np.bool_]]]
TINY = np.finfo(np.float32).smallest_subnormal
METRICS: list[Callable[[PixelCurves], Any]] = [
    PixelCurves.auroc,
    PixelCurves.auroc_error,
    PixelCurves.average_precision,
    PixelCurves.average_precision_error,
    PixelCurves.best_f1,
    PixelCurves.aupro,
    PixelCurves.aupro_error,
    PixelCurves.roc_curve,
    PixelCurves.pro_curve,
]

VALUES: dict[str, Callable[[np.random.Generator, tuple[int, int]], Any]] = {
    "spread": lambda rng, shape: rng.normal(size=shape),
    "within one bin": lambda rng, shape: 1 + rng.integers(0, 1000, shape) * 2.0**-23,
    "within one negative bin": lambda rng, shape: -1 - rng.integers(0, 1000, shape) * 2.0**-23,
    "within two bins": lambda rng, shape: 1 + rng.integers(0, 2000, shape) * 2.0**-23,
    "zeros of both signs": lambda rng, shape: rng.choice([0.0, -0.0], shape),
    "denormal": lambda rng, shape: rng.integers(-3000, 3000, shape) * float(TINY),
    "infinite": lambda rng, shape: rng.choice([-np.inf, -1.0, 0.0, 1.0, np.inf], shape),
    "of all sizes": lambda rng, shape: rng.choice([-1, 1], shape) * 10.0 ** rng.uniform(-44, 38, shape),
    "constant": lambda _, shape: np.full(shape, 0.37),
}


@st.composite
def images(draw: st.DrawFn) -> Images:
    """Maps and masks (H, W) of up to three images, with good and defect pixels, values of one of the kinds above."""
    values = VALUES[draw(st.sampled_from(sorted(VALUES)))]
    shape = draw(st.tuples(st.integers(2, 12), st.integers(2, 12)))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    density = draw(st.sampled_from([0.05, 0.3, 0.9]))
    maps, masks = [], []
    for _ in range(draw(st.integers(1, 3))):
        maps.append(np.asarray(values(rng, shape), dtype=np.float32))
        masks.append(rng.random(shape) < density)
    assume(np.any(masks) and not np.all(masks))
    return maps, masks


def curves_of(
    maps: Sequence[NDArray[np.float32]], masks: Sequence[NDArray[np.bool_]], mantissa_bits: int = 13
) -> PixelCurves:
    curves = PixelCurves(mantissa_bits)
    for one, mask in zip(maps, masks, strict=True):
        curves.add(one, mask)
    return curves


def few_values(seed: int, levels: int = 40) -> Images:
    """Maps of few values, each in a bin of its own, and masks."""
    rng = np.random.default_rng(seed)
    maps = [(rng.integers(-levels, levels, (20, 30)) / 8).astype(np.float32) for _ in range(3)]
    return maps, [rng.random((20, 30)) < 0.1 for _ in maps]


@given(images(), st.sampled_from([0, 4, 13]))
def test_auroc_is_within_its_bound(drawn: Images, mantissa_bits: int) -> None:
    curves = curves_of(*drawn, mantissa_bits)
    error = abs(curves.auroc() - auroc(np.stack(drawn[1]), np.stack(drawn[0])))
    assert error <= curves.auroc_error() + 1e-12


@given(images(), st.sampled_from([0, 4, 13]), st.sampled_from([0.05, 0.3, 1.0]))
def test_aupro_is_within_its_bound(drawn: Images, mantissa_bits: int, limit: float) -> None:
    curves = curves_of(*drawn, mantissa_bits)
    assert abs(curves.aupro(limit) - aupro(*drawn, limit)) <= curves.aupro_error(limit) + 1e-12
    assert 0 <= curves.aupro(limit) <= 1


@given(images(), st.sampled_from([0, 4, 13]))
def test_average_precision_is_within_its_bound(drawn: Images, mantissa_bits: int) -> None:
    curves = curves_of(*drawn, mantissa_bits)
    error = abs(curves.average_precision() - average_precision(np.stack(drawn[1]), np.stack(drawn[0])))
    assert error <= curves.average_precision_error() + 1e-12


@given(images(), st.sampled_from([0, 4, 13]))
def test_best_f1_is_the_true_one_at_its_threshold(drawn: Images, mantissa_bits: int) -> None:
    f1, threshold = curves_of(*drawn, mantissa_bits).best_f1()
    values, labels = np.stack(drawn[0]), np.stack(drawn[1])
    called = values >= threshold
    assert f1 == 2 * np.sum(labels & called) / (np.sum(called) + np.sum(labels))
    assert f1 <= best_f1(labels, values)[0]


@pytest.mark.parametrize("seed", range(5))
def test_exact_where_each_bin_holds_one_value(seed: int) -> None:
    maps, masks = few_values(seed)
    curves, labels, scores = curves_of(maps, masks), np.stack(masks), np.stack(maps)
    assert curves.auroc() == auroc(labels, scores)
    assert curves.average_precision() == average_precision(labels, scores)
    assert curves.best_f1()[0] == best_f1(labels, scores)[0]
    assert curves.roc_curve() == roc_curve(labels, scores)
    assert curves.aupro() == pytest.approx(aupro(maps, masks), abs=1e-12)


def test_bounds_are_met_where_every_pair_of_a_bin_is_turned() -> None:
    """Good pixels just above defect pixels, all in one bin: no bound can be smaller."""
    values = np.float32(1) + np.arange(8, dtype=np.float32).reshape(2, 4) * np.float32(2.0**-23)
    mask = np.array([[True] * 4, [False] * 4])
    curves = curves_of([values], [mask])
    assert (curves.auroc(), curves.auroc_error(), auroc(mask, values)) == (0.5, 0.5, 0)
    assert (curves.aupro(1), curves.aupro_error(1)) == (0.5, 0.5)
    # The other way round AUPRO would be 1: tied pixels give 0.15, and the bound covers the rest.
    assert aupro([-values], [mask]) == 1
    assert curves.aupro() + curves.aupro_error() == pytest.approx(1, abs=1e-12)


def test_bounds_are_zero_where_no_bin_is_mixed() -> None:
    values = np.array([[1, 2, 3, 4]], dtype=np.float32)
    curves = curves_of([values], [values % 2 == 0])
    assert (curves.auroc_error(), curves.aupro_error(), curves.average_precision_error()) == (0, 0, 0)


def test_default_bins_are_fine_enough() -> None:
    rng = np.random.default_rng(0)
    masks = [rng.random((100, 100)) < 0.05 for _ in range(10)]
    curves = curves_of([(rng.gamma(2, 1, mask.shape) + mask).astype(np.float32) for mask in masks], masks)
    assert curves.auroc_error() < 1e-4
    assert curves.aupro_error() < 1e-3
    assert curves.average_precision_error() < 1e-2


@settings(max_examples=15)
@given(st.permutations(range(6)))
def test_the_order_of_images_does_not_matter(order: list[int]) -> None:
    rng = np.random.default_rng(1)
    maps = [(rng.normal(size=(15, 15)) * 10.0**i).astype(np.float32) for i in range(-3, 3)]
    masks = [rng.random((15, 15)) < 0.2 for _ in maps]
    plain = curves_of(maps, masks)
    turned = curves_of([maps[i] for i in order], [masks[i] for i in order])
    assert turned.auroc() == plain.auroc()
    assert turned.average_precision() == plain.average_precision()
    assert turned.best_f1() == plain.best_f1()
    assert turned.aupro() == pytest.approx(plain.aupro(), abs=1e-12)


def test_counts_what_it_was_given() -> None:
    mask = np.zeros((5, 6), dtype=bool)
    mask[0, 0] = mask[1, 1] = mask[4, 2:5] = True  # two regions: diagonals touch
    curves = curves_of([np.zeros((5, 6), np.float32)] * 3, [mask, np.zeros_like(mask), mask])
    assert (curves.good_pixels, curves.defect_pixels, curves.regions) == (80, 10, 4)


@pytest.mark.parametrize("limit", [0.1, 0.3, 1.0])
def test_the_pro_curve_ends_at_the_limit_and_spans_the_area(limit: float) -> None:
    rng = np.random.default_rng(2)
    masks = [rng.random((40, 40)) < 0.1 for _ in range(3)]
    curves = curves_of([(rng.normal(size=mask.shape) + mask).astype(np.float32) for mask in masks], masks)
    curve = curves.pro_curve(limit)
    assert len(curve.x) == len(curve.y) <= 200
    assert (curve.x[0], curve.y[0], curve.x[-1]) == (0, 0, limit)
    assert np.trapezoid(curve.y, curve.x) / limit == pytest.approx(curves.aupro(limit), abs=1e-3)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("label", [True, False, None])
def test_one_kind_of_pixel_alone_is_an_error(metric: Callable[[PixelCurves], Any], label: bool | None) -> None:
    curves = PixelCurves()
    if label is not None:
        curves.add(np.ones((3, 3), np.float32), np.full((3, 3), label))
    with pytest.raises(ValueError, match="at least one defect and one good"):
        metric(curves)


def test_nan_is_an_error_that_leaves_the_counts_alone() -> None:
    curves = curves_of([np.eye(3, dtype=np.float32)], [np.eye(3, dtype=bool)])
    broken = np.ones((4, 4), np.float32)
    broken[2, 1] = np.nan
    with pytest.raises(ValueError, match="NaN at 1 of 16 pixels, first at row 2, column 1"):
        curves.add(broken, np.eye(4, dtype=bool))
    assert (curves.auroc(), curves.good_pixels, curves.regions) == (1, 6, 1)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"map \(2, 3\) and mask \(3, 2\) differ in shape"):
        PixelCurves().add(np.zeros((2, 3), np.float32), np.zeros((3, 2), dtype=bool))


@pytest.mark.parametrize("bits", [-1, 24])
def test_bits_of_the_mantissa_are_those_of_a_float32(bits: int) -> None:
    with pytest.raises(ValueError, match=f"between 0 and 23.*got {bits}"):
        PixelCurves(bits)


def test_all_bits_of_the_mantissa_are_exact() -> None:
    values = np.float32(1) + np.arange(6, dtype=np.float32).reshape(2, 3) * np.float32(2.0**-23)
    mask = np.array([[True, False, True], [False, True, False]])
    curves = curves_of([values], [mask], mantissa_bits=23)
    assert (curves.auroc(), curves.auroc_error()) == (auroc(mask, values), 0)


def test_two_thousand_images_stay_in_bounded_memory() -> None:
    rng = np.random.default_rng(3)
    maps = [rng.gamma(2, 1, (256, 256)).astype(np.float32) for _ in range(4)]
    maps[0][0, :3] = 0, -1, np.inf
    mask = np.zeros((256, 256), dtype=bool)
    mask[40:80, 100:160] = mask[200, 200] = True
    tracemalloc.start()
    try:
        curves = PixelCurves()
        for i in range(2000):
            curves.add(maps[i % 4], mask if i % 8 == 0 else ~mask & mask)
        curves.aupro()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert curves.good_pixels + curves.defect_pixels == 2000 * 256 * 256
    assert peak < 100e6
