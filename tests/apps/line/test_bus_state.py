"""When a PLC counts as gone."""

from __future__ import annotations

from patchsvdd.apps.line.bus_state import GONE_AFTER, BusState, ClientWatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watched() -> tuple[ClientWatch, Clock, list[str]]:
    clock, events = Clock(), list[str]()
    return ClientWatch("modbus", events.append, clock), clock, events


def state(clients: int, trouble: str | None = None) -> BusState:
    return BusState("127.0.0.1:502", clients, trouble)


def test_a_bus_that_waits_for_its_first_client_is_in_order() -> None:
    watch, clock, events = watched()
    for _ in range(5):
        clock.now += GONE_AFTER
        assert watch.look(state(0)).trouble is None
    assert events == []


def test_a_client_that_does_not_come_back_is_a_trouble_until_it_does() -> None:
    watch, clock, events = watched()
    assert watch.look(state(1)).trouble is None
    assert watch.look(state(0)).trouble is None
    clock.now += GONE_AFTER - 0.1
    assert watch.look(state(0)).trouble is None
    clock.now += 0.2
    for _ in range(3):
        trouble = watch.look(state(0)).trouble
        assert trouble is not None
        assert trouble.startswith("the client disconnected at ")
        assert trouble.endswith(" and has not come back")
    assert watch.look(state(1)).trouble is None
    assert events == ["modbus: a client is connected", f"modbus: {trouble}", "modbus: a client is connected"]


def test_a_client_that_connects_for_every_part_is_in_order() -> None:
    watch, clock, events = watched()
    for _ in range(10):
        assert watch.look(state(1)).trouble is None
        clock.now += 0.9 * GONE_AFTER
        assert watch.look(state(0)).trouble is None
        clock.now += 0.9 * GONE_AFTER
    assert events == ["modbus: a client is connected"]


def test_another_trouble_is_not_hidden() -> None:
    watch, clock, _ = watched()
    watch.look(state(1))
    watch.look(state(0))
    clock.now += GONE_AFTER
    assert watch.look(state(0, "its certificate has expired")).trouble == "its certificate has expired"
