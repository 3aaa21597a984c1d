"""The OPC UA nodes of a line: what clients read, what they write, and the methods they call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from asyncua import Node, Server, ua

from patchsvdd.apps.line.handshake import Handshake
from patchsvdd.apps.line.opcua_access import Access, status
from patchsvdd.apps.line.signal_table import MOST_CHARACTERS, NODES, REQUESTS, Entry
from patchsvdd.apps.line.signals import Signals

BY = "opcua"
NAMESPACE = "urn:patchsvdd:line"
MOST_WAITING = 1000
"""Signals that wait to be shown; far more than ever wait while the loop runs."""
RESULT_VALID, READY, BUSY = "ResultValid", "Ready", "Busy"


class Nodes:
    """The nodes of a server: shows signals in them, and passes on what clients write. Lives in the server's loop."""

    def __init__(self, server: Server, access: Access, handshake: Handshake, name: str) -> None:
        self.access = access
        self.port = 0
        self.trouble: str | None = None
        self._server = server
        self._handshake = handshake
        self._name = name
        self._namespace = 0
        self._shown: dict[str, Any] = {}
        self._requests: dict[str, Any] = {}
        self._written = datetime.now(UTC)
        self._waiting: deque[Signals] = deque(maxlen=MOST_WAITING)
        self._any_waiting = asyncio.Event()
        self._showing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    async def build(self) -> None:
        """Create the nodes and follow the signals."""
        self._namespace = await self._server.register_namespace(NAMESPACE)
        place = self._server.nodes.objects
        line = await place.add_object(self._id(""), ua.QualifiedName(self._name, self._namespace))
        signals = self._handshake.snapshot()
        for entry in NODES:
            await self._add(line, entry.name, entry.meaning, entry.type, entry.read(signals))
        initial = {"Boolean": False, "UInt32": 0, "String": ""}
        self._requests = {one.name: initial[one.type] for one in REQUESTS}
        self._requests["Trigger"] = self._handshake.level(BY)
        for one in REQUESTS:
            node = await self._add(line, one.name, one.meaning, one.type, self._requests[one.name])
            await node.set_writable()
        texts = [self._argument("PartNumber", "String"), self._argument("Product", "String")]
        answers = [self._argument("Accepted", "Boolean"), self._argument("Reason", "String")]
        inputs = [*texts, self._argument("TriggerId", "UInt32")]
        for name, method, given, returned in (
            ("Inspect", self._inspect, inputs, answers),
            ("AcknowledgeFault", self._acknowledge, [], [self._argument("Cleared", "Boolean")]),
        ):
            await line.add_method(self._id(name), ua.QualifiedName(name, self._namespace), method, given, returned)
        self.access.refusal, self.access.on_write = self._refusal, self._on_write
        self._end = self._handshake.subscribe(self._on_signals)
        self._on_signals(self._handshake.snapshot())
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop following the signals, and stop the server."""
        self._end()
        self._task.cancel()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._server.stop(), 10)

    def _id(self, name: str) -> ua.NodeId:
        return ua.NodeId(ua.String(f"{self._name}.{name}" if name else self._name), ua.Int16(self._namespace))

    def _argument(self, name: str, kind: str) -> ua.Argument:
        return ua.Argument(Name=name, DataType=ua.NodeId(getattr(ua.ObjectIds, kind)), ValueRank=-1)

    async def _add(self, line: Node, name: str, meaning: str, kind: str, value: Any) -> Node:
        name_there = ua.QualifiedName(name, self._namespace)
        node = await line.add_variable(self._id(name), name_there, self._variant(kind, value))
        text = ua.DataValue(ua.Variant(ua.LocalizedText(meaning), ua.VariantType.LocalizedText))
        await node.write_attribute(ua.AttributeIds.Description, text)
        return node

    def _variant(self, kind: str, value: Any) -> ua.Variant:
        return ua.Variant(value, ua.VariantType[kind.removesuffix("[]")], is_array=kind.endswith("[]"))

    # From the line to the clients

    def _on_signals(self, signals: Signals) -> None:
        self._waiting.append(signals)
        with suppress(RuntimeError):  # the loop ended
            self._loop.call_soon_threadsafe(self._any_waiting.set)

    async def _follow(self) -> None:
        try:
            while True:
                await self._any_waiting.wait()
                self._any_waiting.clear()
                await self._show_waiting()
        except Exception as error:
            self.trouble = f"it no longer shows signals: {error}"
            raise

    async def _show_waiting(self) -> None:
        async with self._showing:
            while self._waiting:
                signals = self._waiting.popleft()
                for entry in _in_order(signals):
                    await self._show(entry, entry.read(signals))

    async def _show(self, entry: Entry, value: Any) -> None:
        if self._shown.get(entry.name) == value and entry.name in self._shown:
            return
        self._shown[entry.name] = value
        # Never twice the same time: by it, messages to subscribers are put in order
        self._written = max(datetime.now(UTC), self._written + timedelta(microseconds=1))
        when: Any = self._written
        data = ua.DataValue(self._variant(entry.type, value), SourceTimestamp=when, ServerTimestamp=when)
        await self._server.write_attribute_value(self._id(entry.name), data)

    # From the clients to the line

    def _refusal(self, written: ua.WriteValue) -> ua.StatusCode | None:
        """Why a client must not write a value to one of the nodes that it may write; None if it may."""
        kinds = {self._id(one.name): one.type for one in REQUESTS}
        if written.NodeId not in kinds or written.AttributeId != ua.AttributeIds.Value:
            return None
        data, kind = written.Value, kinds[written.NodeId]
        fits = data.Value is not None and not data.Value.is_array and not written.IndexRange
        if not fits or data.Value.VariantType.name != kind or (data.StatusCode and not data.StatusCode.is_good()):
            return status("BadTypeMismatch")
        if kind == "String" and not _is_usable(data.Value.Value):
            return status("BadOutOfRange")
        return None

    async def _on_write(self, changed: dict[ua.NodeId, Any]) -> None:
        names = {self._id(one.name): one.name for one in REQUESTS}
        written = {names[node]: value for node, value in changed.items() if node in names}
        acknowledged = written.get("Acknowledge", False) and not self._requests["Acknowledge"]
        self._requests.update(written)
        if acknowledged:
            self._handshake.acknowledge()
        if "Trigger" in written:
            self._handshake.write_trigger(
                written["Trigger"],
                BY,
                part_number=self._requests["RequestedPartNumber"] or "",
                product=self._requests["RequestedProduct"] or "",
                trigger_id=self._requests["RequestedTriggerId"],
            )
        await self._show_waiting()

    async def _inspect(self, _line: ua.NodeId, *given: ua.Variant) -> Any:
        if len(given) != 3:
            few = len(given) < 3
            return status("BadArgumentsMissing" if few else "BadTooManyArguments")
        kinds = ("String", "String", "UInt32")
        if any(one.is_array or one.VariantType.name != kind for one, kind in zip(given, kinds, strict=True)):
            return status("BadInvalidArgument")
        part_number, product, trigger_id = (one.Value for one in given)
        if not (_is_usable(part_number) and _is_usable(product)):
            return status("BadOutOfRange")
        began = self._handshake.trigger(BY, part_number=part_number or "", product=product or "", trigger_id=trigger_id)
        await self._show_waiting()
        reason = "" if began else self._handshake.snapshot().fault_text
        return [self._variant("Boolean", began), self._variant("String", reason)]

    async def _acknowledge(self, _line: ua.NodeId, *_given: ua.Variant) -> Any:
        cleared = self._handshake.acknowledge()
        await self._show_waiting()
        return [self._variant("Boolean", cleared)]


def _in_order(signals: Signals) -> Iterable[Entry]:
    """The order in which signals are written: what withdraws a result or Ready first, what announces it last."""
    named = {entry.name: entry for entry in NODES}
    rest = [entry for name, entry in named.items() if name not in (RESULT_VALID, READY, BUSY)]
    last = [named[BUSY], named[RESULT_VALID], named[READY]]
    if signals.busy:
        return [named[RESULT_VALID], named[READY], named[BUSY], *rest]
    return [*rest, *last] if signals.result_valid else [named[RESULT_VALID], *rest, named[BUSY], named[READY]]


def _is_usable(text: str | None) -> bool:
    return text is None or (len(text) <= MOST_CHARACTERS and text.isprintable())
