"""PLCs of the line benchmark: real OPC UA and Modbus clients that follow the handshake."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from asyncua.sync import Client
from pymodbus.client import ModbusTcpClient

from patchsvdd.apps.line.parts import VerdictCode
from patchsvdd.apps.line.signal_table import ENTRIES, INPUT_REGISTERS, REQUESTS, pack, pack_text

LOOK = 0.002
"""Seconds between two looks at the signals."""
READ = ("Ready", "Busy", "ResultValid", "Verdict", "Sequence", "TriggerId", "Heartbeat", "Fault", "FaultText")
LOST = (OSError, ConnectionError, TimeoutError)


class Disconnected(Exception):
    """The bus does not answer."""


@dataclass(frozen=True)
class Seen:
    """The signals at one moment."""

    ready: bool
    busy: bool
    valid: bool
    verdict: int
    sequence: int
    trigger_id: int
    heartbeat: int
    fault: int
    fault_text: str


class Bus(Protocol):
    """A connection to a line."""

    name: str

    def connect(self) -> None: ...

    def close(self) -> None: ...

    def see(self) -> Seen: ...

    def ask(self, part_number: str, trigger_id: int) -> None: ...

    def write(self, signal: str, on: bool) -> None: ...


class OpcUa:
    """An OPC UA client."""

    name = "opcua"

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None

    def connect(self) -> None:
        self._client = Client(self._url, timeout=4)
        self._client.connect()
        self._nodes = {
            name: self._client.get_node(f"ns=2;s=Line.{name}") for name in (*READ, *(r.name for r in REQUESTS))
        }

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.disconnect()
            with suppress(Exception):
                client.tloop.stop()

    def see(self) -> Seen:
        return Seen(*self._client.read_values([self._nodes[name] for name in READ]))

    def ask(self, part_number: str, trigger_id: int) -> None:
        self._nodes["RequestedPartNumber"].write_value(part_number)
        from asyncua import ua

        self._nodes["RequestedTriggerId"].write_value(trigger_id, ua.VariantType.UInt32)

    def write(self, signal: str, on: bool) -> None:
        self._nodes[signal].write_value(on)


class Modbus:
    """A Modbus TCP client."""

    name = "modbus"

    def __init__(self, port: int) -> None:
        self._port = port
        self._client: Any = None
        self._entries = {one.name: one for one in ENTRIES}
        self._requests = {one.name: one for one in REQUESTS}

    def connect(self) -> None:
        self._client = ModbusTcpClient("127.0.0.1", port=self._port, timeout=4, retries=0)
        if not self._client.connect():
            raise ConnectionError("no connection")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def see(self) -> Seen:
        words: list[int] = []
        while len(words) < INPUT_REGISTERS:
            count = min(120, INPUT_REGISTERS - len(words))
            words += _checked(self._client.read_input_registers(len(words), count=count)).registers

        def number(name: str) -> int:
            entry = self._entries[name]
            assert entry.register is not None
            at = words[entry.register : entry.register + entry.size]
            return at[0] if len(at) == 1 else at[0] << 16 | at[1]

        status = number("Status")
        entry = self._entries["FaultText"]
        assert entry.register is not None
        text = b"".join(word.to_bytes(2, "big") for word in words[entry.register : entry.register + entry.size])
        return Seen(
            bool(status & 1),
            bool(status & 2),
            bool(status & 4),
            number("Verdict"),
            number("Sequence"),
            number("TriggerId"),
            number("Heartbeat"),
            number("Fault"),
            text.rstrip(b"\0").decode("ascii"),
        )

    def ask(self, part_number: str, trigger_id: int) -> None:
        name, number = self._requests["RequestedPartNumber"], self._requests["RequestedTriggerId"]
        _checked(self._client.write_registers(number.register, list(pack("UInt32", trigger_id, "big"))))
        _checked(self._client.write_registers(name.register, list(pack_text(part_number, name.size))))

    def write(self, signal: str, on: bool) -> None:
        coil = self._requests[signal].coil
        assert coil is not None
        _checked(self._client.write_coil(coil, on))


def _checked(answer: Any) -> Any:
    if answer.isError():
        raise ConnectionError(str(answer))
    return answer


def part_number(trigger_id: int) -> str:
    """The part number that a PLC asks for with a trigger."""
    return f"P{trigger_id:06d}"


@dataclass(frozen=True)
class Answer:
    """What a PLC got for a trigger."""

    trigger_id: int
    bus: str
    verdict: str
    """Empty if the trigger ended in a fault."""
    sequence: int
    seconds: float
    fault: str
    attempts: int
    """How often it triggered; more than once if the bus was lost."""


class Plc:
    """Triggers parts over a bus, and does what a PLC should when something fails."""

    def __init__(self, bus: Bus, note: Callable[[str], None]) -> None:
        self.bus, self._note = bus, note
        self.is_connected = False
        self.is_away = False
        """Whether it is cut off and cannot connect."""

    def inspect(self, trigger_id: int, patience: float = 120.0) -> Answer:
        """One part, from a ready line to its verdict or fault. After a lost connection, the same trigger again."""
        end, attempts = time.monotonic() + patience, 0
        while time.monotonic() < end:
            try:
                self._connect(end)
                before = self._await_ready(end)
                if attempts and before.trigger_id == trigger_id:
                    return self._answer(trigger_id, before, 0.0, attempts)
                attempts += 1
                return self._trigger(trigger_id, attempts)
            except Disconnected:
                self.is_connected = False
                self.bus.close()
        raise SystemExit(f"trigger {trigger_id} got no answer within {patience:g} s")

    def _connect(self, end: float) -> None:
        while not self.is_connected:
            if self.is_away:
                time.sleep(LOOK)
                continue
            try:
                self.bus.connect()
                self.bus.write("Trigger", False)
                self.is_connected = True
            except Exception as error:  # noqa: BLE001  # as the libraries raise them
                self.bus.close()
                if time.monotonic() > end:
                    raise SystemExit(f"{self.bus.name} cannot be reached: {error!r}") from None
                time.sleep(0.2)

    def _await_ready(self, end: float) -> Seen:
        """Wait until the line is ready; acknowledge faults."""
        next_acknowledge = time.monotonic() + 0.5
        while time.monotonic() < end:
            seen: Seen = self._do(self.bus.see)
            if seen.ready and not seen.fault:
                return seen
            if seen.fault and time.monotonic() > next_acknowledge:
                self._do(lambda: self.bus.write("Acknowledge", True))
                self._do(lambda: self.bus.write("Acknowledge", False))
                next_acknowledge = time.monotonic() + 0.5
            time.sleep(LOOK)
        raise SystemExit("the line did not become ready")

    def _trigger(self, trigger_id: int, attempts: int) -> Answer:
        self._do(lambda: self.bus.ask(part_number(trigger_id), trigger_id))
        start = time.perf_counter()
        self._do(lambda: self.bus.write("Trigger", True))
        while True:
            seen = self._do(self.bus.see)
            answered = seen.valid and seen.trigger_id == trigger_id
            if answered or (not seen.busy and seen.fault):  # a refused trigger leaves the last result as it was
                break
            time.sleep(LOOK)
        seconds = time.perf_counter() - start
        self._do(lambda: self.bus.write("Trigger", False))
        return self._answer(trigger_id, seen, seconds, attempts)

    def _answer(self, trigger_id: int, seen: Seen, seconds: float, attempts: int) -> Answer:
        mine = seen.trigger_id == trigger_id and seen.verdict
        verdict = VerdictCode(seen.verdict).name.lower() if mine else ""
        return Answer(
            trigger_id, self.bus.name, verdict, seen.sequence, seconds, "" if mine else seen.fault_text, attempts
        )

    def _do(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            self._note(f"{self.bus.name}: {error!r}")
            raise Disconnected from error
