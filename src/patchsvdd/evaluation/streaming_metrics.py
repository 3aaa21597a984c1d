"""Pixel metrics over any number of images in bounded memory, each with a bound on its error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchsvdd.evaluation.metrics import PRO_LIMIT, region_weights
from patchsvdd.scoring.ranking import Curve, Ranking, check_shapes

MANTISSA_BITS = 13
"""Default number of mantissa bits: values whose relative difference is below 2**-13 may count as equal."""
PAGES = 2**9
"""Combinations of sign and exponent of a float32; each has a page of bins, allocated on first use."""
SIGN = np.uint32(2**31)
GOOD, DEFECT, WEIGHT = range(3)
"""Rows of the sums: good pixels, defect pixels, and defect pixels weighted by 1 / size of their region."""


class PixelCurves:
    """Histograms of good and defect pixels by value, and the metrics computed from them.

    Values are binned by sign, exponent and the first bits of the mantissa; pixels in one bin count as tied. The metrics
    are exact if each bin holds one value; otherwise the ``..._error`` methods bound the difference (for any data, apart
    from rounding of the last digits). Memory: 3 × 8 × 2**13 bytes for each power of two among the values.
    """

    def __init__(self, mantissa_bits: int = MANTISSA_BITS) -> None:
        if not 0 <= mantissa_bits <= 23:
            raise ValueError(f"mantissa_bits is between 0 and 23 (a float32 has no more), got {mantissa_bits}")
        self.regions = 0
        self._bits = mantissa_bits
        self._page_at = np.full(PAGES, -1)  # index of each page in the sums; -1: not allocated
        self._sums = np.zeros((3, 0))

    @property
    def good_pixels(self) -> int:
        """Number of pixels outside the masks so far."""
        return int(self._sums[GOOD].sum())

    @property
    def defect_pixels(self) -> int:
        """Number of pixels inside the masks so far."""
        return int(self._sums[DEFECT].sum())

    def add(self, anomaly_map: NDArray[np.float32], mask: NDArray[np.bool_]) -> None:
        """Add the pixels of one image: its map (H, W), and its mask (H, W), which is empty for a good image."""
        check_shapes(map=anomaly_map, mask=mask)
        bins = self._bins(anomaly_map)
        self._sums[GOOD] += self._count(bins[~mask])
        if mask.any():
            weights, regions = region_weights(mask)
            self._sums[DEFECT] += self._count(bins[mask])
            self._sums[WEIGHT] += self._count(bins[mask], weights)
            self.regions += regions

    def auroc(self) -> float:
        """Probability in [0, 1] that a defect pixel has a higher value than a good one, ties counting half."""
        return self._ranking(DEFECT).area()

    def auroc_error(self) -> float:
        """Largest possible error of ``auroc`` due to binning: half the fraction of pairs within one bin."""
        return self._ranking(DEFECT).area_error()

    def average_precision(self) -> float:
        """Mean over the defect pixels, in (0, 1], of the precision at their value."""
        return self._ranking(DEFECT).average_precision()

    def average_precision_error(self) -> float:
        """Largest possible error of ``average_precision`` due to binning.

        Computed from the best and the worst order within the bins; not 0 if a bin holds two defect pixels, tied or not.
        """
        return self._ranking(DEFECT).average_precision_error()

    def best_f1(self) -> tuple[float, float]:
        """Largest F1 of "value >= threshold" over the lower edges of the bins, and the (highest) such threshold.

        The F1 at that threshold is exact; a threshold inside a bin may give a slightly larger one.
        """
        return self._ranking(DEFECT).best_f1()

    def aupro(self, limit: float = PRO_LIMIT) -> float:
        """Area in [0, 1] under the PRO curve up to ``limit``, divided by ``limit``; see ``metrics.aupro``."""
        return self._ranking(WEIGHT).area(limit)

    def aupro_error(self, limit: float = PRO_LIMIT) -> float:
        """Largest possible error of ``aupro`` due to binning."""
        return self._ranking(WEIGHT).area_error(limit)

    def roc_curve(self, points: int = 200) -> Curve:
        """The ROC curve from (0, 0) to (1, 1): x false, y true positive rate; at most ``points`` points."""
        return self._ranking(DEFECT).curve(points)

    def pro_curve(self, limit: float = PRO_LIMIT, points: int = 200) -> Curve:
        """The PRO curve from (0, 0) to x = ``limit``: x false positive rate, y PRO; at most ``points`` points."""
        return self._ranking(WEIGHT).curve_until(limit, points)

    def _bins(self, values: NDArray[np.float32]) -> NDArray[np.int64]:
        """Column of the sums for each value, int64 of the same shape; allocates missing pages."""
        bins = _order(values) >> np.uint32(23 - self._bits)
        pages = bins >> np.uint32(self._bits)
        self._make_pages(np.flatnonzero(np.bincount(pages.ravel(), minlength=PAGES)))
        columns: NDArray[np.int64] = (self._page_at << self._bits)[pages] + (bins & np.uint32(2**self._bits - 1))
        return columns

    def _make_pages(self, pages: NDArray[np.int64]) -> None:
        """Allocate those of ``pages`` (N,) that are not in the sums yet."""
        missing = pages[self._page_at[pages] < 0]
        if len(missing):
            self._page_at[missing] = self._sums.shape[1] // 2**self._bits + np.arange(len(missing))
            self._sums = np.pad(self._sums, ((0, 0), (0, len(missing) * 2**self._bits)))

    def _count(self, columns: NDArray[np.int64], weights: NDArray[np.float64] | None = None) -> NDArray[np.generic]:
        """Number (or summed weights) of the entries of ``columns`` (N,) for each column of the sums."""
        return np.bincount(columns, weights, minlength=self._sums.shape[1])

    def _ranking(self, row: int) -> Ranking:
        """The bins that hold defect pixels, highest first; ``row`` selects the weight of a defect pixel."""
        pages = np.flatnonzero(self._page_at >= 0)[::-1]
        inside = np.arange(2**self._bits)[::-1]
        columns = ((self._page_at[pages] << self._bits)[:, None] + inside).ravel()
        bins = ((pages << self._bits)[:, None] + inside).ravel()
        tied = self._sums[GOOD, columns]
        held = self._sums[DEFECT, columns] > 0
        return Ranking(
            values=_lower_edges(bins[held], self._bits),
            defect=self._sums[row, columns[held]],
            tied=tied[held],
            above=(tied.cumsum() - tied)[held],
            good=float(tied.sum()),
        )


def _order(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Integers, uint32 of the same shape, that sort like the float32 ``values``."""
    if np.isnan(values).any():
        row, column = np.argwhere(np.isnan(values))[0]
        raise ValueError(
            f"the anomaly map is NaN at {np.isnan(values).sum()} of {values.size} pixels, first at row {row}, "
            f"column {column}, and cannot be ranked; check the detector's output"
        )
    bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32)  # + 0: turns -0 into 0
    # Positive values: set the sign bit. Negative ones: flip all bits, since there a larger magnitude is lower.
    ordered: NDArray[np.uint32] = bits ^ np.where(bits < SIGN, SIGN, ~np.uint32(0))
    return ordered


def _lower_edges(bins: NDArray[np.int64], bits: int) -> NDArray[np.float32]:
    """The lowest float32 (N,) in each of ``bins``; the inverse of ``_order``."""
    lowest = _order(np.full((1, 1), -np.inf, np.float32))[0, 0]  # below it are NaNs
    ordered = np.maximum((bins << (23 - bits)).astype(np.uint32), lowest)
    edges: NDArray[np.float32] = (ordered ^ np.where(ordered < SIGN, ~np.uint32(0), SIGN)).view(np.float32)
    return edges
