from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchsvdd.apps.line.sources.clock import CameraClock, by_monotonic, since_1970
from patchsvdd.apps.line.sources.frame_counter import SHORT, FrameCounter


@pytest.mark.parametrize("drift", [-100e-6, 0.0, 100e-6])
def test_times_are_late_by_the_shortest_delay_however_fast_the_camera_counts(drift: float) -> None:
    rng, clock = random.Random(1), CameraClock()
    errors = []
    for index in range(5000):  # 500 s
        taken = 1000.0 + index / 10
        arrived = taken + 0.005 + rng.expovariate(1 / 0.003)
        errors.append(clock.captured(7.0 + (taken - 1000.0) * (1 + drift), arrived) - taken)
    assert all(0.004 < error < 0.012 for error in errors[20:])


def test_a_clock_that_was_set_is_followed() -> None:
    clock = CameraClock()
    assert clock.captured(5.0, 100.0) == pytest.approx(100.0)
    assert clock.captured(5.1, 100.2) == pytest.approx(100.1, abs=1e-3)
    assert clock.captured(0.0, 100.3) == pytest.approx(100.3)
    assert clock.captured(90000.0, 100.4) == pytest.approx(100.4)


def test_the_clocks_of_this_machine_are_converted() -> None:
    assert since_1970(time.monotonic()) == pytest.approx(time.time(), abs=0.5)
    assert by_monotonic(since_1970(12.5)) == pytest.approx(12.5, abs=1e-3)


@given(st.integers(1, SHORT), st.lists(st.integers(1, 300), max_size=400), st.booleans())
def test_lost_frames_are_counted_by_the_gaps(first: int, steps: list[int], is_short: bool) -> None:
    counter, number = FrameCounter(), first
    assert counter.count(number) == first
    for step in steps:
        number += step
        sent = (number - 1) % SHORT + 1 if is_short else number
        if is_short or first == 1:
            assert counter.count(sent) == number
    if is_short or first == 1:
        assert counter.lost == sum(steps) - len(steps)


def test_a_camera_that_was_opened_again_has_lost_nothing() -> None:
    counter = FrameCounter()
    for number in (500, 502):
        counter.count(number)
    counter.restart()
    assert counter.count(7) == 7
    assert counter.lost == 1
