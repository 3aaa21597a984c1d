"""A float32 number as the sum of two half-precision ones, which tensor cores multiply at full speed."""

from __future__ import annotations

from torch import Tensor


def split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Number and rest, float16 each, of float32 values below 65,504: their sum is within 2⁻²² of a value, or 2⁻²⁵."""
    number = values.half()
    return number, (values - number.float()).half()
