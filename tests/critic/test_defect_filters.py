from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
import torch

from patchsvdd.critic.confirmed_defects import ConfirmedDefect, ConfirmedDefects, kinds_of
from patchsvdd.critic.defect_filters import SHRINKAGE, DefectFilters, NormalFeatures

CHANNELS = 5


@pytest.fixture(scope="module")
def good() -> list[torch.Tensor]:
    """Features (C, h, w) of good images: correlated Gaussians."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn((CHANNELS, CHANNELS), generator=generator)
    return [
        torch.einsum("dc,chw->dhw", mixing, torch.randn((CHANNELS, 12, 10), generator=generator)) + 3 for _ in range(20)
    ]


def test_normal_features_are_the_moments_of_all_patches(good: list[torch.Tensor]) -> None:
    rows = torch.stack(good).permute(0, 2, 3, 1).reshape(-1, CHANNELS).double().numpy()
    normal = NormalFeatures.fit(good)
    np.testing.assert_allclose(normal.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normal.scale, rows.std(0), rtol=1e-5)
    correlation = np.corrcoef(rows.T) + SHRINKAGE * np.eye(CHANNELS)
    np.testing.assert_allclose(normal.whitening, np.linalg.inv(correlation), rtol=1e-3, atol=1e-4)


def test_a_filter_is_the_linear_discriminant_of_two_gaussians(good: list[torch.Tensor]) -> None:
    """The log likelihood ratio of two Gaussians with one covariance, for every patch, but for unit and origin."""
    normal = NormalFeatures.fit(good)
    defect = normal.mean + torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    filters = DefectFilters.fit([defect[None]], normal, good)
    patches = torch.stack(good)
    outputs = torch.einsum("kc,nchw->nkhw", filters.weights, patches) + filters.offsets[:, None, None]
    inverse = normal.whitening / (normal.scale[:, None] * normal.scale)

    def squared(mean: torch.Tensor) -> torch.Tensor:
        apart = patches - mean[:, None, None]
        return torch.einsum("nchw,cd,ndhw->nhw", apart, inverse, apart)

    ratio = (squared(normal.mean) - squared(defect)).flatten() / 2
    ours = outputs[:, 0].flatten()
    unit = (ratio.max() - ratio.min()) / (ours.max() - ours.min())
    torch.testing.assert_close((ours - ours.mean()) * unit, ratio - ratio.mean(), rtol=1e-3, atol=1e-2)


def test_outputs_are_in_units_of_the_peaks_of_good_images(good: list[torch.Tensor]) -> None:
    normal = NormalFeatures.fit(good)
    filters = DefectFilters.fit([normal.mean[None] + 1, normal.mean[None] - 2], normal, good)
    patches = torch.stack(good)
    peaks = (torch.einsum("kc,nchw->nkhw", filters.weights, patches) + filters.offsets[:, None, None]).flatten(2)
    peaks = peaks.amax(2)
    torch.testing.assert_close(peaks.median(0).values, torch.zeros(2), rtol=0, atol=1e-4)
    torch.testing.assert_close(peaks.std(0, correction=0), torch.ones(2), rtol=1e-3, atol=1e-3)


def test_identical_good_images_do_not_make_a_filter_infinite() -> None:
    alike = [torch.ones((CHANNELS, 4, 4)) for _ in range(3)]
    normal = NormalFeatures.fit(alike)
    filters = DefectFilters.fit([torch.zeros((2, CHANNELS))], normal, alike)
    assert all(bool(torch.isfinite(one).all()) for one in (filters.weights, filters.offsets))


def test_confirmed_defects_survive_storing_and_say_when_they_were_confirmed(good: list[torch.Tensor]) -> None:
    normal = NormalFeatures.fit(good)
    filters = DefectFilters.fit([normal.mean[None] + 1, normal.mean[None] - 1], normal, good)
    times = [datetime(2026, month, 3, tzinfo=UTC).isoformat() for month in (5, 5, 7)]
    kinds = ("scratch", "scratch", "dent")
    known = tuple(
        ConfirmedDefect(f"{number}.png", kind, at, f"digest {number}", number == 0)
        for number, (kind, at) in enumerate(zip(kinds, times, strict=True))
    )
    defects = ConfirmedDefects(
        known, torch.rand((7, CHANNELS)), torch.arange(7) % 3, filters, torch.rand((3, 2 * CHANNELS + 2))
    )
    again = ConfirmedDefects.from_state(defects.state(), [one.to_json() for one in defects.defects])
    assert again.defects == known
    assert again.kinds == kinds_of(known) == ("dent", "scratch")
    for name, value in defects.state().items():
        torch.testing.assert_close(again.state()[name], value, rtol=0, atol=0)
    assert again.in_words("scratch") == "like scratch, 2 confirmed in May 2026"
    assert again.in_words("dent") == "like dent, 1 confirmed in July 2026"
