from __future__ import annotations

import pytest
import torch

import study
from patchsvdd.config import preset


def pictures(labels: list[bool], marked: list[bool]) -> study.Pictures:
    """Test images (T, 3, 8, 8) of which some have a mask of four pixels."""
    count = len(labels)
    masks = torch.zeros(count, 8, 8, dtype=torch.bool)
    masks[torch.tensor(marked), 2:4, 2:4] = True
    known = ~torch.tensor(labels) | torch.tensor(marked)
    empty = torch.zeros(count, 3, 8, 8, dtype=torch.uint8)
    weights = torch.full((int(masks.sum()),), 0.25, dtype=torch.float64)
    return study.Pictures(empty, empty, torch.tensor(labels), masks, known, weights)


def maps(labels: list[bool]) -> torch.Tensor:
    found = torch.rand(len(labels), 8, 8, generator=torch.Generator().manual_seed(0))
    found[torch.tensor(labels), 2:4, 2:4] += 2
    return found


class TestMetrics:
    def test_all_labels(self) -> None:
        labels = [False, True, True]
        found = study.test_metrics(pictures(labels, labels), maps(labels))
        assert found == {"detection_auroc": 1.0, "segmentation_auroc": 1.0, "aupro": 1.0}

    def test_no_good_images(self) -> None:
        labels = [True, True]
        found = study.test_metrics(pictures(labels, labels), maps(labels))
        assert found["detection_auroc"] is None
        assert found["segmentation_auroc"] == 1.0

    def test_no_masks(self) -> None:
        labels = [False, True]
        found = study.test_metrics(pictures(labels, [False, False]), maps(labels))
        assert found == {"detection_auroc": 1.0, "segmentation_auroc": None, "aupro": None}

    def test_a_defect_without_a_mask_is_no_good_ground(self) -> None:
        labels = [False, True, True]
        found = study.test_metrics(pictures(labels, [False, True, False]), maps(labels))
        assert found["segmentation_auroc"] == 1.0


@pytest.mark.parametrize("setting", study.SETTINGS)
def test_every_setting_can_be_used(setting: str) -> None:
    config = study.Job("part", setting, 3).config(None)
    assert config.seed == 3
    assert config.steps is not None
    assert study.Job("part", setting, 3).config(5).steps == 5


def test_no_setting_is_there_twice() -> None:
    configs = [study.Job("part", setting, 0).config(None) for setting in study.SETTINGS]
    assert len(set(configs)) == len(configs)
    assert preset("encoder", **study.BASE) == configs[0]


def test_files_are_named_after_their_job() -> None:
    names = {study.Job("part", setting, 0).file_name for setting in study.SETTINGS}
    assert len(names) == len(study.SETTINGS)
    assert study.Job("part", "lamp .5, lambda 1", 2).file_name == "part-lamp-.5-lambda-1-2.safetensors"
