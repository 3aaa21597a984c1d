"""How far good images scatter around each normal patch, so that a distance is measured in units of its own place.

Some normal patches have a near twin in every other good image (a plain ground), others have none (a thread, a grain, a
printed letter). A defect on the ground may then lie nearer to the memory than a good thread does. The reach of a patch
is its distance to the nearest patch of another good image. Divided by the reach of the patch it was found at, a
distance says how unusual it is there. What a patch shows decides, not where it lies, so that parts may lie anyhow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.memory.bank import Memory, ScaleMemory

LEAST = 1e-6
"""Least unit of a distance, for good images that are all alike."""


def learn_local_scale(memory: Memory, on_progress: Callable[[int, int], None] | None = None) -> Memory:
    """The memory, which must be whole and of at least 2 images, with the reach of every patch.

    Thinning and choosing images keep it: it tells how far good images scatter, not how many patches were kept.
    """
    total, scales = len(memory.image_names) * len(memory.scales), {}
    for number, (size, scale) in enumerate(memory.scales.items()):

        def on_image(done: int, start: int = number * len(memory.image_names)) -> None:
            if on_progress is not None:
                on_progress(start + done, total)

        distances = distance_to_other_images(scale, on_image)
        scales[size] = scale.with_local_scale(local_scale_from(distances, scale.grid_shape))
    return Memory(memory.image_names, scales)


def distance_to_other_images(scale: ScaleMemory, on_image: Callable[[int], None] | None = None) -> Tensor:
    """Distance (M,) of every patch to the nearest one of another image."""
    images, counts = torch.unique_consecutive(scale.origins[:, 0].cpu(), return_counts=True)
    queries = torch.split(scale.embeddings, counts.tolist())
    shape = scale.grid_shape
    distances = []
    for done, (image, rows) in enumerate(zip(images.tolist(), queries, strict=True)):
        distances.append(scale.nearest(rows, image, shape)[0])
        if on_image is not None:
            on_image(done + 1)
    return torch.cat(distances)


def local_scale_from(distances: Tensor, shape: tuple[int, int] | None) -> Tensor:
    """Reach (M,), above 0, from the distances (M,) to other images, of images of ``shape`` rows and columns of patches.

    One distance is a matter of chance: the mean with those of the patches around it is steadier. The middle reach is
    added to all, so that twice the distance where good images hardly differ is not taken for a defect.
    """
    smoothed = distances
    if shape is not None:
        maps = distances.view(-1, 1, *shape)
        smoothed = F.avg_pool2d(maps, 3, stride=1, padding=1, count_include_pad=False).flatten()
    return (smoothed + smoothed.median()).clamp_min(LEAST)
