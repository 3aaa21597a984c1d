"""Labels in the formats of COCO, LabelMe and Label Studio, and as masks."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from patchsvdd.core.errors import ConfigError, DatasetError, OutputError
from patchsvdd.images.labels.coco import write_coco
from patchsvdd.images.labels.files import match_images, parse_labels, read_labels, write_labels
from patchsvdd.images.labels.label_file import Format, Labels, as_format, image_name
from patchsvdd.images.labels.label_studio import write_label_studio
from patchsvdd.images.labels.labelme import write_labelme
from patchsvdd.images.labels.names import ImageNames
from patchsvdd.images.labels.run_lengths import (
    counts_from_text,
    counts_of,
    counts_to_text,
    mask_from_counts,
    pack_brush,
    unpack_brush,
)
from patchsvdd.images.labels.shapes import Box, Brush, LabelledImage, Polygon, mask_of
from support.parts import draw_part, save_picture
from support.random_labels import SIZES, labelled_images, masks

FORMATS: tuple[Format, ...] = ("coco", "labelme", "label-studio")
FIELDS = [
    *("images", "annotations", "categories", "shapes", "imagePath", "data", "image", "result", "value", "id"),
    *("points", "segmentation", "counts", "size", "bbox", "type", "shape_type", "height", "width", "flags"),
]
"""Names of fields that the formats have."""
WIDE = (20, 30)
CORNER = Polygon((((2.0, 3.0), (12.0, 3.0), (12.0, 9.0)),), "scratch")
LABELLED = LabelledImage("crack/000.png", WIDE, (CORNER, Box(1, 1, 4, 3)), True)
GOOD = LabelledImage("good/000.png", WIDE)


def written(image: LabelledImage, to: Format) -> Any:
    """The content of a file with the labels of one image, after it was text."""
    if to == "labelme":
        content: Any = write_labelme(image)
    else:
        content = write_coco([image]) if to == "coco" else write_label_studio([image])
    return json.loads(json.dumps(content))


def parsed(data: Any) -> Labels:
    labels = Labels()
    parse_labels(data, "file.json", labels)
    return labels


class TestMasks:
    def test_a_pixel_counts_if_its_centre_is_inside(self) -> None:
        assert np.argwhere(Box(1, 1, 3, 2).mask((4, 4))).tolist() == [[1, 1], [1, 2]]
        assert int(Box(0.6, 0.6, 2.4, 2.4).mask((4, 4)).sum()) == 1
        assert not Box(1.6, 1.6, 2.4, 2.4).mask((4, 4)).any()

    def test_a_triangle(self) -> None:
        mask = Polygon((((0, 0), (4, 0), (0, 4)),)).mask((4, 4))
        assert mask.astype(int).tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]

    def test_a_ring_that_crosses_itself_follows_the_even_odd_rule_and_rings_are_united(self) -> None:
        square = ((0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (0.0, 4.0))
        assert not Polygon(((*square, *square),)).mask((4, 4)).any()
        assert Polygon((square, square)).mask((4, 4)).all()

    def test_what_reaches_out_of_the_image_is_cut(self) -> None:
        assert Box(-5, -5, 50, 2).mask((4, 4)).sum() == 8
        assert Brush.of(np.ones((3, 3), bool), at=(-1, 2)).mask((4, 4)).nonzero()[0].tolist() == [2, 2, 3, 3]

    @given(st.data())
    def test_a_polygon_covers_the_pixels_whose_centres_are_inside(self, data: st.DataObject) -> None:
        points = data.draw(st.lists(st.tuples(st.floats(-3, 12), st.floats(-3, 12)), min_size=3, max_size=8))
        mask = Polygon((tuple(points),)).mask((9, 9))
        for y, x in np.ndindex(9, 9):
            crossings = 0
            for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
                if (y0 <= y + 0.5) != (y1 <= y + 0.5):
                    low, high = ((x0, y0), (x1, y1)) if y0 < y1 else ((x1, y1), (x0, y0))
                    at = low[0] + (y + 0.5 - low[1]) * ((high[0] - low[0]) / (high[1] - low[1]))
                    if abs(at - x - 0.5) < 1e-9:
                        break
                    crossings += at < x + 0.5
            else:
                assert mask[y, x] == crossings % 2

    def test_a_brush_is_cropped_to_its_pixels(self) -> None:
        mask = np.zeros((20, 30), bool)
        mask[4:6, 7:10] = True
        brush = Brush.of(mask)
        assert (brush.left, brush.top, brush.pixels.size) == (7, 4, (2, 3))
        assert (brush.mask((20, 30)) == mask).all()
        with pytest.raises(ValueError, match="empty"):
            Brush.of(np.zeros((3, 3), bool))


class TestRunLengths:
    @given(SIZES.flatmap(masks))
    def test_counts_are_exact(self, mask: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> None:
        counts = counts_of(mask)
        assert (mask_from_counts(counts, (mask.shape[0], mask.shape[1])) == mask).all()
        assert counts_from_text(counts_to_text(counts)) == counts

    @given(st.lists(st.integers(0, 2**31), max_size=20))
    def test_text_of_counts_is_exact(self, counts: list[int]) -> None:
        assert counts_from_text(counts_to_text(counts)) == counts

    @given(SIZES.flatmap(masks))
    def test_brushes_are_exact(self, mask: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> None:
        packed = pack_brush(mask)
        assert all(0 <= one < 256 for one in packed)
        assert (unpack_brush(packed, (mask.shape[0], mask.shape[1])) == mask).all()

    def test_runs_longer_than_the_widest_length(self) -> None:
        mask = np.ones((300, 400), bool)
        mask[0, 0] = False
        assert (unpack_brush(pack_brush(mask), (300, 400)) == mask).all()

    @pytest.mark.parametrize("text", ["~", "\x10", "0o", "oooooooooooo", "ü"])
    def test_damaged_text_is_an_error(self, text: str) -> None:
        with pytest.raises(ValueError, match="its counts"):
            counts_from_text(text)

    @given(st.binary(max_size=60))
    def test_damaged_brushes_are_errors(self, data: bytes) -> None:
        for packed in (list(data), list((4 * 12).to_bytes(4, "big") + data)):
            try:
                assert unpack_brush(packed, (3, 4)).shape == (3, 4)
            except ValueError as error:
                assert "its brush" in str(error)  # noqa: PT017

    @pytest.mark.parametrize("counts", [[12, 1], [-1, 13], [True, 11], ["12"], [1.5, 10.5], [10**30]])
    def test_counts_that_do_not_fit_are_errors(self, counts: list[Any]) -> None:
        with pytest.raises(ValueError, match="its counts"):
            mask_from_counts(counts, (3, 4))


@pytest.mark.parametrize("to", FORMATS)
@given(image=labelled_images())
def test_formats_keep_mask_kinds_and_verdict(to: Format, image: LabelledImage) -> None:
    labels = parsed(written(image, to))
    assert labels.problems == []
    assert labels.formats == [to]
    (read,) = labels.images
    assert (read.size, read.is_defect, read.kinds) == (image.size, image.is_defect, image.kinds)
    assert read.name == (image.name if to != "labelme" else "000.png")
    assert image.size is not None
    for kind in image.kinds:
        of_kind = [[shape for shape in one.shapes if shape.kind == kind] for one in (image, read)]
        before, after = (mask_of(shapes, image.size) for shapes in of_kind)
        if to == "label-studio":  # percents, rounded to a millionth of a pixel
            assert (before != after).sum() <= 1
        else:
            assert (before == after).all()


class TestCoco:
    def content(self, **annotation: Any) -> dict[str, Any]:
        return {
            "images": [{"id": 1, "file_name": "a.png", "height": 20, "width": 30}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 7, **annotation}],
            "categories": [{"id": 7, "name": "dent"}],
        }

    def test_uncompressed_counts_boxes_and_kinds(self) -> None:
        mask = Box(3, 4, 8, 9).mask(WIDE)
        region = {"size": [20, 30], "counts": counts_of(mask)}
        (image,) = parsed(self.content(segmentation=region, iscrowd=1)).images
        assert (image.mask() == mask).all()
        assert image.kinds == ("dent",)
        (image,) = parsed(self.content(bbox=[3, 4, 5, 5])).images
        assert image.shapes == (Box(3, 4, 8, 9, "dent"),)

    def test_images_without_annotations_are_good(self) -> None:
        (image,) = parsed(self.content() | {"annotations": []}).images
        assert not image.is_defect

    @pytest.mark.parametrize(
        ("broken", "reason"),
        [
            ({"segmentation": [[1, 2, 3]]}, "not a list of x, y"),
            ({"segmentation": [[1, 2, 3, 4]]}, "3 to 100,000 points; it has 2"),
            ({"segmentation": [[1, 2, 3, 4, 5, "six"]]}, "not a number"),
            ({"segmentation": [[1, 2, 3, 4, 5, float("nan")]]}, "not possible"),
            ({"segmentation": [[50, 2, 53, 4, 55, 9]]}, "outside of the image of 30 x 20"),
            ({"segmentation": {"size": [20, 30], "counts": "1"}}, "cover 1 pixels, and 30 x 20 are 600"),
            ({"segmentation": {"size": [2, 3], "counts": [6]}}, "its mask has 3 x 2 pixels"),
            ({"segmentation": {"counts": [6]}}, "no size"),
            ({"segmentation": {"size": [20, 30]}}, "no counts"),
            ({"segmentation": {"size": [20, 30], "counts": [600]}}, "mask is empty"),
            ({"segmentation": "x"}, "neither polygons nor run lengths"),
            ({"bbox": [1, 2, 0, 4]}, "no area"),
            ({}, "neither a segmentation nor a box"),
        ],
    )
    def test_a_broken_annotation_is_reported_and_the_others_are_used(self, broken: dict[str, Any], reason: str) -> None:
        data = self.content(**broken)
        data["annotations"].append({"id": 2, "image_id": 1, "category_id": 7, "bbox": [0, 0, 2, 2]})
        labels = parsed(data)
        (problem,) = labels.problems
        assert problem.startswith("file.json: annotation 1 (a.png) was skipped: ")
        assert reason in problem
        assert labels.images[0].shapes == (Box(0, 0, 2, 2, "dent"),)

    def test_an_image_with_a_broken_annotation_only_is_not_good(self) -> None:
        (image,) = parsed(self.content()).images
        assert image.is_defect

    def test_annotations_of_no_image_are_reported(self) -> None:
        data = self.content(bbox=[0, 0, 2, 2])
        data["annotations"].append({"image_id": 5, "bbox": [0, 0, 2, 2]})
        assert parsed(data).problems == ["file.json: 1 annotations are of image 5, which is not in the file"]

    @pytest.mark.parametrize(
        ("entry", "reason"),
        [
            ({"id": 2}, "it names no image"),
            ({"id": 2, "file_name": "b.png", "height": 0, "width": 4}, "not possible"),
            ({"id": 2, "file_name": "b.png", "height": "x", "width": 4}, "not a pair of numbers"),
            ({"id": 2, "file_name": "a.png"}, "labelled twice"),
            (3, "it is not an object"),
        ],
    )
    def test_a_broken_image_is_reported(self, entry: Any, reason: str) -> None:
        data = self.content(bbox=[0, 0, 2, 2])
        data["images"].append(entry)
        labels = parsed(data)
        assert [image.name for image in labels.images] == ["a.png"]
        assert len(labels.problems) == 1
        assert reason in labels.problems[0]


class TestLabelMe:
    def content(self, *shapes: dict[str, Any]) -> dict[str, Any]:
        return {"imagePath": "..\\photos\\a.png", "imageHeight": 20, "imageWidth": 30, "shapes": list(shapes)}

    def test_circles_and_names(self) -> None:
        circle = {"label": "hole", "shape_type": "circle", "points": [[15, 10], [20, 10]]}
        (image,) = parsed(self.content(circle)).images
        assert image.name == "photos/a.png"
        assert abs(int(image.mask().sum()) - np.pi * 25) < 4
        assert image.mask()[10, 15]

    def test_masks_from_elsewhere(self) -> None:
        file = io.BytesIO()
        Image.fromarray(np.array([[255, 0], [0, 255]], np.uint8)).save(file, "PNG")
        text = base64.b64encode(file.getvalue()).decode()
        (image,) = parsed(
            self.content({"label": "x", "shape_type": "mask", "points": [[4, 5], [5, 6]], "mask": text})
        ).images
        assert np.argwhere(image.mask()).tolist() == [[5, 4], [6, 5]]

    @pytest.mark.parametrize(
        ("shape", "reason"),
        [
            ({"shape_type": "line", "points": [[1, 1], [2, 2]]}, "line is not an area"),
            ({"shape_type": "rectangle", "points": [[1, 1]]}, "needs 2 points; it has 1"),
            ({"shape_type": "circle", "points": [[1, 1], [1, 1]]}, "no area"),
            ({"shape_type": "mask", "points": [[1, 1], [2, 2]]}, "not in base 64"),
            ({"shape_type": "mask", "points": [[1, 1], [2, 2]], "mask": "AAAA"}, "not a PNG"),
            ({"shape_type": "mask", "points": [[1, 1], [200, 2]], "mask": "AAAA"}, "reaches out"),
            ({"shape_type": "polygon"}, "no points"),
            ({"label": "x" * 101, "points": [[1, 1], [2, 2], [3, 1]]}, "101 characters"),
        ],
    )
    def test_a_broken_shape_is_reported(self, shape: dict[str, Any], reason: str) -> None:
        labels = parsed(self.content({"label": "x", **shape}, {"label": "y", "points": [[1, 1], [4, 2], [3, 8]]}))
        assert labels.images[0].kinds == ("y",)
        (problem,) = labels.problems
        assert problem.startswith("file.json: shape 1 was skipped: ")
        assert reason in problem


class TestLabelStudio:
    def task(self, *results: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        whole = [{"original_width": 30, "original_height": 20, **result} for result in results]
        return [{"data": {"image": "/data/upload/3/1a2b3c4d-a%20b.png"}, "annotations": [{"result": whole}], **more}]

    def test_names(self) -> None:
        assert parsed(self.task()).images[0].name == "a b.png"
        assert parsed(self.task(file_upload="1a2b3c4d-c.png")).images[0].name == "c.png"
        assert parsed(self.task(data={"photo": "http://host/x/d.png?token=1"})).images == []  # not an image's ending
        assert parsed(self.task(data={"photo": "http://host/x/d.png"})).images[0].name == "x/d.png"
        local = {"image": "/data/local-files/?d=line%201/e.png"}
        assert parsed(self.task(data=local)).images[0].name == "line 1/e.png"

    def test_a_turned_rectangle(self) -> None:
        value = {"x": 50, "y": 50, "width": 20, "height": 20, "rotation": 90, "rectanglelabels": ["dent"]}
        (image,) = parsed(self.task({"type": "rectanglelabels", "value": value})).images
        assert (image.mask() == Box(11, 10, 15, 16).mask(WIDE)).all()  # 6 x 4 pixels, turned around (15, 10)

    def test_older_exports_predictions_and_several_annotations(self) -> None:
        (task,) = self.task()
        value = {"x": 0, "y": 0, "width": 50, "height": 50, "rectanglelabels": ["dent"]}
        box = {"type": "rectanglelabels", "original_width": 30, "original_height": 20, "value": value}
        old = {"data": task["data"], "completions": [{"result": [box]}], "predictions": [{"result": [box, box]}]}
        assert parsed([old]).images[0].shapes == (Box(0, 0, 15, 10, "dent"),)
        task["annotations"] = [
            {"result": [box], "updated_at": "2026-02-01"},
            {"result": [], "updated_at": "2026-01-01"},
            {"result": [], "was_cancelled": True, "updated_at": "2026-03-01"},
        ]
        labels = parsed([task])
        assert labels.images[0].is_defect
        assert labels.problems == ["file.json: task 1 (a b.png) has 2 annotations; the latest is used"]

    def test_tasks_that_are_not_annotated_are_not_good(self) -> None:
        labels = parsed([{"data": {"image": "a.png"}}, *self.task()])
        assert [image.name for image in labels.images] == ["a b.png"]
        assert labels.problems == ["file.json: 1 tasks are not annotated"]

    @pytest.mark.parametrize(
        ("result", "reason"),
        [
            ({"type": "ellipselabels", "value": {}}, "type ellipselabels is not supported"),
            ({"type": "polygonlabels", "value": {"points": [[1, 2], [3, 4]]}}, "3 to"),
            ({"type": "polygonlabels", "value": {"points": [1, 2, 3]}}, "not pairs"),
            ({"type": "polygonlabels", "original_width": None, "original_height": None, "value": {}}, "original_width"),
            ({"type": "brushlabels", "value": {"format": "png"}}, "not stored as run lengths"),
            ({"type": "brushlabels", "value": {"format": "rle", "rle": [0, 0, 0, 9]}}, "ends too early"),
            ({"type": "brushlabels", "value": {"format": "rle", "rle": [1, 300]}}, "list of bytes"),
            ({"type": "rectanglelabels", "value": {"x": "a"}}, "not a number"),
            ({"type": "rectanglelabels"}, "not an object with a value"),
        ],
    )
    def test_a_broken_region_is_reported(self, result: dict[str, Any], reason: str) -> None:
        labels = parsed(self.task(result))
        (problem,) = labels.problems
        assert problem.startswith("file.json: task 1 (a b.png): region 1 was skipped: ")
        assert reason in problem


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.sampled_from(["a.png", "polygon", "defect"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
        max_leaves=25,
    )
)
def test_any_json_is_read_or_refused_in_one_line(data: Any) -> None:
    labels = Labels()
    try:
        parse_labels(data, "file.json", labels)
    except DatasetError as error:
        assert "\n" not in str(error)  # noqa: PT017
    assert all("\n" not in problem for problem in labels.problems)


class TestFiles:
    @pytest.fixture
    def photos(self, tmp_path: Path) -> Path:
        for name in ("crack/000.png", "good/000.png", "good/001.png"):
            save_picture(tmp_path / "photos" / name, draw_part(1, WIDE))
        return tmp_path / "photos"

    @pytest.mark.parametrize("to", FORMATS)
    def test_files_are_read_as_they_were_written(self, tmp_path: Path, to: Format) -> None:
        out = tmp_path / "out"
        assert write_labels(Labels([LABELLED, GOOD]), out, to) == (2, [])
        labels = read_labels(out)
        assert labels.formats == [to]
        assert labels.problems == []
        assert sorted(labels.images, key=lambda image: image.name) == [LABELLED, GOOD]
        with pytest.raises(OutputError, match="exists"):
            write_labels(labels, out, to)
        assert write_labels(labels, out, to, overwrite=True)[0] == 2

    def test_masks_are_written_in_the_layout_and_read_back(self, photos: Path, tmp_path: Path) -> None:
        out = tmp_path / "part"
        unmarked = LabelledImage("crack/001.png", WIDE, (), True)
        number, problems = write_labels(Labels([LABELLED, GOOD, unmarked]), out, "masks")
        assert number == 1
        assert problems == ["crack/001.png: no mask was written, because nothing is marked in it"]
        with Image.open(out / "ground_truth" / "crack" / "000_mask.png") as mask:
            assert (np.asarray(mask) == LABELLED.mask() * np.uint8(255)).all()
        photos.rename(out / "test")
        read = read_labels(out)
        assert [(image.name, image.is_defect) for image in read.images] == [
            ("crack/000.png", True),
            ("good/000.png", False),
            ("good/001.png", False),
        ]
        assert (read.images[0].mask() == LABELLED.mask()).all()

    def test_masks_of_one_name_are_not_mixed_up(self, tmp_path: Path) -> None:
        images = [LabelledImage(name, WIDE, (CORNER,), True) for name in ("0.png", "0.jpg")]
        number, problems = write_labels(Labels(images), tmp_path / "out", "masks")
        assert (number, len(problems)) == (1, 1)
        assert (tmp_path / "out" / "ground_truth" / "scratch" / "0_mask.png").is_file()

    def test_images_and_labels_are_matched(self, photos: Path) -> None:
        labels = Labels(
            [
                LabelledImage("C/work/photos/crack/000.png", None, (CORNER,), True),
                LabelledImage("good/001.png", (5, 5)),
                LabelledImage("000.png", WIDE),
                LabelledImage("other/000.png", WIDE),
            ]
        )
        matched, without = match_images(labels, photos)
        assert [(image.name, image.size) for image in matched.images] == [("crack/000.png", WIDE)]
        assert without == ["good/000.png", "good/001.png"]
        assert "2 images have this name (crack/000.png, good/000.png)" in matched.problems[0]
        assert "there is no image of this name" in matched.problems[1]
        assert "labelled at 5 x 5 pixels, and the image has 30 x 20" in matched.problems[2]

    def test_labels_of_unknown_size_are_left_out_of_coco(self, tmp_path: Path) -> None:
        number, problems = write_labels(Labels([LABELLED, LabelledImage("b.png", None)]), tmp_path / "o.json", "coco")
        assert number == 1
        assert problems == ["b.png: the size of the image is not known; give the folder of the images"]

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("{", "is not a JSON file"),
            ("[]", "holds no labels in a known format"),
            ('{"images": 3, "annotations": []}', '"images" is not a list'),
            ('{"images": [], "annotations": []}', "no labelled image"),
            ('"' + "[" * 100_000, "is not a JSON file"),
            ("[" * 100_000, "is not a JSON file"),
        ],
    )
    def test_a_file_without_labels_is_an_error(self, tmp_path: Path, content: str, reason: str) -> None:
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(DatasetError, match=reason):
            read_labels(tmp_path / "a.json")

    def test_a_broken_file_among_many_is_reported(self, tmp_path: Path) -> None:
        write_labels(Labels([LABELLED]), tmp_path / "labels", "labelme")
        (tmp_path / "labels" / "a.json").write_text("{")
        labels = read_labels(tmp_path / "labels")
        assert labels.images == [LABELLED]
        assert len(labels.problems) == 1

    def test_folders_without_labels(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="no JSON file"):
            read_labels(tmp_path)
        with pytest.raises(DatasetError, match="no file or folder"):
            read_labels(tmp_path / "nowhere")


def test_names_are_those_of_images() -> None:
    assert image_name("C:\\photos\\a.png") == "photos/a.png"
    assert image_name("./x/../a.png") == "x/a.png"
    for nothing in ("", "  ", "..", None, 3):
        with pytest.raises(ValueError, match="names no image"):
            image_name(nothing)


def test_names_agree_in_the_folders_that_both_have() -> None:
    names = ImageNames(["a/0.png", "b/0.png", "0.png", "b/1.png"])
    assert names.matches("x/b/0.png") == ["b/0.png"]
    assert names.matches("1.png") == ["b/1.png"]
    assert names.matches("c/1.png") == []
    assert names.matches("c/0.png") == ["0.png"]


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(ConfigError, match="`to` must be coco, labelme, label-studio or masks; got 'yolo'"):
        as_format("yolo")
