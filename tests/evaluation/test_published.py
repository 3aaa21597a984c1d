from __future__ import annotations

import statistics

import pytest

from patchsvdd.evaluation.published import METHOD_OF, categories, kind_of, methods, published, published_for, source

OBJECTS = (
    *("bottle", "cable", "capsule", "hazelnut", "metal_nut"),
    *("pill", "screw", "toothbrush", "transistor", "zipper"),
)
TEXTURES = ("carpet", "grid", "leather", "tile", "wood")
BOTH = ("detection_auroc", "segmentation_auroc")


@pytest.mark.parametrize("category", OBJECTS + TEXTURES)
@pytest.mark.parametrize("table", ["patch_svdd", "random_encoder", "raw_patch"])
def test_every_category_has_both_values(table: str, category: str) -> None:
    values = published(table, category)
    assert tuple(values) == BOTH
    assert all(0.3 < value <= 1 for value in values.values())


@pytest.mark.parametrize("category", OBJECTS + TEXTURES)
def test_the_autoencoder_has_segmentation_only(category: str) -> None:
    assert tuple(published("l2_ae", category)) == ("segmentation_auroc",)


@pytest.mark.parametrize(("metric", "printed"), [("detection_auroc", 0.921), ("segmentation_auroc", 0.957)])
def test_the_printed_averages_are_the_means_of_the_rows(metric: str, printed: float) -> None:
    rows = [published("patch_svdd", category)[metric] for category in OBJECTS + TEXTURES]
    assert round(statistics.fmean(rows), 3) == printed
    assert published("average", "patch_svdd")[metric] == printed


@pytest.mark.parametrize(("table", "row"), [("losses", "patch-svdd"), ("hierarchy", "product")])
def test_the_whole_method_is_the_same_in_every_table(table: str, row: str) -> None:
    assert published(table, row) == published("average", "patch_svdd")


def test_some_printed_values() -> None:
    assert published("patch_svdd", "toothbrush") == {"detection_auroc": 1.0, "segmentation_auroc": 0.981}
    assert published("patch_svdd", "capsule") == {"detection_auroc": 0.767, "segmentation_auroc": 0.958}
    assert published("losses", "svdd") == {"detection_auroc": 0.703, "segmentation_auroc": 0.832}
    assert published_for("ssim-ae", "pill") == {"segmentation_auroc": 0.895}
    assert published_for("deep-svdd", "pill") == {}
    assert published_for("paper", "pill") == published_for("best", "pill") == published("patch_svdd", "pill")


def test_the_methods_of_table_1_and_later_ones() -> None:
    names = [one.name for one in methods()]
    assert names[:8] == ["Deep SVDD", "GEOM", "GANomaly", "ITAE", "L2-AE", "SSIM-AE", "VE-VAE", "VAE-Proj"]
    assert names[8:] == ["NSA", "DRAEM", "PatchCore"]
    assert set(METHOD_OF.values()) <= set(names)
    assert all("arXiv" in one.source for one in methods() if one.categories)


@pytest.mark.parametrize("name", [one.name for one in methods() if one.categories])
def test_the_average_of_a_method_is_the_mean_of_its_rows(name: str) -> None:
    method = next(one for one in methods() if one.name == name)
    assert sorted(method.categories) == sorted(OBJECTS + TEXTURES)
    for metric, printed in method.average.items():
        mean = statistics.fmean(row[metric] for row in method.categories.values())
        assert mean == pytest.approx(printed, abs=0.0006)
    assert all(set(row) == set(method.average) for row in method.categories.values())


def test_categories_are_objects_then_textures() -> None:
    assert tuple(categories()) == OBJECTS + TEXTURES


def test_ten_objects_and_five_textures() -> None:
    assert {kind_of(category) for category in OBJECTS} == {"object"}
    assert {kind_of(category) for category in TEXTURES} == {"texture"}
    assert (len(OBJECTS), len(TEXTURES)) == (10, 5)


@pytest.mark.parametrize("category", ["part", "Bottle", ""])
def test_other_categories_have_neither_kind_nor_values(category: str) -> None:
    assert kind_of(category) is None
    assert published("patch_svdd", category) == {}


def test_values_that_are_changed_do_not_stay_changed() -> None:
    published("patch_svdd", "bottle")["detection_auroc"] = 0.0
    assert published("patch_svdd", "bottle")["detection_auroc"] == 0.986


def test_the_source_is_the_paper() -> None:
    assert "Patch SVDD" in source()
    assert "2006.16067" in source()
