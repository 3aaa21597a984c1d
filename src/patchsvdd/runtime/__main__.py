"""Inspect images from the command line: ``python -m patchsvdd.runtime part.onnx image.png``."""

from __future__ import annotations

import argparse
import json
import sys

from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.runtime import Detector
from patchsvdd.scoring.inspection import Inspection


def main(arguments: list[str] | None = None) -> int:
    """Inspect images and print one line for each; return 0 if all succeeded, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m patchsvdd.runtime",
        description="Inspect images with an exported detector.",
        epilog="Example: python -m patchsvdd.runtime part.onnx photos/new/0001.png --threshold 7.5",
    )
    parser.add_argument("model", help="file written by patchsvdd export (.onnx or .openvino)")
    parser.add_argument("images", nargs="+", help="image files")
    parser.add_argument("--threshold", type=float, help="scores above it are anomalous; default: the file's threshold")
    parser.add_argument("--json", action="store_true", help="one JSON object per image")
    options = parser.parse_args(arguments)
    failed = False
    try:
        detector = Detector(options.model)
    except PatchSVDDError as error:
        return _fail(error)
    for image in options.images:
        try:
            inspection = detector.inspect(image, threshold=options.threshold)
        except PatchSVDDError as error:
            failed = bool(_fail(error))
            continue
        sys.stdout.write((json.dumps(inspection.to_json()) if options.json else _line(inspection)) + "\n")
    return int(failed)


def _line(result: Inspection) -> str:
    boxes = " ".join("x".join(map(str, region.box)) for region in result.regions)
    p_value = "" if result.p_value is None else f"  p {result.p_value:.3g}"
    return f"{result.verdict:9}  {result.score:.6g} of {result.threshold:.6g}{p_value}  {result.name}  {boxes}".rstrip()


def _fail(error: Exception) -> int:
    sys.stderr.write(f"error: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
