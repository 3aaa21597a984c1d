"""The signals of a line on its buses: names, types, OPC UA nodes, Modbus registers and meanings, in one list.

Both servers are built from it, and so are the tables of docs/line-bus.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from patchsvdd.apps.line.parts import PartRegion, VerdictCode
from patchsvdd.apps.line.signals import MOST_REGIONS, FaultCode, Signals

Type = Literal["Boolean", "UInt16", "UInt32", "Float", "String", "String[]", "UInt32[]", "Float[]"]
WordOrder = Literal["big", "little"]
"""Which of the two registers of a 32-bit value comes first: its high word (big) or its low one."""

CHARACTERS = 32
"""Of a text in Modbus registers: two in each, the first in the high byte; the rest is 0."""
MOST_CHARACTERS = 64
"""Of a part number or product that a PLC writes over OPC UA."""
WORDS = {"UInt16": 1, "UInt32": 2, "Float": 2, "String": CHARACTERS // 2}
REGION_WORDS = 10
VIEW_CHARACTERS = 8
MIRROR = 100
"""The holding register that repeats input register 0, for a PLC that reads only holding registers."""


@dataclass(frozen=True)
class Entry:
    """A signal that the PLC reads."""

    name: str
    type: Type
    meaning: str
    read: Callable[[Signals], Any]
    register: int | None = None
    """Its first input register."""
    bit: int | None = None
    """Its discrete input, and its bit in the register Status."""
    node: bool = True
    """Whether it is an OPC UA node."""
    words: int = 0
    """How many registers it has; 0 for as many as its type needs."""

    @property
    def size(self) -> int:
        """How many registers it has."""
        return self.words or WORDS[self.type]


@dataclass(frozen=True)
class Request:
    """A signal that the PLC writes."""

    name: str
    type: Literal["Boolean", "UInt32", "String"]
    meaning: str
    register: int
    """Its first holding register."""
    coil: int | None = None

    @property
    def size(self) -> int:
        """How many registers it has."""
        return 1 if self.type == "Boolean" else WORDS[self.type]


def _values(field: str) -> Callable[[Signals], list[Any]]:
    return lambda signals: [getattr(region, field) or "" for region in signals.regions]


def _status(signals: Signals) -> int:
    return sum(bool(one.read(signals)) << one.bit for one in ENTRIES if one.bit is not None)


def _boxes(signals: Signals) -> list[int]:
    return [number for one in signals.regions for number in (one.left, one.top, one.width, one.height)]


def _json(signals: Signals) -> str:
    return json.dumps([vars(region) for region in signals.regions], ensure_ascii=False)


def _region(index: int) -> Callable[[Signals], PartRegion | None]:
    return lambda signals: signals.regions[index] if index < len(signals.regions) else None


VERDICTS = ", ".join(f"{code.value} {code.name.lower()}" for code in VerdictCode)
FAULTS = ", ".join(f"{code.value} {code.name.lower()}" for code in FaultCode)

ENTRIES: tuple[Entry, ...] = (
    Entry("Ready", "Boolean", "the next change of Trigger from 0 to 1 begins a part", lambda s: s.ready, bit=0),
    Entry("Busy", "Boolean", "a part is being inspected", lambda s: s.busy, bit=1),
    Entry("ResultValid", "Boolean", "the result belongs to the part just inspected", lambda s: s.result_valid, bit=2),
    Entry("Triggered", "Boolean", "Trigger is 1, on this bus or another", lambda s: s.trigger, bit=3),
    Entry("Status", "UInt16", "the bits above, Ready in the lowest", _status, register=0, node=False),
    Entry("Verdict", "UInt16", f"{VERDICTS}; only 1 may pass", lambda s: int(s.verdict), register=1),
    Entry("VerdictText", "String", "the verdict in English", lambda s: s.verdict.name.lower()),
    Entry("Score", "Float", "in multiples of the threshold; above 1 is anomalous", lambda s: s.score, register=2),
    Entry("Fault", "UInt16", FAULTS, lambda s: int(s.fault), register=4),
    Entry("Heartbeat", "UInt16", "counts up every half second while the line works", lambda s: s.heartbeat, register=5),
    Entry("Sequence", "UInt32", "number of the part; never repeats", lambda s: s.sequence % (1 << 32), register=6),
    Entry("TriggerId", "UInt32", "RequestedTriggerId of the part", lambda s: s.trigger_id, register=8),
    Entry("RegionCount", "UInt16", "regions above the threshold that are shown", lambda s: len(s.regions), register=10),
    Entry("PartNumber", "String", "of the part", lambda s: s.part_number, register=12),
    Entry("Product", "String", "of the part", lambda s: s.product, register=28),
    *(
        Entry(
            *(
                f"Region{index + 1}",
                "UInt16",
                "left, top, width, height in pixels; peak as Float; view as 8 characters",
            ),
            *(_region(index), 44 + index * REGION_WORDS),
            node=False,
            words=REGION_WORDS,
        )
        for index in range(MOST_REGIONS)
    ),
    Entry("Model", "String", "identities of the models, with commas", lambda s: s.model, register=124, words=32),
    Entry("FaultText", "String", "the faults in words", lambda s: s.fault_text, register=156, words=32),
    Entry("Regions", "String", "the regions as JSON: view, left, top, width, height, peak, kind", _json),
    Entry("RegionView", "String[]", "the view of each region", _values("view")),
    Entry("RegionBox", "UInt32[]", "left, top, width, height of each region, in pixels", _boxes),
    Entry("RegionPeak", "Float[]", "the highest score of each region", _values("peak")),
    Entry("RegionKind", "String[]", "the kind of defect that each region resembles, or empty", _values("kind")),
)

REQUESTS: tuple[Request, ...] = (
    Request("Trigger", "Boolean", "0→1 begins a part; 0 after the result was read", 0, coil=0),
    Request("Acknowledge", "Boolean", "0→1 clears faults whose cause is gone", 1, coil=1),
    Request("RequestedTriggerId", "UInt32", "a number for the next part that does not repeat, or 0", 2),
    Request("RequestedPartNumber", "String", "of the next part, or empty", 4),
    Request("RequestedProduct", "String", "of the next part, or empty", 20),
)
INPUT_REGISTERS = max(one.register + one.size for one in ENTRIES if one.register is not None)
REQUEST_REGISTERS = max(one.register + one.size for one in REQUESTS)
NODES = tuple(one for one in ENTRIES if one.node)


def pack(kind: str, value: float, order: WordOrder) -> tuple[int, ...]:
    """The registers of a number of the type ``kind``."""
    data = struct.pack({"UInt16": ">H", "UInt32": ">I", "Float": ">f"}[kind], value)
    words = struct.unpack(f">{len(data) // 2}H", data)
    return words if order == "big" else words[::-1]


def pack_text(text: str, words: int) -> tuple[int, ...]:
    """The registers of a text: ASCII, with ? for other characters; cut off if it is too long."""
    data = text.encode("ascii", "replace")[: 2 * words].ljust(2 * words, b"\0")
    return struct.unpack(f">{words}H", data)


def unpack_text(words: Sequence[int]) -> str:
    """The text in registers, up to the first 0, without spaces at its end; ValueError if it is not printable ASCII."""
    data = struct.pack(f">{len(words)}H", *words).split(b"\0")[0].rstrip(b" ")
    text = data.decode("ascii")
    if not text.isprintable():
        raise ValueError("the text has control characters")
    return text


def unpack_number(words: Sequence[int], order: WordOrder) -> int:
    """The UInt32 in two registers."""
    high, low = words if order == "big" else words[::-1]
    return high << 16 | low


def input_registers(signals: Signals, order: WordOrder) -> list[int]:
    """All input registers at one moment."""
    registers = [0] * INPUT_REGISTERS
    for one in ENTRIES:
        if one.register is not None:
            registers[one.register : one.register + one.size] = _words(one, one.read(signals), order)
    return registers


def _words(entry: Entry, value: Any, order: WordOrder) -> tuple[int, ...]:
    if entry.words == REGION_WORDS:
        return _region_words(value, order)
    return pack_text(value, entry.size) if entry.type == "String" else pack(entry.type, value, order)


def _region_words(region: PartRegion | None, order: WordOrder) -> tuple[int, ...]:
    if region is None:
        return (0,) * REGION_WORDS
    box = (min(max(number, 0), 0xFFFF) for number in (region.left, region.top, region.width, region.height))
    return (*box, *pack("Float", region.peak, order), *pack_text(region.view, VIEW_CHARACTERS // 2))


def node_table(name: str = "Line") -> str:
    """The OPC UA nodes as a Markdown table."""
    rows = [(f"`ns=2;s={name}.{one.name}`", one.type, "reads", one.meaning) for one in NODES]
    rows += [(f"`ns=2;s={name}.{one.name}`", one.type, "writes", one.meaning) for one in REQUESTS]
    return _markdown(("node", "type", "the PLC", "meaning"), rows)


def register_table() -> str:
    """The Modbus registers that a PLC reads and writes, as a Markdown table; addresses count from 0."""
    rows = [
        (f"discrete input {one.bit}", f"holding {MIRROR}, bit {one.bit}", one.name, "bit", one.meaning)
        for one in ENTRIES
        if one.bit is not None
    ]
    rows += [
        (
            _range("input", one.register, one.size),
            _range("holding", MIRROR + one.register, one.size),
            *_described(one),
        )
        for one in ENTRIES
        if one.register is not None
    ]
    rows += [
        (
            _range("holding", one.register, one.size),
            "" if one.coil is None else f"coil {one.coil}",
            one.name,
            _type(one.type, one.size),
            f"{one.meaning} (the PLC writes)",
        )
        for one in REQUESTS
    ]
    return _markdown(("register", "also as", "name", "type", "meaning"), rows)


def _described(entry: Entry) -> tuple[str, str, str]:
    kind = "region" if entry.words == REGION_WORDS else _type(entry.type, entry.size)
    return entry.name, kind, entry.meaning


def _type(kind: str, size: int) -> str:
    return f"{2 * size} characters" if kind == "String" else "0 or 1" if kind == "Boolean" else kind


def _range(kind: str, first: int, size: int) -> str:
    return f"{kind} {first}" if size == 1 else f"{kind} {first}–{first + size - 1}"


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
