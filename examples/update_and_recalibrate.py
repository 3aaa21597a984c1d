"""Set a threshold from separate good images, add confirmed good images to the memory, and undo it.

python examples/update_and_recalibrate.py [OUTPUT_FOLDER]
"""

import sys
from pathlib import Path

from patchsvdd import PatchSVDD
from patchsvdd.detector.memory_update import add_images, undo
from patchsvdd.detector.recalibration import recalibrate
from sample_images import write_flanges

work = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
model = work / "model"
# A short training, so that the example ends in seconds, with a threshold for a false-alarm rate and without an estimate
# of misses. For your own images, use PatchSVDD.fit(folder).
detector = PatchSVDD.fit(
    write_flanges(work / "good", 12),
    preset="encoder",
    image_size=96,
    steps=5,
    stop="end",
    aim="few-alarms",
    synthetic_defects=0,
    device="cpu",
)
print(f"threshold after training: {detector.calibration.guarantee}")

# Twenty good images that the model has never seen support a false-alarm rate of 1/21. With 20 images, asking for 1 %
# would only use the highest score.
separate = write_flanges(work / "calibration", 20, first_seed=300)
recalibrate(detector, separate, false_alarm_rate=0.05)
detector.save(model)
print(f"threshold after calibration: {detector.calibration.guarantee}")

# The threshold stays as it is: a larger memory raises no score.
change = add_images(model, write_flanges(work / "confirmed", 4, first_seed=400), device="cpu")
print(f"added {len(change.images)} images; the memory now has {change.total}")

change = undo(model)
print(f"undone: {change.undone}; the memory has {change.total} images again")
