"""Export a model to one ONNX file and run it without PyTorch. Requires patchsvdd[deploy].

python examples/export_and_run.py [OUTPUT_FOLDER]
"""

import sys
from pathlib import Path

from patchsvdd import PatchSVDD
from patchsvdd.export.export import export
from patchsvdd.runtime import Detector
from sample_images import flange, write_flanges

work = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
good = write_flanges(work / "good", 12)

# A short training, so that the example ends in seconds. For your own images, use PatchSVDD.fit(good).
detector = PatchSVDD.fit(
    good, preset="encoder", image_size=96, steps=5, stop="end", synthetic_defects=30, device="cpu", search="exact"
)

# The file is compared with the model on these images and written only if both agree.
exported = export(detector, work / "flange.onnx", write_flanges(work / "new", 4, first_seed=100))
print(f"{exported.path.name}: {exported.bytes / 1e6:.1f} MB")

# From here on PyTorch is not needed: numpy, Pillow and onnxruntime are enough.
runner = Detector(exported.path)
for inspection in runner.inspect_many([flange(500), flange(501, scratched=True)]):
    print(f"{inspection.name}: {inspection.verdict}, {inspection.score / inspection.threshold:.2f} times the threshold")
