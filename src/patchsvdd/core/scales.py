"""Scales: patch sizes and the strides between patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from patchsvdd.core.errors import ConfigError

SMALLEST_PATCH = 32
"""Receptive field of the small encoder in pixels (K = 32 in the paper)."""


@dataclass(frozen=True)
class Scale:
    """Patches of one size, every ``stride`` pixels."""

    patch_size: int
    stride: int


def parse_scales(text: str) -> tuple[Scale, ...]:
    """Parse "32:4,64:16" (patch size : stride)."""
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return tuple(Scale(int(size), int(stride)) for size, stride in pairs)
    except ValueError:
        raise ConfigError(f"`scales` must be patch sizes and strides like 32:4,64:16; got '{text}'") from None


def check_scales(scales: Sequence[Scale], encoder: str, larger_untrained: bool) -> None:
    """Raise ConfigError for scales that this kind of encoder cannot embed."""

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise ConfigError(message)

    require(len(scales) > 0, "`scales` must name at least one scale")
    sizes = [scale.patch_size for scale in scales]
    if encoder in ("hierarchical", "random"):
        doubling = [SMALLEST_PATCH * 2**level for level in range(len(sizes))]
        require(
            sizes == doubling,
            f"`scales` of a hierarchical encoder must double from {SMALLEST_PATCH}: "
            f"{', '.join(map(str, doubling))}; got {', '.join(map(str, sizes))}",
        )
    if encoder == "flat":
        require(
            sizes == [64] and scales[0].stride % 8 == 0,
            f"the flat encoder requires `scales=64:16` (one scale of 64 px, stride a multiple of 8); got {sizes}",
        )
    for scale in scales:
        require(
            0 < scale.stride <= scale.patch_size and scale.stride % 2 == 0,
            f"`scales`: the stride of {scale.patch_size}-px patches must be even and at most "
            f"{scale.patch_size}, so that patches cover every pixel; got {scale.stride}",
        )
    if larger_untrained and encoder in ("hierarchical", "random"):
        for scale in scales[1:]:
            every = 2 * scale.patch_size // SMALLEST_PATCH
            require(
                scale.stride % every == 0,
                f"`scales`: the stride of {scale.patch_size}-px patches must be a multiple of {every} with "
                f"`larger_patches=untrained`; got {scale.stride}",
            )
