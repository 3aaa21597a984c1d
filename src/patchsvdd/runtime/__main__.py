"""Inspect images from the command line: ``python -m patchsvdd.runtime part.onnx image.png``."""

from __future__ import annotations

import argparse
import json
import sys

from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.runtime import Detector
from patchsvdd.runtime.contract import About
from patchsvdd.runtime.detector import FEW
from patchsvdd.scoring.inspection import Inspection


def main(arguments: list[str] | None = None) -> int:
    """Inspect images and print one line for each, or describe the file; return 0 if all succeeded, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m patchsvdd.runtime",
        description="Inspect images with an exported detector.",
        epilog="Example: python -m patchsvdd.runtime part.onnx photos/new/0001.png --threshold 7.5",
    )
    parser.add_argument("model", help="file written by patchsvdd export (.onnx or .openvino)")
    parser.add_argument("images", nargs="*", help="image files")
    parser.add_argument("--threshold", type=float, help="scores above it are anomalous; default: the file's threshold")
    parser.add_argument("--json", action="store_true", help="one JSON object per image")
    parser.add_argument("--about", action="store_true", help="print what the file holds, instead of inspecting images")
    options = parser.parse_args(arguments)
    if bool(options.images) == options.about:
        parser.error("give images to inspect, or --about")
    failed = False
    try:
        detector = Detector(options.model, few=len(options.images) < FEW)
    except PatchSVDDError as error:
        return _fail(error)
    if options.about:
        facts = _facts(detector.about)
        lines = [json.dumps(facts)] if options.json else [f"{name}: {value}" for name, value in facts.items()]
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    for image in options.images:
        try:
            inspection = detector.inspect(image, threshold=options.threshold)
        except PatchSVDDError as error:
            failed = bool(_fail(error))
            continue
        sys.stdout.write((json.dumps(inspection.to_json()) if options.json else _line(inspection)) + "\n")
    return int(failed)


def _facts(about: About) -> dict[str, object]:
    """What the file holds, and what to expect of its threshold; what is not known is None."""
    calibration = about.calibration
    return {
        "identity": about.identity,
        "height": about.image_size[0],
        "width": about.image_size[1],
        "resize": about.resize,
        "fit": about.fit,
        "pixel_scale": about.pixel_scale,
        "memory": about.memory,
        "search": about.search,
        "threshold": None if calibration is None else calibration.threshold,
        "outline": None if calibration is None else calibration.outline,
        "outline_share": None if calibration is None else calibration.region_share,
        "aim": None if calibration is None else calibration.aim,
        "false_alarm_rate": None if calibration is None else calibration.false_alarm_rate,
        "estimated_miss_rate": about.miss_rate,
        "expectation": None if calibration is None else calibration.sentence,
    }


def _line(result: Inspection) -> str:
    boxes = " ".join("x".join(map(str, region.box)) for region in result.regions)
    p_value = "" if result.p_value is None else f"  p {result.p_value:.3g}"
    return f"{result.verdict:9}  {result.score:.6g} of {result.threshold:.6g}{p_value}  {result.name}  {boxes}".rstrip()


def _fail(error: Exception) -> int:
    sys.stderr.write(f"error: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
