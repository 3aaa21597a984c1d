"""Images become parts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from patchsvdd.apps.line.part_assembly import OpenPart, PartAssembly
from patchsvdd.apps.line.parts import Trigger
from patchsvdd.apps.line.sources.source import Frame

PIXELS = np.zeros((2, 2), np.uint8)
VIEWS = ("top", "side")


def frame(view: str, number: int, at: float, part: str | None = None) -> Frame:
    return Frame(view, number, 1000 + at, at, f"{view}-{number}.png", PIXELS, part=part)


def trigger(sequence: int, at: float, by: str = "opcua", part_number: str = "") -> Trigger:
    return Trigger(sequence, 1000 + at, at, part_number, by=by)


def test_images_after_the_trigger_complete_a_part() -> None:
    assembly = PartAssembly(deadline=2.0)
    part = assembly.begin(trigger(1, 10), VIEWS)
    assert assembly.add(frame("top", 1, 9.9), None) is None, "taken before the trigger"
    assert assembly.add(frame("top", 2, 10.1), None) is part
    assert assembly.add(frame("top", 3, 10.2), None) is None, "the part has this view"
    assert not list(assembly.closed(10.3))
    assert assembly.add(frame("side", 1, 10.3), None) is part
    assert list(assembly.closed(10.3)) == [part]
    assert len(assembly) == 0


def test_a_part_is_closed_at_its_deadline() -> None:
    assembly = PartAssembly(deadline=2.0)
    part = assembly.begin(trigger(1, 10), VIEWS)
    assembly.add(frame("side", 1, 10.1), None)
    assert not list(assembly.closed(11.9))
    assert list(assembly.closed(12.0)) == [part]
    assert part.missing == ("top",)
    assert assembly.add(frame("top", 1, 12.1), None) is None


def test_an_image_taken_before_the_trigger_and_read_after_it_does_not_count() -> None:
    assembly = PartAssembly(deadline=2.0)
    assembly.begin(trigger(1, 10), VIEWS)
    late = Frame("top", 1, 1009.0, 10.5, "top-1.png", PIXELS)
    assert assembly.add(late, None) is None


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(VIEWS)), unique=True, max_size=12),
    st.booleans(),
)
def test_numbered_images_join_the_part_of_their_number(order: list[tuple[int, str]], shuffled: bool) -> None:
    arrivals = order if shuffled else sorted(order)
    assembly, count = PartAssembly(deadline=1e9), 0

    def begin(one: Frame) -> tuple[Trigger, tuple[str, ...]]:
        nonlocal count
        count += 1
        return trigger(count, one.arrived, "camera", one.part or ""), VIEWS

    closed: list[OpenPart] = []
    for at, (number, view) in enumerate(arrivals):
        part = assembly.add(frame(view, number, at, f"p{number}"), begin)
        assert part is not None
        assert part.trigger.part_number == f"p{number}"
        closed += assembly.closed(at)
    complete = {number for number, _ in order if {(number, view) for view in VIEWS} <= set(order)}
    assert {part.trigger.part_number for part in closed} == {f"p{number}" for number in complete}
    assert len(closed) + len(assembly) == len({number for number, _ in order})


def test_unnumbered_images_join_in_their_order() -> None:
    assembly, count = PartAssembly(deadline=5.0), 0

    def begin(one: Frame) -> tuple[Trigger, tuple[str, ...]]:
        nonlocal count
        count += 1
        return trigger(count, one.arrived, "camera"), VIEWS

    joined = [assembly.add(frame(view, at, at), begin) for at, view in enumerate(("top", "top", "side", "side"))]
    assert [part.trigger.sequence for part in joined if part] == [1, 2, 1, 2]
    assert [part.trigger.sequence for part in assembly.closed(3)] == [1, 2]
