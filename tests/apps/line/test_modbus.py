"""A line on Modbus TCP, with pymodbus' client as the PLC."""

from __future__ import annotations

import random
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from patchsvdd.apps.line.bus_settings import ModbusSettings
from patchsvdd.apps.line.modbus import ModbusServer
from patchsvdd.apps.line.parts import PartRegion, VerdictCode
from patchsvdd.apps.line.signal_table import CHARACTERS, input_registers, pack_text
from patchsvdd.apps.line.signals import FaultCode, Signals
from patchsvdd.apps.line.toml_table import TomlTable
from patchsvdd.core.errors import ConfigError
from support.bus import REGION, AnsweringLine, example, expected
from support.waiting import wait_until

pytest.importorskip("pymodbus")

from pymodbus.client import ModbusTcpClient  # after the skip

pytestmark = pytest.mark.service

READY, BUSY, RESULT_VALID, TRIGGER = 1, 2, 4, 8
ILLEGAL_FUNCTION, ILLEGAL_ADDRESS, ILLEGAL_VALUE = 1, 2, 3


@contextmanager
def serving(line: AnsweringLine, settings: ModbusSettings | None = None) -> Iterator[ModbusServer]:
    server = ModbusServer(line.handshake, settings or ModbusSettings("127.0.0.1", 0))
    with line.running():
        server.start()
        try:
            yield server
        finally:
            server.close()


def port_of(server: ModbusServer) -> int:
    return int(server.state().address.rpartition(":")[2])


@contextmanager
def connected(server: ModbusServer) -> Iterator[ModbusTcpClient]:
    client: Any = ModbusTcpClient("127.0.0.1", port=port_of(server), timeout=20)
    assert client.connect()
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module")
def line() -> AnsweringLine:
    return AnsweringLine()


@pytest.fixture(scope="module")
def server(line: AnsweringLine) -> Iterator[ModbusServer]:
    with serving(line) as started:
        yield started


@pytest.fixture
def plc(server: ModbusServer, line: AnsweringLine) -> Iterator[ModbusTcpClient]:
    with connected(server) as client:
        client.write_registers(0, [0, 0])
        client.write_registers(0, [0, 1])
        wait_until(lambda: status(client) == READY)
        yield client


def status(client: ModbusTcpClient) -> int:
    return client.read_input_registers(0, count=1).registers[0]


def trigger(client: ModbusTcpClient, part_number: str, trigger_id: int) -> None:
    words = [1, 0, trigger_id >> 16, trigger_id & 0xFFFF, *pack_text(part_number, CHARACTERS // 2)]
    assert not client.write_registers(0, words).isError()


def text(registers: Sequence[int]) -> str:
    return struct.pack(f">{len(registers)}H", *registers).rstrip(b"\0").decode("ascii")


def number(registers: Sequence[int], kind: str = "I") -> float:
    return float(struct.unpack(f">{kind}", struct.pack(">2H", *registers))[0])


def test_200_parts_have_their_own_results(plc: ModbusTcpClient) -> None:
    for trigger_id in range(100_001, 100_201):
        part_number = f"part-{trigger_id}"
        trigger(plc, part_number, trigger_id)
        while not (registers := plc.read_input_registers(0, count=124).registers)[0] & RESULT_VALID:
            assert registers[0] == BUSY | TRIGGER
        verdict, score, regions = expected(part_number, trigger_id)
        assert registers[0] == RESULT_VALID | TRIGGER
        assert registers[1] == VerdictCode[verdict.upper()]
        assert number(registers[2:4], "f") == score
        assert (registers[4], number(registers[8:10])) == (FaultCode.NONE, trigger_id)
        assert text(registers[12:28]) == part_number
        assert registers[10] == len(regions)
        for index in range(8):
            slot = registers[44 + 10 * index : 54 + 10 * index]
            if index < len(regions):
                assert slot[:4] == [REGION.left, REGION.top, REGION.width, REGION.height]
                assert (number(slot[4:6], "f"), text(slot[6:])) == (REGION.peak, REGION.view)
            else:
                assert slot == [0] * 10
        plc.write_register(0, 0)
        assert status(plc) == READY


def test_holding_registers_from_100_repeat_the_input_registers(plc: ModbusTcpClient) -> None:
    trigger(plc, "A1", 7)
    wait_until(lambda: status(plc) & RESULT_VALID)
    for first, count in ((0, 124), (124, 64), (3, 5)):
        inputs = plc.read_input_registers(first, count=count).registers
        inputs_again = plc.read_holding_registers(100 + first, count=count).registers
        assert inputs[6:] == inputs_again[6:]
    assert text(plc.read_input_registers(124, count=32).registers).startswith("model-")
    assert plc.read_discrete_inputs(0, count=4).bits[:4] == [False, False, True, True]
    assert plc.read_coils(0, count=2).bits[:2] == [True, False]
    assert plc.read_holding_registers(0, count=5).registers == [1, 0, 0, 7, 0x4131]


def test_coils_are_the_same_trigger_and_acknowledge(plc: ModbusTcpClient, line: AnsweringLine) -> None:
    plc.write_registers(4, [0] * 32)
    plc.write_coil(0, True)
    wait_until(lambda: status(plc) & RESULT_VALID)
    assert line.started[-1][3] == "modbus"
    plc.write_coils(0, [False, False])
    assert status(plc) == READY
    plc.mask_write_register(address=0, and_mask=0, or_mask=1)
    wait_until(lambda: status(plc) & RESULT_VALID)


def test_a_read_sees_one_moment(line: AnsweringLine, server: ModbusServer, plc: ModbusTcpClient) -> None:
    """While parts run as fast as they can, no read has half of one result and half of another."""
    seen: set[int] = set()
    with connected(server) as other:
        for trigger_id in range(300, 400):
            trigger(plc, f"part-{trigger_id}", trigger_id)
            while True:
                words = other.read_holding_registers(100, count=124).registers
                valid, shown = words[0] & RESULT_VALID, int(number(words[8:10]))
                if valid:
                    assert text(words[12:28]) == f"part-{shown}"
                    assert number(words[2:4], "f") == expected("", shown)[1]
                    assert words[10] == len(expected("", shown)[2])
                    seen.add(shown)
                if valid and shown == trigger_id:
                    break
            plc.write_register(0, 0)
    assert seen == set(range(300, 400))


@pytest.mark.parametrize("order", ["big", "little"])
def test_the_order_of_words(order: str) -> None:
    table = {"host": "127.0.0.1", "port": 0, "word_order": order}
    line = AnsweringLine()
    with serving(line, ModbusSettings.from_table(TomlTable("modbus", table))) as server, connected(server) as plc:
        high, low = (2, 3) if order == "big" else (3, 2)
        plc.write_register(0, 0)
        words = [1, 0, 0, 0]
        words[high], words[low] = 0x1234, 0x5678
        plc.write_registers(0, words)
        wait_until(lambda: line.handshake.snapshot().result_valid)
        assert line.handshake.snapshot().trigger_id == 0x12345678
        shown = plc.read_input_registers(8, count=2).registers
        assert shown == ([0x1234, 0x5678] if order == "big" else [0x5678, 0x1234])
        score = plc.convert_from_registers(
            plc.read_input_registers(2, count=2).registers,
            plc.DATATYPE.FLOAT32,
            word_order="big" if order == "big" else "little",
        )
        assert score == expected("", 0x12345678)[1]


@pytest.mark.parametrize(
    ("address", "values", "code"),
    [
        (36, [1], ILLEGAL_ADDRESS),
        (35, [1, 1], ILLEGAL_ADDRESS),
        (100, [1], ILLEGAL_ADDRESS),
        (60000, [1], ILLEGAL_ADDRESS),
        (0, [2], ILLEGAL_VALUE),
        (1, [0xFFFF], ILLEGAL_VALUE),
        (4, [0x41E4], ILLEGAL_VALUE),
        (20, [0x0A41], ILLEGAL_VALUE),
    ],
)
def test_what_cannot_be_written_is_refused_as_a_whole(
    plc: ModbusTcpClient, address: int, values: list[int], code: int
) -> None:
    before = plc.read_holding_registers(0, count=36).registers
    assert plc.write_registers(address, values).exception_code == code
    assert plc.read_holding_registers(0, count=36).registers == before


def test_what_does_not_exist_cannot_be_read(plc: ModbusTcpClient) -> None:
    assert plc.read_input_registers(188, count=1).exception_code == ILLEGAL_ADDRESS
    assert plc.read_input_registers(187, count=2).exception_code == ILLEGAL_ADDRESS
    assert plc.read_holding_registers(90, count=20).exception_code == ILLEGAL_ADDRESS
    assert plc.read_discrete_inputs(4, count=1).exception_code == ILLEGAL_ADDRESS
    assert plc.read_coils(2, count=1).exception_code == ILLEGAL_ADDRESS
    assert plc.write_coil(2, True).exception_code == ILLEGAL_ADDRESS
    assert plc.diag_force_listen_only(no_response_expected=False).exception_code == ILLEGAL_FUNCTION
    assert plc.report_device_id().exception_code == ILLEGAL_FUNCTION
    assert not plc.read_input_registers(0, count=1).isError()


def test_a_client_that_vanishes_leaves_its_part_to_be_answered(server: ModbusServer, line: AnsweringLine) -> None:
    with connected(server) as client:
        client.write_register(0, 0)
        trigger(client, "A1", 77)
        assert client.socket is not None
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
    wait_until(lambda: server.state().clients == 0)
    wait_until(lambda: line.handshake.snapshot().result_valid)
    with connected(server) as client:
        assert number(client.read_input_registers(8, count=2).registers) == 77
        assert status(client) == RESULT_VALID | TRIGGER
        client.write_register(0, 0)
        assert status(client) == READY


def test_garbage_closes_or_is_ignored_and_the_line_works_on(plc: ModbusTcpClient, server: ModbusServer) -> None:
    noise = random.Random(0)
    requests = [noise.randbytes(noise.randrange(1, 300)) for _ in range(40)]
    requests += [b"\0\1\0\0\0\6\1\3\0\0\0\x7e", b"\0\1\0\0\0\3\1\x10\0", b"\0\1\0\0\xff\xff\1\3\0\0", b"\0" * 600]
    for request in requests:
        with socket.create_connection(("127.0.0.1", port_of(server))) as raw:
            raw.sendall(request)
    trigger(plc, "A1", 5)
    wait_until(lambda: status(plc) & RESULT_VALID)
    wait_until(lambda: server.state().clients == 1)


def test_a_flood_of_triggers_is_an_overrun_and_parts_are_answered() -> None:
    line = AnsweringLine(seconds=0.02)
    with serving(line) as server, connected(server) as plc:
        plc.write_register(0, 0)
        end, writes = time.monotonic() + 1.5, 0
        while time.monotonic() < end:
            plc.write_register(0, 1)
            plc.write_register(0, 0)
            writes += 1
        assert writes > 2 * len(line.started) > 10
        words = plc.read_input_registers(0, count=10).registers
        assert words[4] == FaultCode.OVERRUN
        wait_until(lambda: number(plc.read_input_registers(6, count=2).registers) == len(line.started))
        assert len(line.events) == 1


def test_only_listed_clients_may_connect() -> None:
    line = AnsweringLine()
    with serving(line, ModbusSettings("127.0.0.1", 0, clients=("192.0.2.0/24",))) as server:
        with socket.create_connection(("127.0.0.1", port_of(server))) as raw:
            raw.settimeout(20)
            with suppress(ConnectionResetError):
                assert raw.recv(100) == b""
        assert server.state().clients == 0


def test_a_port_in_use_is_said(server: ModbusServer, line: AnsweringLine) -> None:
    second = ModbusServer(line.handshake, ModbusSettings("127.0.0.1", port_of(server)))
    with pytest.raises(ConfigError, match=r"Modbus cannot listen on 127.0.0.1, port \d+"):
        second.start()
    assert second.state().trouble == "not started"


def test_a_server_that_restarts_keeps_the_trigger(line: AnsweringLine) -> None:
    line = AnsweringLine(timeout=0.3)
    with serving(line) as server:
        with connected(server) as plc:
            plc.write_register(0, 0)
            trigger(plc, "slow", 1)
        server.close()
        wait_until(lambda: line.handshake.snapshot().fault == FaultCode.TIMEOUT)
        server.start()
        with connected(server) as plc:
            assert plc.read_holding_registers(0, count=1).registers == [1]
            assert plc.read_input_registers(4, count=1).registers == [FaultCode.TIMEOUT]
            plc.write_register(0, 0)
            assert status(plc) == 0
            plc.write_register(1, 1)
            assert status(plc) == READY


def test_the_heartbeat_counts(plc: ModbusTcpClient) -> None:
    first = plc.read_input_registers(5, count=1).registers
    wait_until(lambda: plc.read_input_registers(5, count=1).registers != first)


def test_large_regions_and_long_texts_fit() -> None:
    region = PartRegion("a view with a long name", 70_000, -1, 1, 2, 1e30)
    words = input_registers(Signals(regions=(region,) * 8, part_number="ü" * 40, sequence=1 << 40), "big")
    assert words[44:48] == [0xFFFF, 0, 1, 2]
    assert text(words[50:54]) == "a view w"
    assert text(words[12:28]) == "?" * 32
    assert number(words[6:8]) == 0


def test_the_example_of_the_documentation_runs(
    server: ModbusServer, plc: ModbusTcpClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(plc) == READY
    there = f'"127.0.0.1", port={port_of(server)}'
    code = example("pymodbus")
    assert '"192.168.1.5", port=502' in code
    exec(code.replace('"192.168.1.5", port=502', there), {})
    assert capsys.readouterr().out == f"A-0815 1 {VerdictCode.GOOD}\n{expected('', 1)[1]}\n"


def test_a_missing_library_is_named(line: AnsweringLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymodbus", None)
    with pytest.raises(ConfigError, match=r'pip install "patchsvdd\[modbus\]"'):
        ModbusServer(line.handshake, ModbusSettings("127.0.0.1", 0))
