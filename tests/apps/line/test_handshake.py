"""The handshake of a line with a PLC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from patchsvdd.apps.line import handshake
from patchsvdd.apps.line.handshake import HEARTBEATS, Handshake
from patchsvdd.apps.line.parts import PartResult, PartVerdict, Trigger, VerdictCode
from patchsvdd.apps.line.signals import Fault, FaultCode, Signals
from support.bus import REGION, result

SOURCE = Fault(FaultCode.SOURCE, "camera top does not answer")
STORE = Fault(FaultCode.STORE, "the disk is full")
PLC = "opcua"


class Line:
    """A handshake with a clock that the test moves, and everything that it said."""

    def __init__(self) -> None:
        self.now = 100.0
        self.parts: list[Trigger] = []
        self.events: list[str] = []
        self.shown: list[Signals] = []
        self.handshake = Handshake(self, 2.0, lambda: self.now, self.events.append)
        self.handshake.subscribe(self.shown.append)
        self.handshake.block(())
        self.handshake.write_trigger(False, PLC)

    def start_part(self, part_number: str, product: str, trigger_id: int, by: str) -> None:
        self.parts.append(Trigger(len(self.parts) + 1, self.now, self.now, part_number, product, trigger_id, by))

    @property
    def signals(self) -> Signals:
        return self.handshake.snapshot()

    def trigger(self, part_number: str = "A1", trigger_id: int = 0) -> bool:
        return self.handshake.write_trigger(True, PLC, part_number=part_number, product="x", trigger_id=trigger_id)

    def lower(self) -> None:
        self.handshake.write_trigger(False, PLC)

    def answer(self, part: int = -1, verdict: PartVerdict = "good") -> bool:
        return self.handshake.answer(result(self.parts[part], verdict))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.handshake.tick()


def test_a_part_from_the_trigger_to_the_next() -> None:
    line = Line()
    assert (line.signals.ready, line.signals.fault) == (True, FaultCode.NONE)
    assert line.trigger("A1", 7)
    assert line.parts == [Trigger(1, 100.0, 100.0, "A1", "x", 7, PLC)]
    assert line.signals == Signals(trigger=True, busy=True)

    line.shown.clear()
    assert line.handshake.answer(result(line.parts[0], "anomalous", score=2.5, regions=(REGION,)))
    assert line.shown == [line.signals], "the result and ResultValid come together"
    assert line.signals == Signals(
        trigger=True,
        result_valid=True,
        verdict=VerdictCode.ANOMALOUS,
        score=2.5,
        regions=(REGION,),
        part_number="A1",
        product="x",
        model="model-1",
        sequence=1,
        trigger_id=7,
    )
    shown = line.signals
    line.lower()
    assert line.signals == replace(shown, ready=True, trigger=False, result_valid=False)
    assert line.trigger("A2")
    assert (line.signals.verdict, line.signals.regions) == (VerdictCode.NONE, ()), "nobody takes it for the new part's"
    assert line.signals.sequence == 1


def test_it_starts_with_a_fault() -> None:
    signals = Handshake(Line(), 1.0).snapshot()
    assert (signals.ready, signals.fault) == (False, FaultCode.STARTING)


def test_a_trigger_that_is_1_from_the_start_is_none() -> None:
    line = Line()
    fresh = Handshake(line, 1.0)
    fresh.write_trigger(True, PLC)
    fresh.block(())
    assert not fresh.snapshot().ready
    fresh.write_trigger(True, PLC)
    assert line.parts == []
    fresh.write_trigger(False, PLC)
    assert fresh.snapshot().ready
    assert fresh.write_trigger(True, PLC)


def test_a_trigger_that_is_1_when_the_line_becomes_ready_is_none() -> None:
    line = Line()
    line.handshake.block((SOURCE,))
    assert not line.trigger()
    line.handshake.block(())
    assert not line.signals.ready
    assert not line.handshake.write_trigger(True, PLC)
    assert line.parts == []
    line.lower()
    assert line.signals.ready
    assert line.trigger()


def test_an_overrun_gets_no_result_and_does_not_disturb_the_part() -> None:
    line = Line()
    line.trigger("A1", 1)
    line.lower()
    assert not line.trigger("A2", 2)
    assert (line.signals.fault, line.signals.busy) == (FaultCode.OVERRUN, True)
    assert line.answer()
    assert (line.signals.part_number, line.signals.result_valid) == ("A1", True)
    assert len(line.parts) == 1
    line.lower()
    assert (line.signals.ready, line.signals.fault) == (True, FaultCode.OVERRUN)
    assert line.handshake.acknowledge()
    assert line.signals.fault is FaultCode.NONE


def test_many_overruns_are_one_event() -> None:
    line = Line()
    line.trigger()
    for _ in range(1000):
        line.lower()
        line.trigger()
    assert len(line.events) == 1


def test_a_part_without_an_answer_times_out_and_a_late_answer_is_not_shown() -> None:
    line = Line()
    line.trigger("A1")
    line.wait(1.9)
    assert line.signals.busy
    line.wait(0.1)
    assert (line.signals.busy, line.signals.result_valid) == (False, False)
    assert (line.signals.fault, line.signals.verdict) == (FaultCode.TIMEOUT, VerdictCode.NONE)
    assert not line.answer()
    assert not line.signals.result_valid
    line.lower()
    assert not line.signals.ready, "until somebody acknowledges it"
    assert line.handshake.acknowledge()
    assert line.signals.ready
    assert "too late" in line.events[1]


def test_a_late_answer_is_not_that_of_the_next_part() -> None:
    line = Line()
    for trigger_id in (0, 5):
        line.trigger("A1", trigger_id)
        line.wait(3)
        line.lower()
        line.handshake.acknowledge()
        late = line.parts[-1]
        line.now += 1
        line.trigger("A1", trigger_id and 6)
        assert not line.handshake.answer(result(late))
        assert line.signals.busy
        assert line.answer()
        line.lower()


def test_an_answer_with_another_part_number_or_trigger_is_none() -> None:
    line = Line()
    line.trigger("A1")
    for other in (replace(line.parts[0], part_number="A2"), replace(line.parts[0], trigger_id=5)):
        assert not line.handshake.answer(result(other))
        assert line.signals.busy


def test_a_repeated_trigger_may_be_answered_with_the_stored_result() -> None:
    line = Line()
    line.trigger("A1", 5)
    line.answer()
    line.lower()
    line.now += 10
    assert line.trigger("A1", 5)
    assert len(line.parts) == 2
    assert line.answer(part=0), "made before this trigger, but with its number"
    assert (line.signals.sequence, line.signals.result_valid) == (1, True)


def test_causes_take_ready_away_and_the_worst_is_shown() -> None:
    line = Line()
    line.handshake.block((SOURCE, STORE))
    assert (line.signals.ready, line.signals.fault) == (False, FaultCode.STORE)
    assert line.signals.fault_text == f"{STORE.text}; {SOURCE.text}"
    line.handshake.block((SOURCE,))
    assert line.signals.fault is FaultCode.SOURCE
    line.handshake.block(())
    assert (line.signals.ready, line.signals.fault_text) == (True, "")


def test_a_fault_that_cost_a_part_its_result_stays() -> None:
    line = Line()
    line.trigger()
    line.handshake.block((SOURCE,))
    line.wait(2)
    assert line.signals.fault is FaultCode.TIMEOUT
    assert not line.handshake.acknowledge(), "the cause is still there"
    line.handshake.block(())
    line.lower()
    assert (line.signals.ready, line.signals.fault) == (False, FaultCode.TIMEOUT)
    assert line.handshake.acknowledge()
    assert line.signals.ready


def test_a_part_in_progress_is_answered_while_the_line_is_blocked() -> None:
    line = Line()
    line.trigger()
    line.handshake.block((SOURCE,))
    assert line.answer(verdict="incomplete")
    assert (line.signals.result_valid, line.signals.verdict) == (True, VerdictCode.INCOMPLETE)
    line.lower()
    assert not line.signals.ready


def test_a_part_that_cannot_be_inspected_ends_with_a_fault() -> None:
    line = Line()
    line.trigger()
    assert line.handshake.fail(Fault(FaultCode.PRODUCT, "there is no product x"))
    assert not line.handshake.fail(Fault(FaultCode.PRODUCT, "there is no product x"))
    assert (line.signals.busy, line.signals.result_valid, line.signals.fault) == (False, False, FaultCode.PRODUCT)


def test_a_trigger_lowered_early_leaves_the_result_until_the_next() -> None:
    line = Line()
    line.trigger()
    line.lower()
    line.answer()
    assert (line.signals.ready, line.signals.result_valid) == (True, True)
    line.trigger()
    assert not line.signals.result_valid


def test_a_trigger_without_the_signal() -> None:
    line = Line()
    assert line.handshake.trigger("api", part_number="A1", trigger_id=3)
    assert not line.handshake.trigger("api")
    assert line.answer()
    assert (line.signals.ready, line.signals.result_valid, line.signals.fault) == (True, True, FaultCode.OVERRUN)


def test_parts_that_the_camera_triggers() -> None:
    line = Line()
    line.shown.clear()
    for sequence in (1, 2):
        assert line.handshake.publish(result(Trigger(sequence, 1.0, 1.0, f"A{sequence}")))
    assert [(one.sequence, one.result_valid) for one in line.shown] == [(1, True), (1, False), (2, True)]
    line.trigger()
    assert not line.handshake.publish(result(Trigger(3, 1.0, 1.0)))
    assert line.signals.busy


def test_the_last_result_is_visible_after_a_restart() -> None:
    line = Line()
    line.handshake.restore(result(Trigger(41, 1.0, 1.0, "A9", trigger_id=12)))
    shown = line.signals
    assert (shown.part_number, shown.sequence, shown.trigger_id) == ("A9", 41, 12)
    assert (shown.ready, shown.result_valid) == (True, False)


def test_the_heartbeat_counts_while_somebody_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HEARTBEATS == 65536
    monkeypatch.setattr(handshake, "HEARTBEATS", 32)
    line = Line()
    for _ in range(80):
        line.wait(0.125)
    assert line.signals.heartbeat == 20
    line.now += 60
    assert line.signals.heartbeat == 20
    line.wait(0)
    line.wait(0.1)
    assert line.signals.heartbeat == 21, "beats that were missed are not made up for"
    for _ in range(32):
        line.wait(0.5)
    assert line.signals.heartbeat == 21


def test_two_buses_have_a_trigger_each() -> None:
    line = Line()
    line.handshake.write_trigger(False, "modbus")
    assert line.trigger("A1")
    assert not line.handshake.write_trigger(True, "modbus", part_number="B1")
    line.answer()
    line.handshake.write_trigger(False, "modbus")
    assert line.signals.result_valid, "only the Trigger that began the part ends it"
    line.lower()
    assert (line.signals.result_valid, line.signals.ready) == (False, True)
    assert [line.handshake.level(by) for by in (PLC, "modbus", "else")] == [False] * 3


def test_a_line_may_answer_while_it_is_asked_and_signals_stay_in_order() -> None:
    shown: list[Signals] = []

    class Immediate:
        def start_part(self, part_number: str, product: str, trigger_id: int, by: str) -> None:
            fresh.answer(result(Trigger(1, 0.0, float("inf"), part_number, product, trigger_id, by)))

    fresh = Handshake(Immediate(), 1.0)
    end = fresh.subscribe(shown.append)
    fresh.block(())
    fresh.trigger("api")
    assert [(one.busy, one.result_valid) for one in shown[-2:]] == [(True, False), (False, True)]
    end()
    fresh.block((SOURCE,))
    assert shown[-1].result_valid


def test_many_threads_see_the_signals_in_one_order() -> None:
    line = Line()
    seen: Sequence[list[Signals]] = ([], [])
    for one in seen:
        line.handshake.subscribe(one.append)

    def work(call: Callable[[], object]) -> None:
        for _ in range(300):
            call()

    calls: list[Callable[[], object]] = [
        lambda: line.trigger(),
        line.lower,
        lambda: line.wait(0.3),
        lambda: line.handshake.acknowledge(),
        lambda: line.parts and line.answer(),
        lambda: line.handshake.block((SOURCE,)) or line.handshake.block(()),  # type: ignore[func-returns-value]
    ]
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[0] == seen[1]
    assert seen[0][-1] == line.signals
    assert all(one != other for one, other in zip(seen[0], seen[0][1:], strict=False))


class AnyOrder(RuleBasedStateMachine):
    """Whatever a PLC, a line and time do: the promises of the handshake hold."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line()
        self.answered: list[int] = []
        self.failed = 0
        self.line.handshake.write_trigger(False, "modbus")

    def _count_failure(self, before: Signals) -> None:
        self.failed += before.busy and not self.line.signals.busy

    @rule(by=st.sampled_from(("opcua", "modbus")), level=st.booleans(), trigger_id=st.integers(0, 3))
    def write_trigger(self, by: str, level: bool, trigger_id: int) -> None:
        ready, raised = self.line.signals.ready, level and not self.line.handshake.level(by)
        began = self.line.handshake.write_trigger(level, by, part_number=f"P{trigger_id}", trigger_id=trigger_id)
        assert began == (ready and raised)
        if raised and not began:
            assert "triggered while" in self.line.signals.fault_text

    @rule()
    def software_trigger(self) -> None:
        ready = self.line.signals.ready
        assert self.line.handshake.trigger("api") == ready

    @precondition(lambda self: self.line.parts)
    @rule(data=st.data(), verdict=st.sampled_from(("good", "anomalous", "incomplete", "error")))
    def answer(self, data: st.DataObject, verdict: PartVerdict) -> None:
        busy, part = self.line.signals.busy, data.draw(st.sampled_from(self.line.parts))
        answer: PartResult = result(part, verdict)
        if self.line.handshake.answer(answer):
            assert busy
            assert self.line.signals.result_valid
            assert self.line.signals.sequence == part.sequence
            asked = self.line.parts[-1]
            assert part is asked or part.trigger_id == asked.trigger_id
            self.answered.append(asked.sequence)

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        before = self.line.signals
        self.line.wait(seconds)
        self._count_failure(before)
        if before.busy and not self.line.signals.busy:
            assert self.line.signals.fault is FaultCode.TIMEOUT

    @rule(faults=st.lists(st.sampled_from((SOURCE, STORE)), max_size=2))
    def block(self, faults: list[Fault]) -> None:
        self.line.handshake.block(faults)
        assert not (faults and self.line.signals.ready)

    @rule()
    def fail(self) -> None:
        before = self.line.signals
        assert self.line.handshake.fail(Fault(FaultCode.PRODUCT, "unknown")) == before.busy
        self._count_failure(before)

    @rule()
    def acknowledge(self) -> None:
        self.line.handshake.acknowledge()

    @rule(sequence=st.integers(1000, 2000))
    def publish(self, sequence: int) -> None:
        busy = self.line.signals.busy
        assert self.line.handshake.publish(result(Trigger(sequence, 0.0, 0.0))) != busy

    @invariant()
    def signals_are_consistent(self) -> None:
        for one in self.line.shown:
            assert not (one.ready and one.busy)
            assert not (one.result_valid and one.busy)
            assert not (one.ready and one.trigger)
            assert (one.fault is FaultCode.NONE) == (one.fault_text == "")
            assert not (one.busy and one.verdict is not VerdictCode.NONE)
            if one.result_valid:
                assert one.verdict is not VerdictCode.NONE
            if one.fault is FaultCode.TIMEOUT:
                assert not one.ready
        before = self.line.shown[-1:]
        self.line.shown[:] = before

    @invariant()
    def every_accepted_trigger_ends_once(self) -> None:
        assert len(self.answered) == len(set(self.answered))
        assert len(self.line.parts) == len(self.answered) + self.failed + self.line.signals.busy


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40)
