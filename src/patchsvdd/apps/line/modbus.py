"""A line on Modbus TCP. The protocol has no passwords and no encryption: anyone who reaches the port can trigger."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from patchsvdd.apps.line.bus_settings import ModbusSettings
from patchsvdd.apps.line.bus_state import BusState, LoopThread
from patchsvdd.apps.line.handshake import Handshake
from patchsvdd.apps.line.signal_table import (
    ENTRIES,
    INPUT_REGISTERS,
    MIRROR,
    REQUEST_REGISTERS,
    REQUESTS,
    input_registers,
    unpack_number,
    unpack_text,
)
from patchsvdd.apps.line.signals import Signals
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.extras import require

if TYPE_CHECKING:
    from pymodbus.constants import ExcCodes
    from pymodbus.server import ModbusTcpServer

BY = "modbus"
MOST_CLIENTS = 16
READ_COILS, READ_BITS, READ_HOLDING, READ_INPUT = 1, 2, 3, 4
WRITE_COIL, WRITE_COILS = 5, 15
FUNCTIONS = frozenset((READ_COILS, READ_BITS, READ_HOLDING, READ_INPUT, WRITE_COIL, WRITE_COILS, 6, 16, 22, 23))
"""Function codes that are answered; others, such as diagnostics, get exception 1."""
BITS = 1 + max(one.bit for one in ENTRIES if one.bit is not None)
COILS = {one.coil: one.register for one in REQUESTS if one.coil is not None}
MOST_BITS = {READ_COILS: len(COILS), READ_BITS: BITS}
REGISTER = {one.name: one for one in REQUESTS}
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A connection whose client vanished ends after half a minute."""


class ModbusServer:
    """The signals of a handshake as Modbus registers, served in a thread of its own.

    Each request sees the signals of one moment. A request that writes several registers is carried out as a whole, and
    Trigger last.
    """

    def __init__(self, handshake: Handshake, settings: ModbusSettings) -> None:
        require("pymodbus", "modbus", "`modbus`")
        self._handshake = handshake
        self._settings = settings
        self._requests = [0] * REQUEST_REGISTERS
        self._encoded: tuple[Signals, list[int]] | None = None
        self._thread: LoopThread | None = None
        self._server: ModbusTcpServer | None = None

    def start(self) -> None:
        """Listen; raises ConfigError if the address cannot be used."""
        logging.getLogger("pymodbus").setLevel(logging.CRITICAL)  # it logs every malformed request
        self._requests[REGISTER["Trigger"].register] = int(self._handshake.level(BY))
        self._thread = LoopThread("modbus")
        try:
            self._server = self._thread.call(self._listen())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all connections and stop listening."""
        thread, self._thread = self._thread, None
        server, self._server = self._server, None
        if thread is not None:
            if server is not None:
                thread.call(_shut_down(server))
            thread.close()

    def state(self) -> BusState:
        """Where the server listens, and how many clients are connected."""
        server = self._server
        if server is None:
            return BusState(f"{self._settings.host}:{self._settings.port}", 0, "not started")
        sockets = getattr(server.transport, "sockets", ())
        host, port = sockets[0].getsockname()[:2] if sockets else (self._settings.host, self._settings.port)
        trouble = None if sockets else "no longer listens"
        return BusState(f"{host}:{port}", len(server.active_connections), trouble)

    async def _listen(self) -> ModbusTcpServer:
        from pymodbus.server import ModbusTcpServer
        from pymodbus.server.requesthandler import ServerRequestHandler
        from pymodbus.simulator import DataType, SimData, SimDevice

        settings = self._settings

        class Connection(ServerRequestHandler):
            """A connection of a client that is allowed."""

            def callback_connected(self) -> None:
                super().callback_connected()
                peer = self.transport.get_extra_info("peername")
                if not settings.allows(peer[0]) or len(self.server.active_connections) > MOST_CLIENTS:
                    self.transport.abort()  # type: ignore[attr-defined]
                    return
                _keep_alive(self.transport.get_extra_info("socket"))

            async def handle_request(self) -> None:
                if self.last_pdu and self.last_pdu.function_code not in FUNCTIONS:
                    from pymodbus.constants import ExcCodes
                    from pymodbus.pdu import ExceptionResponse

                    refused = ExceptionResponse(self.last_pdu.function_code, ExcCodes.ILLEGAL_FUNCTION)
                    refused.transaction_id, refused.dev_id = self.last_pdu.transaction_id, self.last_pdu.dev_id
                    self.server_send(refused, self.last_addr)  # type: ignore[no-untyped-call]
                    return
                await super().handle_request()  # type: ignore[no-untyped-call]

        class Server(ModbusTcpServer):
            """A server with such connections."""

            def callback_new_connection(self) -> ServerRequestHandler:
                handlers = self.trace_packet, self.trace_pdu, self.trace_connect
                return Connection(self, *handlers)  # type: ignore[no-untyped-call]

        def registers(address: int, count: int, readonly: bool) -> Any:
            return SimData(address, count=count, values=0, datatype=DataType.REGISTERS, readonly=readonly)

        device = SimDevice(
            id=0,  # any
            simdata=(
                [SimData(0, values=[False] * len(COILS), datatype=DataType.BITS)],
                [SimData(0, values=[False] * BITS, datatype=DataType.BITS)],
                [registers(0, REQUEST_REGISTERS, False), registers(MIRROR, INPUT_REGISTERS, True)],
                [registers(0, INPUT_REGISTERS, True)],
            ),
            action=self._act,
        )
        server = Server(device, address=(settings.host, settings.port))
        try:
            await server.serve_forever(background=True)
        except (RuntimeError, OSError):
            raise ConfigError(
                f"Modbus cannot listen on {settings.host}, port {settings.port}: another program uses it, or this "
                "machine does not have the address or the permission; change `host` or `port` of [modbus]"
            ) from None
        return server

    async def _act(
        self, function: int, _start: int, address: int, _count: int, registers: list[int], values: Sequence[int] | None
    ) -> ExcCodes | None:
        """Carry out a request: bring the block of registers up to date, or take over what a client writes."""
        from pymodbus.constants import ExcCodes

        if values is not None:
            return self._write(function, address, values)
        if function in MOST_BITS and address >= MOST_BITS[function]:
            return ExcCodes.ILLEGAL_ADDRESS
        if function == READ_COILS:
            registers[0] = sum(bool(self._requests[register]) << coil for coil, register in COILS.items())
        elif function == READ_BITS:
            registers[0] = self._inputs()[0]
        elif function == READ_INPUT:
            registers[:INPUT_REGISTERS] = self._inputs()
        else:
            registers[:REQUEST_REGISTERS] = self._requests
            registers[MIRROR : MIRROR + INPUT_REGISTERS] = self._inputs()
        return None

    def _inputs(self) -> list[int]:
        signals = self._handshake.snapshot()
        if self._encoded is None or self._encoded[0] is not signals:
            self._encoded = signals, input_registers(signals, self._settings.word_order)
        return self._encoded[1]

    def _write(self, function: int, address: int, values: Sequence[int]) -> ExcCodes | None:
        from pymodbus.constants import ExcCodes

        new = self._requests.copy()
        if function in (WRITE_COIL, WRITE_COILS):
            if address + len(values) > len(COILS):
                return ExcCodes.ILLEGAL_ADDRESS
            written = {COILS[address + index]: int(value) for index, value in enumerate(values)}
        else:
            written = dict(enumerate(values, address))
        for register, value in written.items():
            new[register] = value
        try:
            part_number, product = self._text(new, "RequestedPartNumber"), self._text(new, "RequestedProduct")
        except ValueError:
            return ExcCodes.ILLEGAL_VALUE
        trigger, acknowledge = REGISTER["Trigger"].register, REGISTER["Acknowledge"].register
        if new[trigger] > 1 or new[acknowledge] > 1:
            return ExcCodes.ILLEGAL_VALUE
        before, self._requests = self._requests, new
        if new[acknowledge] and not before[acknowledge]:
            self._handshake.acknowledge()
        if trigger in written:
            number = REGISTER["RequestedTriggerId"].register
            trigger_id = unpack_number(new[number : number + 2], self._settings.word_order)
            self._handshake.write_trigger(
                bool(new[trigger]), BY, part_number=part_number, product=product, trigger_id=trigger_id
            )
        return None

    def _text(self, registers: list[int], name: str) -> str:
        place = REGISTER[name]
        return unpack_text(registers[place.register : place.register + place.size])


async def _shut_down(server: Any) -> None:
    await server.shutdown()


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
