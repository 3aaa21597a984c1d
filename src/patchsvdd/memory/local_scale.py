"""The local scale of each normal patch: how much good images vary around it, as the unit for distances to it.

Some normal patches have a near match in every other good image (a plain background), others have none (a thread, a
grain, a printed letter). A defect on the background may then be nearer to the memory than a good thread is. The local
scale of a patch is its distance to the nearest patch of another good image. A distance divided by the local scale of
the matched patch says how unusual it is. The position of the patch plays no role, so parts need not be aligned.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.progress import OnProgress
from patchsvdd.memory.bank import Memory, ScaleMemory

LEAST = 1e-6
"""Smallest local scale, for good images that are all alike."""


def learn_local_scale(memory: Memory, on_progress: OnProgress | None = None) -> Memory:
    """The memory with the local scale of every patch; it must be complete and have at least 2 images.

    Coreset selection and image subsets keep it: it describes how good images vary, not how many patches are kept.
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
    """Distance (M,) of every patch to the nearest patch of another image."""
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
    """Local scale (M,), above 0, from distances (M,) to other images with ``shape`` rows and columns of patches.

    A single distance is noisy, so it is averaged with those of the surrounding patches. The median is added to all, so
    that twice the distance where good images hardly vary is not reported as a defect.
    """
    smoothed = distances
    if shape is not None:
        maps = distances.view(-1, 1, *shape)
        smoothed = F.avg_pool2d(maps, 3, stride=1, padding=1, count_include_pad=False).flatten()
    return (smoothed + smoothed.median()).clamp_min(LEAST)
