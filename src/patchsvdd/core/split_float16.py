"""Split float32 numbers into two float16 numbers, which tensor cores multiply at full speed."""

from __future__ import annotations

from torch import Tensor


def split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return value and remainder in float16, for float32 below 65,504; the sum is within 2⁻²² (relative) or 2⁻²⁵."""
    number = values.half()
    return number, (values - number.float()).half()
