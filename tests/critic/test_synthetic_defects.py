from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.errors import ConfigError
from patchsvdd.critic.defect_fills import Fill, Site, bend
from patchsvdd.critic.defect_shapes import RandomStream, Window, draw_shapes, place_weights
from patchsvdd.critic.synthetic_defects import (
    KINDS,
    ONE_OR_TWO,
    SELECTION_KINDS,
    TRAINING_KINDS,
    VISIBLE,
    DrawnDefects,
    Sizes,
    draw_defects,
)
from support.parts import draw_part

each_kind = pytest.mark.parametrize("kind", KINDS)
SIZES = [(64, 64), (97, 150), (131, 70)]
BACKGROUND, PART = 40.0, 190.0
"""Grey levels of the pictures of ``parts_on_a_table``."""


def parts(count: int, size: tuple[int, int] = (96, 96)) -> Tensor:
    """(count, 3, H, W) uint8: discs on a striped ground."""
    pictures = np.stack([draw_part(seed, size) for seed in range(count)])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()


def parts_on_a_table(count: int, size: int = 128) -> tuple[Tensor, Tensor]:
    """Pictures (count, 3, H, W) of a bright disc on an even dark table, and where (H, W) the disc is."""
    axis = torch.arange(size) - size / 2
    disc = axis[:, None] ** 2 + axis**2 < (0.3 * size) ** 2
    grain = 3 * torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    return (torch.where(disc, PART, BACKGROUND) + grain).clamp(0, 255), disc


def mosaics(count: int, size: int = 128) -> Tensor:
    """(count, 3, H, W) in 0 … 255: small tiles of many colours, so that whatever happens to them can be seen."""
    tiles = 255 * torch.rand(count, 3, size // 6, size // 6, generator=torch.Generator().manual_seed(2))
    return F.interpolate(tiles, (size, size))


def draw(
    images: Tensor,
    kinds: Sequence[str] = KINDS,
    *,
    seed: int = 0,
    share: float = 1.0,
    sizes: Sizes | None = None,
    sources: Tensor | None = None,
    rounds: Sequence[float] = ONE_OR_TWO,
) -> DrawnDefects:
    generator = torch.Generator().manual_seed(seed)
    return draw_defects(images, images if sources is None else sources, generator, kinds, share, sizes, rounds)


def change(images: Tensor, drawn: DrawnDefects) -> Tensor:
    """(N, H, W) in 0 … 1: the largest change of a channel."""
    return (drawn.images - images.float()).abs().amax(1) / 255


def near(masks: Tensor, reach: int) -> Tensor:
    """(N, H, W): whether a pixel or one up to ``reach`` pixels beside it is marked."""
    return F.max_pool2d(masks.float()[:, None], 2 * reach + 1, 1, reach)[:, 0] > 0


def slimness(mask: Tensor) -> float:
    """Squared length of what is marked over its area."""
    rows, columns = (mask > 0.5).nonzero(as_tuple=True)
    return float(((rows.max() - rows.min()) ** 2 + (columns.max() - columns.min()) ** 2) / len(rows))


class TestDraw:
    @each_kind
    def test_the_seed_decides(self, kind: str) -> None:
        images = parts(4)
        first, again, other = (draw(images, [kind], seed=seed) for seed in (5, 5, 6))
        assert torch.equal(first.images, again.images)
        assert torch.equal(first.masks, again.masks)
        assert not torch.equal(first.images, other.images)

    @pytest.mark.parametrize("size", SIZES)
    def test_images_of_any_shape(self, size: tuple[int, int]) -> None:
        images = parts(2 * len(KINDS), size)
        drawn = draw(images)
        assert drawn.images.shape == images.shape
        assert drawn.masks.shape == (len(images), *size)
        assert drawn.images.dtype == drawn.masks.dtype == torch.float32
        assert drawn.images.isfinite().all()
        assert 0 <= float(drawn.images.min()) <= float(drawn.images.max()) <= 255
        assert 0 <= float(drawn.masks.min()) <= float(drawn.masks.max()) == 1

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_fewer_images_than_kinds(self, count: int) -> None:
        assert draw(parts(count)).images.shape == (count, 3, 96, 96)

    @each_kind
    def test_one_image_may_be_its_own_source(self, kind: str) -> None:
        assert draw(parts(1), [kind]).images.isfinite().all()

    @pytest.mark.parametrize("kind", ["blend", "paste"])
    def test_whole_numbers_and_fractions_are_the_same(self, kind: str) -> None:
        images = parts(6)
        whole = draw(images, [kind])
        assert torch.equal(draw(images.float(), [kind]).images, whole.images)
        assert torch.equal(draw(images, [kind], sources=images.float()).images, whole.images)

    def test_the_images_given_stay_as_they_are(self) -> None:
        images = parts(12).float()
        before = images.clone()
        draw(images)
        assert torch.equal(images, before)

    def test_no_share_leaves_the_images_as_they_are(self) -> None:
        images = parts(len(KINDS))
        drawn = draw(images, share=0.0)
        assert torch.equal(drawn.images.round().byte(), images)
        assert not drawn.masks.any()

    def test_a_share_leaves_the_others_as_they_are(self) -> None:
        images = parts(64, (64, 64))
        touched = (change(images, draw(images, ["paint"], share=0.5)).amax((1, 2)) > 1 / 255).sum()
        assert 16 < int(touched) < 48

    @pytest.mark.parametrize("kinds", [["dust"], ["blend", "dent", "hole"], []])
    def test_kinds_that_are_none(self, kinds: list[str]) -> None:
        with pytest.raises(ConfigError, match=r"blend, paste, .*grime; got (dust|dent|none)"):
            draw(parts(2), kinds)

    def test_settings_are_chosen_by_other_kinds_than_those_that_train(self) -> None:
        assert not set(TRAINING_KINDS) & set(SELECTION_KINDS)
        assert (*TRAINING_KINDS, *SELECTION_KINDS) == KINDS


class TestRounds:
    """How many defects an image gets."""

    def changed(self, images: Tensor, drawn: DrawnDefects) -> Tensor:
        """(N,) pixels that are not what they were."""
        return (change(images, drawn) > 1 / 255).sum((1, 2))

    def test_one_or_two_if_nothing_is_said(self) -> None:
        images = parts(6)
        drawn = draw_defects(images, images, torch.Generator().manual_seed(0))
        assert torch.equal(drawn.images, draw(images, rounds=(1.0, 0.5)).images)

    def test_an_image_of_no_round_stays_as_it_is(self) -> None:
        images = mosaics(12)
        drawn = draw(images, ["paint"], sizes=Sizes(smallest=4), rounds=(0.5, 0.25))
        assert float(change(images, drawn)[6:].max()) < 1e-6
        assert not drawn.masks[6:].any()
        assert (self.changed(images, drawn)[:6] > 0).all()

    def test_more_rounds_change_more(self) -> None:
        images = mosaics(24)
        changed = [
            int(self.changed(images, draw(images, ["paint"], rounds=(1.0,) * rounds)).sum()) for rounds in (1, 2, 3)
        ]
        assert changed[0] < 0.75 * changed[1] < 0.75 * changed[2]

    def test_a_round_of_some_is_one_of_the_first(self) -> None:
        images = mosaics(48)
        changed = self.changed(images, draw(images, ["paint"], sizes=Sizes(smallest=8), rounds=(1.0, 0.5, 0.5)))
        assert int(changed[:24].sum()) > 1.5 * int(changed[24:].sum())

    @pytest.mark.parametrize("rounds", [(1.0,), (1.0, 0.5), (1.0, 1.0, 1.0), (0.5, 1.0)])
    def test_masks_tell_of_every_change(self, rounds: tuple[float, ...]) -> None:
        images = mosaics(len(KINDS))
        drawn = draw(images, rounds=rounds)
        changed = change(images, drawn)
        around = F.avg_pool2d(changed[:, None], 5, 1, 2, count_include_pad=False)[:, 0]
        assert drawn.masks.flatten(1).any(1).sum() > len(KINDS) // 2
        assert float(around[drawn.masks == 0].max()) <= 0.5 * VISIBLE + 1e-5
        assert not drawn.masks[~near(changed > 1e-5, 2)].any()

    def test_what_gets_no_defect_gets_none_in_any_round(self) -> None:
        images = mosaics(64, 64)
        untouched = self.changed(images, draw(images, ["paint"], share=0.5, rounds=(1.0, 1.0, 1.0))) == 0
        assert 16 < int(untouched.sum()) < 48


class TestMasks:
    @each_kind
    def test_a_defect_can_be_seen_in_most_draws(self, kind: str) -> None:
        images = mosaics(36)
        masks = draw(images, [kind], sizes=Sizes(smallest=4)).labels()[0]
        seen = float(((masks > 0.5).sum((1, 2)) >= 5).float().mean())
        assert seen > (0.5 if kind == "scratch" else 0.7), "some scratches are faint on purpose"

    @each_kind
    def test_the_mask_is_where_the_image_has_changed(self, kind: str) -> None:
        images = parts(8, (128, 128))
        drawn = draw(images, [kind])
        changed = change(images, drawn)
        assert not drawn.masks[~near(changed > 1e-5, 2)].any()
        around = F.avg_pool2d(changed[:, None], 5, 1, 2, count_include_pad=False)[:, 0]
        assert float(around[drawn.masks == 0].max()) <= 0.5 * VISIBLE + 1e-5
        assert float(around[drawn.masks == 1].min()) >= 1.5 * VISIBLE - 1e-5

    @each_kind
    def test_what_has_hardly_changed_is_doubtful(self, kind: str) -> None:
        images = parts(8, (128, 128))
        drawn = draw(images, [kind])
        visible, doubtful = drawn.labels()
        assert float((visible + doubtful).max()) <= 1
        assert not doubtful[visible == 1].any()
        for each in (visible, doubtful):
            assert not each[~near(change(images, drawn) > 1e-5, 2)].any()
        some = (doubtful > 0) & (visible > 0)
        torch.testing.assert_close((visible + doubtful)[some], torch.ones(int(some.sum())))

    def test_a_fine_line_is_marked_if_its_contrast_is_high_enough(self) -> None:
        image = torch.full((1, 3, 32, 32), 128.0)
        for contrast, marked, doubtful in ((0.02, False, True), (0.3, True, False)):
            line = torch.zeros(1, 32, 32)
            line[:, 16, 4:28] = contrast
            visible, hardly = DrawnDefects(image, line).labels()
            assert bool((visible[0, 16, 6:26] == 1).all()) == marked
            assert bool((hardly[0, 16, 6:26] > 0.9).all()) == doubtful
        assert not any(each.any() for each in DrawnDefects(image, torch.zeros(1, 32, 32)).labels())

    @each_kind
    def test_most_of_the_image_is_as_it_was(self, kind: str) -> None:
        images = parts(8, (128, 128))
        changed = change(images, draw(images, [kind])) > 1 / 255
        window = Sizes().window((128, 128)) ** 2
        for index, one in enumerate(changed):  # the first half of the images has two defects
            assert int(one.sum()) <= window * (2 if index < 4 else 1)
        assert float(changed.float().mean()) < 0.2

    def test_no_defect_is_longer_than_its_window(self) -> None:
        images = parts(24, (120, 160))
        sizes = Sizes(smallest=4, largest=1 / 8)
        drawn = draw(images, ["paint"], sizes=sizes)
        for one in (change(images, drawn) > 1e-5)[12:]:
            rows, columns = one.nonzero(as_tuple=True)
            assert max(int(rows.max() - rows.min()), int(columns.max() - columns.min())) < sizes.window((120, 160))

    def test_larger_sizes_make_larger_defects(self) -> None:
        images = parts(24, (128, 128))
        small, large = (
            float(draw(images, ["paint"], sizes=sizes).masks.mean())
            for sizes in (Sizes(largest=1 / 24), Sizes(smallest=16, largest=1 / 5))
        )
        assert 0 < 3 * small < large


class TestScratches:
    def test_they_are_slim(self) -> None:
        images = torch.full((24, 3, 256, 256), 128.0)
        drawn = draw(images, ["scratch"], rounds=(1.0,))
        marked = [mask for mask in drawn.labels()[0] if int((mask > 0.5).sum()) > 60]
        assert len(marked) > 4
        assert statistics.median(slimness(mask) for mask in marked) > 3

    def test_some_are_darker_some_lighter_some_faint(self) -> None:
        images = torch.full((48, 3, 128, 128), 128.0)
        drawn = draw(images, ["scratch"], rounds=(1.0,))
        extreme = [(float(one.min()) - 128, float(one.max()) - 128) for one in drawn.images]
        assert sum(low < -8 for low, _ in extreme) > 8
        assert sum(high > 8 for _, high in extreme) > 8
        assert sum(max(-low, high) < 25 for low, high in extreme) > 8


class TestPlausible:
    def test_defects_lie_on_the_part_rather_than_beside_it(self) -> None:
        images, disc = parts_on_a_table(48)
        marked = draw(images, ["paint"]).masks.sum(0)
        assert float(marked[disc].mean()) > 2 * float(marked[~disc].mean())

    @pytest.mark.parametrize("kind", ["hole", "crack", "colour", "missing"])
    def test_the_table_beside_the_part_is_not_damaged(self, kind: str) -> None:
        images, disc = parts_on_a_table(24)
        changed = change(images, draw(images, [kind])) > 0.1
        assert changed.any()
        assert not changed[:, ~near(disc[None], 5)[0]].any()

    @pytest.mark.parametrize("kind", ["hole", "crack", "colour", "missing"])
    def test_a_texture_has_no_table(self, kind: str) -> None:
        cloth = 128 + 25 * torch.randn(12, 3, 96, 96, generator=torch.Generator().manual_seed(1))
        masks = draw(cloth.clamp(0, 255), [kind], sizes=Sizes(smallest=4)).masks
        assert int((masks > 0.5).flatten(1).any(1).sum()) >= 9

    def test_holes_are_dark(self) -> None:
        images, _ = parts_on_a_table(24)
        drawn = draw(images, ["hole"])
        assert float(drawn.images.mean(1)[drawn.masks == 1].median()) < 0.5 * PART

    def test_cracks_are_dark_on_a_bright_part_and_pale_on_a_dark_one(self) -> None:
        images, _ = parts_on_a_table(24)
        for pictures, sign in ((images, -1), (255 - images.flip(0) - 40, 1)):
            drawn = draw(pictures, ["crack"])
            assert float((sign * (drawn.images - pictures).mean(1))[drawn.masks > 0.5].mean()) > 0

    def test_cracks_are_slim_and_holes_are_not(self) -> None:
        images, _ = parts_on_a_table(48, 192)
        slim = {}
        for kind in ("crack", "hole"):
            masks = draw(images, [kind], sizes=Sizes(smallest=3)).masks[24:]
            slim[kind] = np.median([slimness(mask) for mask in masks if (mask > 0.5).any()])
        assert slim["crack"] > 1.5 * slim["hole"]

    def test_where_a_part_is_missing_one_sees_what_is_around_it(self) -> None:
        images, _ = parts_on_a_table(24)
        drawn = draw(images, ["missing"])
        assert abs(float(drawn.images.mean(1)[drawn.masks == 1].median()) - BACKGROUND) < 15

    def test_a_foreign_colour_is_as_bright_as_before(self) -> None:
        images, _ = parts_on_a_table(24)
        drawn = draw(images, ["colour"], sizes=Sizes(smallest=8))
        brightness = (drawn.images - images).mean(1)[drawn.masks == 1]
        assert abs(float(brightness.mean())) < 12
        assert float(change(images, drawn)[drawn.masks == 1].mean()) > 0.08


class TestBend:
    """A part turned about itself."""

    CENTRE = 64.0

    def bent(self, pictures: Tensor) -> tuple[Site, Fill]:
        """Pictures (N, 3, 128, 128) in 0 … 1 with a bent part in the middle."""
        dice, size = RandomStream(torch.Generator().manual_seed(0), pictures.device), (128, 128)
        centre = torch.full((len(pictures), 2), self.CENTRE)
        window = Window.around(centre, 64, size)
        shapes = draw_shapes(centre, window, dice, 6.0, 24.0, 0.5, ["bend"] * len(pictures))
        site = Site(pictures, shapes, window, pictures, place_weights(pictures), dice)
        return site, bend(site)

    def test_nothing_moves_outside_the_shape(self) -> None:
        site, fill = self.bent(mosaics(8) / 255)
        moved = (fill.picture - site.images).abs().amax(1)
        assert float(moved[site.shapes.depth >= 0].max()) < 1e-3

    def test_inside_something_does(self) -> None:
        site, fill = self.bent(mosaics(8) / 255)
        moved = (fill.picture - site.images).abs().amax(1) > 0.1
        for one, depth in zip(moved, site.shapes.depth, strict=True):
            assert float(one[depth < -0.5].float().mean()) > 0.2

    def test_rings_look_the_same_when_they_are_turned(self) -> None:
        axis = torch.arange(128) - self.CENTRE
        rings = 0.5 + 0.3 * torch.sin((axis[:, None] ** 2 + axis**2).sqrt() / 6)
        site, fill = self.bent(rings.expand(8, 3, 128, 128).contiguous())
        shade = fill.picture / site.images
        assert 0.83 < float(shade.min()) < float(shade.max()) < 1.17, "a little lighter or darker at most"

    def test_a_picture_is_as_it_was_away_from_it(self) -> None:
        images = mosaics(12)
        drawn = draw(images, ["bend"], sizes=Sizes(smallest=4), rounds=(1.0,))
        changed = change(images, drawn)
        side = Sizes().window((128, 128))
        for one in changed:
            assert float(one.max()) > 0.1
            rows, columns = (one > 1e-4).nonzero(as_tuple=True)
            assert max(int(rows.max() - rows.min()), int(columns.max() - columns.min())) < side


class TestPlaces:
    """Where defects are drawn."""

    @pytest.fixture(scope="class")
    @classmethod
    def weights(cls) -> Tensor:
        """(16, 16) of a picture of an even grey but for a textured cell at (3, 3) and five by five at (8, 8)."""
        texture = torch.rand(3, 256, 256, generator=torch.Generator().manual_seed(0))
        cells = torch.zeros(16, 16)
        cells[3, 3] = 1
        cells[8:13, 8:13] = 1
        where = cells.repeat_interleave(16, 0).repeat_interleave(16, 1) > 0
        return place_weights(torch.where(where, texture, 0.5)[None])[0]

    def test_on_texture_rather_than_on_nothing(self, weights: Tensor) -> None:
        assert float(weights[10, 10]) > 10 * float(weights[0, 0])
        assert float(weights.min()) > 0

    def test_by_itself_rather_than_amid_other_texture(self, weights: Tensor) -> None:
        assert float(weights[3, 3]) > 3 * float(weights[10, 10])

    def test_the_more_there_is_nothing_around_it(self, weights: Tensor) -> None:
        amid, edge, corner, alone = (float(weights[at]) for at in ((10, 10), (8, 10), (8, 8), (3, 3)))
        assert amid < edge < corner < alone

    def test_an_even_texture_has_no_edges(self) -> None:
        weights = place_weights(torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(0)))
        assert float(weights.max()) < 1.5 * float(weights.min())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestGraph:
    @each_kind
    def test_drawing_can_be_captured(self, kind: str) -> None:
        images = parts(4).cuda()
        generator = torch.Generator("cuda").manual_seed(0)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            draw_defects(images, images, generator, [kind])
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            drawn = draw_defects(images, images, generator, [kind])
        graph.replay()
        first = drawn.images.clone()
        graph.replay()
        assert not torch.equal(drawn.images, first)
