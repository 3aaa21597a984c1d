from __future__ import annotations

import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchsvdd.apps.line.frame_queue import FrameQueue, WhenFull
from patchsvdd.apps.line.sources.source import Frame
from patchsvdd.core.errors import ConfigError
from support.waiting import wait_until

STEPS = st.lists(st.sampled_from(["left", "right", "get"]), max_size=60)


def frame(source: str, number: int) -> Frame:
    return Frame(source, number, 0.0, 0.0, f"{source}-{number}.png")


@given(STEPS, st.integers(1, 5), st.sampled_from(["drop-oldest", "drop-new"]))
def test_nothing_is_unaccounted_for(steps: list[str], size: int, when_full: WhenFull) -> None:
    queue = FrameQueue(size, when_full)
    put: Counter[str] = Counter()
    got: list[Frame] = []
    dropped: list[Frame] = []
    for step in steps:
        if step == "get":
            one = queue.get(0)
            assert (one is None) == (sum(put.values()) == len(got) + len(dropped))
            got += [one] if one is not None else []
        else:
            one = queue.put(frame(step, put[step]))
            put[step] += 1
            dropped += [one] if one is not None else []
            assert one is None or len(queue) == size
        assert len(queue) <= size
        for source in ("left", "right"):
            assert queue.dropped(source) == sum(one.source == source for one in dropped)
    assert len(got) + len(dropped) + len(queue) == sum(put.values())
    assert queue.dropped() == len(dropped)
    while (one := queue.get(0)) is not None:
        got.append(one)
    for source in ("left", "right"):
        numbers = [one.number for one in got if one.source == source]
        assert numbers == sorted(numbers)
        assert {*numbers, *(one.number for one in dropped if one.source == source)} == set(range(put[source]))


def test_the_oldest_or_the_newest_is_dropped() -> None:
    oldest, newest = FrameQueue(2, "drop-oldest"), FrameQueue(2, "drop-new")
    for queue in (oldest, newest):
        assert [queue.put(frame("a", number)) for number in range(2)] == [None, None]
    first, last = oldest.put(frame("a", 2)), newest.put(frame("a", 2))
    assert first is not None
    assert last is not None
    assert (first.number, last.number) == (0, 2)


def test_threads_lose_nothing_through_a_queue_that_blocks() -> None:
    queue = FrameQueue(3, "block")
    got: list[Frame] = []

    def fill(source: str) -> None:
        for number in range(200):
            assert queue.put(frame(source, number)) is None

    def drain() -> None:
        while (one := queue.get(20)) is not None:
            got.append(one)

    producers = [threading.Thread(target=fill, args=(source,)) for source in ("left", "right")]
    consumer = threading.Thread(target=drain)
    for thread in (*producers, consumer):
        thread.start()
    for thread in producers:
        thread.join(20)
    queue.close()
    consumer.join(20)
    for source in ("left", "right"):
        assert [one.number for one in got if one.source == source] == list(range(200))
    assert queue.dropped() == 0


def test_closing_wakes_those_who_wait_and_drops_what_comes_later() -> None:
    queue, ends = FrameQueue(1, "block"), []
    reader = threading.Thread(target=lambda: ends.append(FrameQueue.get(queue, 60)))
    reader.start()
    queue.put(frame("a", 0))
    reader.join(20)
    queue.put(frame("a", 1))
    writer = threading.Thread(target=lambda: ends.append(queue.put(frame("a", 2))))
    writer.start()
    queue.close()
    writer.join(20)
    assert [one.number for one in ends if one is not None] == [0, 2]
    last = queue.get(60)
    assert last is not None
    assert last.number == 1
    assert queue.get(60) is None
    assert queue.put(frame("a", 3)) is not None
    assert queue.dropped("a") == 2


def test_a_stopped_source_does_not_wait_for_room() -> None:
    queue, stopped = FrameQueue(1, "block"), threading.Event()
    queue.put(frame("a", 0))
    ended = threading.Event()

    def put() -> None:
        queue.put(frame("a", 1), stopped)
        ended.set()

    threading.Thread(target=put, daemon=True).start()
    stopped.set()
    wait_until(ended.is_set)
    assert queue.dropped("a") == 1


def test_images_of_one_source_can_be_discarded() -> None:
    queue = FrameQueue(4)
    for source in ("a", "b", "a"):
        queue.put(frame(source, len(queue)))
    assert queue.discard("a") == 2
    left = queue.get(0)
    assert left is not None
    assert left.source == "b"
    assert queue.dropped() == 0


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="`size`"):
        FrameQueue(0)
    with pytest.raises(ConfigError, match=r"drop-oldest, drop-new, block; got 'wait'"):
        FrameQueue(1, "wait")  # type: ignore[arg-type]
