from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from patchsvdd.core.scales import Scale
from patchsvdd.encoder.patch_grid import PatchGrid


class TestGrid:
    def test_the_papers_grids(self) -> None:
        assert PatchGrid((256, 256), Scale(32, 4), 2).shape == (57, 57)
        assert PatchGrid((256, 256), Scale(64, 16), 2).shape == (13, 13)

    @given(
        length=st.integers(64, 300),
        patch_size=st.sampled_from([32, 64]),
        stride=st.integers(1, 16).map(lambda half: 2 * half),
        alignment=st.sampled_from([2, 8]),
    )
    def test_every_pixel_is_covered(self, length: int, patch_size: int, stride: int, alignment: int) -> None:
        stride = -(-stride // alignment) * alignment
        grid = PatchGrid((length, 64), Scale(patch_size, stride), alignment)
        rows = grid.rows
        assert rows[0] == 0
        assert all(row % alignment == 0 for row in rows)
        assert all(0 < after - before <= stride for before, after in pairwise(rows))
        assert length - alignment < rows[-1] + patch_size <= length
        assert grid.shape == (len(rows), len(grid.columns))

    def test_rows_follow_the_height_and_columns_the_width(self) -> None:
        grid = PatchGrid((64, 96), Scale(32, 32), 2)
        assert (grid.rows, grid.columns) == ([0, 32], [0, 32, 64])
