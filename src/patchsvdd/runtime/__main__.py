"""``python -m patchsvdd.runtime part.onnx image.png``."""

from __future__ import annotations

import argparse
import json
import sys

from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.runtime import Detector
from patchsvdd.scoring.inspection import Inspection


def main(arguments: list[str] | None = None) -> int:
    """Inspect images and write a line for each; 0 if all could be, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m patchsvdd.runtime",
        description="Inspect images with an exported detector.",
        epilog="Example: python -m patchsvdd.runtime part.onnx photos/new/0001.png --threshold 7.5",
    )
    parser.add_argument("model", help="file that patchsvdd export wrote (.onnx or .openvino)")
    parser.add_argument("images", nargs="+", help="image files")
    parser.add_argument("--threshold", type=float, help="scores above it are anomalous; the file's own by default")
    parser.add_argument("--json", action="store_true", help="one JSON object per image")
    wanted = parser.parse_args(arguments)
    failed = False
    try:
        detector = Detector(wanted.model)
    except PatchSVDDError as error:
        return _fail(error)
    for image in wanted.images:
        try:
            found = detector.inspect(image, threshold=wanted.threshold)
        except PatchSVDDError as error:
            failed = bool(_fail(error))
            continue
        sys.stdout.write((json.dumps(found.to_json()) if wanted.json else _line(found)) + "\n")
    return int(failed)


def _line(found: Inspection) -> str:
    boxes = " ".join("x".join(map(str, region.box)) for region in found.regions)
    rarity = "" if found.p_value is None else f"  p {found.p_value:.3g}"
    return f"{found.verdict:9}  {found.score:.6g} of {found.threshold:.6g}{rarity}  {found.name}  {boxes}".rstrip()


def _fail(error: Exception) -> int:
    sys.stderr.write(f"error: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
