"""Train on good images, inspect new ones, and ask why an image is anomalous.

python examples/train_and_inspect.py [OUTPUT_FOLDER]
"""

import sys
from pathlib import Path

from patchsvdd import PatchSVDD
from sample_images import write_flanges

work = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
good = write_flanges(work / "good", 12)
new = write_flanges(work / "new", 3, first_seed=100)
write_flanges(work / "new" / "scratched", 2, first_seed=200, scratched=True)

# A short training, so that the example ends in seconds. For your own images, use PatchSVDD.fit(good).
detector = PatchSVDD.fit(good, preset="encoder", image_size=96, steps=5, stop="end", synthetic_defects=30, device="cpu")
detector.save(work / "model")

for inspection in detector.inspect_many(new):
    print(f"{inspection.name}: {inspection.verdict}, p = {inspection.p_value:.2f}")
    for region in inspection.regions:
        print(f"  region {region.box}, {region.area} pixels")

inspection = detector.inspect(new / "scratched" / "000.png")
print(inspection.explain().in_words())
