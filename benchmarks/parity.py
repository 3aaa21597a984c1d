"""The authors' checkpoints in our code: AUROC of every scale and of the product.

    python benchmarks/parity.py IMAGES CHECKPOINTS --categories bottle,toothbrush --out benchmarks/results/parity.json

IMAGES/<category> is a category in MVTec layout (256 × 256, nearest-neighbour resize), CHECKPOINTS/<category>.pkl the
authors' encoder weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from patchsvdd import preset
from patchsvdd.core.device import choose_device
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.encoder.reference_weights import load_reference_encoder
from patchsvdd.evaluation.evaluate import evaluate
from patchsvdd.evaluation.published import published
from patchsvdd.images.loading import load_good_images
from record import circumstances, write_result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("--categories", default="bottle,toothbrush")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    config = preset("paper", resize="nearest")
    result: dict[str, Any] = {
        "command": "benchmarks/parity.py",
        **circumstances(choose_device(args.device)),
        "seed": config.seed,
        "categories": {},
    }
    for name in args.categories.split(","):
        images = load_good_images(args.images / name, config)
        encoder = load_reference_encoder(args.checkpoints / f"{name}.pkl", config)
        detector = PatchSVDD.fit_images(images, config, device=args.device, encoder=encoder)
        result["categories"][name] = {
            **evaluate(detector, args.images / name).to_json(),
            "published": published("patch_svdd", name),
        }
        write_result(args.out, result)
        print(name, result["categories"][name], flush=True)


if __name__ == "__main__":
    main()
