"""Files of labels in the tools that they are for: pycocotools, and Label Studio's own package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings

from patchsvdd.images.labels.files import write_labels
from patchsvdd.images.labels.label_file import Labels
from patchsvdd.images.labels.label_studio import write_label_studio
from patchsvdd.images.labels.run_lengths import counts_of, counts_to_text, pack_brush, unpack_brush
from patchsvdd.images.labels.shapes import Box, Brush, LabelledImage, Polygon, Size
from support.random_labels import SIZES, labelled_images, masks

EXAMPLES = (
    LabelledImage(
        "line 1/a.png",
        (20, 30),
        (
            Polygon((((1.0, 2.0), (20.0, 3.0), (9.0, 14.0)),)),
            Box(3, 4, 20, 9, "Kratzer ü"),
            Brush.of(np.eye(20, 30, dtype=bool)),
        ),
        True,
    ),
    LabelledImage("b.png", (20, 30)),
    LabelledImage("c.png", None),
)
PERCENT = {"type": "number", "minimum": 0, "maximum": 100}
VALUES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "polygonlabels": (["points"], {"points": {"items": {"prefixItems": [PERCENT, PERCENT], "minItems": 2}}}),
    "rectanglelabels": (
        ["x", "y", "width", "height", "rotation"],
        dict.fromkeys(("x", "y", "width", "height"), PERCENT) | {"rotation": {"type": "number"}},
    ),
    "brushlabels": (
        ["format", "rle"],
        {"format": {"const": "rle"}, "rle": {"items": {"type": "integer", "minimum": 0, "maximum": 255}}},
    ),
}
TASKS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["id", "data", "annotations"],
        "properties": {
            "data": {"type": "object", "required": ["image"], "properties": {"image": {"type": "string"}}},
            "annotations": {
                "items": {
                    "required": ["result"],
                    "properties": {
                        "result": {
                            "items": {
                                "required": ["id", "type", "from_name", "to_name", "value"],
                                "allOf": [
                                    {
                                        "if": {"properties": {"type": {"const": name}}},
                                        "then": {
                                            "required": ["original_width", "original_height", "image_rotation"],
                                            "properties": {
                                                "value": {"required": [*needed, name], "properties": properties}
                                            },
                                        },
                                    }
                                    for name, (needed, properties) in VALUES.items()
                                ],
                            }
                        }
                    },
                }
            },
        },
    },
}
"""Tasks and regions as in Label Studio's documentation of its export."""

Mask = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
NO_COCO = "masks are compared with pycocotools"
NO_STUDIO = "tasks are compared with Label Studio's package: pip install label-studio-sdk"
INTERFACE = """
<View>
  <Image name="image" value="$image"/>
  <Choices name="verdict" toName="image"><Choice value="good"/><Choice value="defect"/></Choices>
  <RectangleLabels name="rectangle" toName="image">{labels}</RectangleLabels>
  <PolygonLabels name="polygon" toName="image">{labels}</PolygonLabels>
  <BrushLabels name="brush" toName="image">{labels}</BrushLabels>
</View>
"""


def near_outline(polygon: Polygon, size: Size, reach: float) -> Mask:
    """The pixels whose centres are near an edge of a polygon."""
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    near = np.zeros(size, bool)
    for ring in polygon.rings:
        for (x0, y0), (x1, y1) in zip(ring, [*ring[1:], ring[0]], strict=True):
            length = max((x1 - x0) ** 2 + (y1 - y0) ** 2, 1e-12)
            along = np.clip(((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length, 0, 1)
            near |= np.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0)) <= reach
    return near


class TestPycocotools:
    def test_it_reads_our_file_and_draws_the_same_masks(self, tmp_path: Path) -> None:
        coco = pytest.importorskip("pycocotools.coco", reason=NO_COCO)
        blob = np.hypot(*(np.mgrid[:60, :80] - np.array([30, 40])[:, None, None])) < 12
        polygon = Polygon((((5.5, 4.25), (60.0, 9.0), (33.0, 51.0)), ((70.0, 2.0), (78.0, 2.0), (74.0, 9.0))), "dent")
        shapes = (polygon, Box(3, 4, 20, 9, "box"), Brush.of(blob, "blob"))
        images = [LabelledImage("a.png", (60, 80), shapes, True), LabelledImage("b.png", (60, 80))]
        write_labels(Labels(images), tmp_path / "coco.json", "coco")
        read = coco.COCO(str(tmp_path / "coco.json"))
        assert [entry["file_name"] for entry in read.loadImgs(read.getImgIds())] == ["a.png", "b.png"]
        assert read.getAnnIds(imgIds=[2]) == []
        found = {read.loadCats(one["category_id"])[0]["name"]: one for one in read.loadAnns(read.getAnnIds(imgIds=[1]))}
        for shape in shapes:
            ours, theirs = shape.mask((60, 80)), read.annToMask(found[shape.kind]).astype(bool)
            if isinstance(shape, Polygon):  # it rounds corners to a fifth of a pixel
                assert not ((ours != theirs) & ~near_outline(shape, (60, 80), 0.5)).any()
                assert (ours & theirs).sum() / (ours | theirs).sum() > 0.98
            else:
                assert (ours == theirs).all()
            assert found[shape.kind]["area"] == ours.sum()

    @given(SIZES.flatmap(masks))
    def test_run_lengths_are_its_own(self, mask: Mask) -> None:
        tool = pytest.importorskip("pycocotools.mask", reason=NO_COCO)
        theirs = tool.encode(np.asfortranarray(mask.astype(np.uint8)))
        assert counts_to_text(counts_of(mask)) == theirs["counts"].decode()

    @given(labelled_images())
    @settings(max_examples=30)
    def test_polygons_differ_at_their_outlines_only(self, image: LabelledImage) -> None:
        tool = pytest.importorskip("pycocotools.mask", reason=NO_COCO)
        assert image.size is not None
        for shape in image.shapes:
            if isinstance(shape, Polygon):
                flat = [[value for point in ring for value in point] for ring in shape.rings]
                theirs = tool.decode(tool.merge(tool.frPyObjects(flat, *image.size))).astype(bool)
                assert not ((shape.mask(image.size) != theirs) & ~near_outline(shape, image.size, 0.8)).any()


class TestLabelStudio:
    @given(SIZES.flatmap(masks))
    @settings(max_examples=15)
    def test_it_unpacks_our_brushes_and_we_unpack_its_own(self, mask: Mask) -> None:
        tool = pytest.importorskip("label_studio_sdk.converter.brush", reason=NO_STUDIO)
        theirs = tool.decode_rle(pack_brush(mask)).reshape(*mask.shape, 4)[:, :, 3]
        assert (theirs == mask * np.uint8(255)).all()
        size = mask.shape[0], mask.shape[1]
        assert (unpack_brush(tool.mask2rle(mask.astype(np.uint8) * 255), size) == mask).all()

    def test_its_interface_accepts_our_tasks(self) -> None:
        interface = pytest.importorskip("label_studio_sdk.label_interface", reason=NO_STUDIO).LabelInterface
        checker = interface(INTERFACE.format(labels='<Label value="defect"/><Label value="Kratzer ü"/>'))
        for task in json.loads(json.dumps(write_label_studio(EXAMPLES))):
            for annotation in task["annotations"]:
                assert checker.validate_prediction(annotation, return_errors=True) == []  # as annotations, with reasons

    def test_tasks_are_as_its_documentation_describes_them(self) -> None:
        validator = jsonschema.Draft202012Validator(TASKS)
        tasks = json.loads(json.dumps(write_label_studio(EXAMPLES)))
        assert list(validator.iter_errors(tasks)) == []
        value = tasks[0]["annotations"][0]["result"][1]["value"]
        value["points"][0] = [101, 50]
        assert len(list(validator.iter_errors(tasks))) == 1
