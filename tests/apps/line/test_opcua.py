"""A line on OPC UA, with asyncua's client as the PLC."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.line.bus_settings import ModbusSettings, OpcUaSettings, OpcUaUser, Role
from patchsvdd.apps.line.modbus import ModbusServer
from patchsvdd.apps.line.opcua import OpcUaServer
from patchsvdd.apps.line.parts import VerdictCode
from patchsvdd.apps.line.signals import Fault, FaultCode
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.password_hash import hashed
from support.bus import REGION, AnsweringLine, example, expected
from support.waiting import wait_until

pytest.importorskip("asyncua")

import asyncua
from asyncua import ua
from asyncua.common.utils import ServiceError
from asyncua.sync import Client

from patchsvdd.apps.line import opcua_access
from patchsvdd.apps.line.opcua_certificate import application_uri, create_certificate, days_left, load_certificate

pytestmark = pytest.mark.service

PASSWORD = "the secret of the PLC"
DENIED = ua.uaerrors.BadUserAccessDenied
RESULTS = ("Verdict", "Score", "Regions", "PartNumber", "Sequence", "TriggerId", "Model")


@dataclass(frozen=True)
class Place:
    """Certificates of a server and of two clients, of which it trusts one."""

    server: tuple[Path, Path]
    trusted: tuple[Path, Path]
    stranger: tuple[Path, Path]

    @property
    def settings(self) -> OpcUaSettings:
        stored = hashed(PASSWORD)
        names: tuple[tuple[str, Role], ...] = (("plc", "operate"), ("mes", "read"))
        return OpcUaSettings(
            host="127.0.0.1",
            port=0,
            certificate=self.server[0],
            private_key=self.server[1],
            trusted_clients=self.trusted[0].parent,
            users=tuple(OpcUaUser(name, stored, role) for name, role in names),
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("certificates")
    made = (create_certificate(folder / name, name, ["127.0.0.1"]) for name in ("Line", "client", "stranger"))
    return Place(*made)


@contextmanager
def serving(line: AnsweringLine, settings: OpcUaSettings) -> Iterator[OpcUaServer]:
    server = OpcUaServer(line.handshake, settings)
    with line.running():
        server.start()
        try:
            yield server
        finally:
            server.close()


@pytest.fixture(scope="module")
def line() -> AnsweringLine:
    return AnsweringLine()


@pytest.fixture(scope="module")
def server(line: AnsweringLine, place: Place) -> Iterator[OpcUaServer]:
    with serving(line, place.settings) as started:
        yield started


@dataclass
class Plc:
    """What a PLC does with the nodes."""

    client: Client

    def read(self, name: str) -> Any:
        return self.client.get_node(f"ns=2;s=Line.{name}").read_value()

    def read_all(self, *names: str) -> list[Any]:
        return self.client.read_values([self.client.get_node(f"ns=2;s=Line.{name}") for name in names])  # type: ignore[no-any-return]

    def write(self, **values: Any) -> None:
        kinds = {bool: ua.VariantType.Boolean, int: ua.VariantType.UInt32, str: ua.VariantType.String}
        nodes = [self.client.get_node(f"ns=2;s=Line.{name}") for name in values]
        variants = [ua.DataValue(ua.Variant(value, kinds[type(value)])) for value in values.values()]
        self.client.write_values(nodes, variants)

    def trigger(self, part_number: str, trigger_id: int) -> None:
        self.write(Trigger=True, RequestedPartNumber=part_number, RequestedTriggerId=trigger_id)

    def call(self, name: str, *arguments: Any) -> Any:
        return self.client.get_node("ns=2;s=Line").call_method(f"2:{name}", *arguments)


@contextmanager
def connected(
    server: OpcUaServer,
    certificate: tuple[Path, Path] | None,
    user: str | None = "plc",
    password: str = PASSWORD,
    policy: str = "Basic256Sha256",
) -> Iterator[Plc]:
    client = Client(server.state().address, timeout=30)
    if user is not None:
        client.set_user(user)
        client.set_password(password)
    if certificate is not None:
        client.application_uri = application_uri("client")
        client.set_security_string(f"{policy},SignAndEncrypt,{certificate[0]},{certificate[1]}")
    try:
        with client:
            yield Plc(client)
    finally:
        if client.tloop.is_alive():
            client.tloop.stop()


@pytest.fixture(scope="module")
def plc(server: OpcUaServer, place: Place) -> Iterator[Plc]:
    with connected(server, place.trusted) as client:
        yield client


@pytest.fixture
def ready(plc: Plc, line: AnsweringLine) -> Plc:
    """The PLC at a line that waits for a trigger."""
    plc.write(Trigger=False, Acknowledge=False)
    plc.write(Acknowledge=True)
    wait_until(lambda: line.handshake.snapshot().ready)
    return plc


def test_200_parts_have_their_own_results(ready: Plc) -> None:
    for trigger_id in range(100_001, 100_201):
        part_number = f"part-{trigger_id}"
        ready.trigger(part_number, trigger_id)
        while not ready.read("ResultValid"):
            pass
        shown = dict(zip(RESULTS, ready.read_all(*RESULTS), strict=True))
        verdict, score, regions = expected(part_number, trigger_id)
        assert shown["Verdict"] == VerdictCode[verdict.upper()]
        assert (shown["Score"], shown["PartNumber"], shown["TriggerId"]) == (score, part_number, trigger_id)
        assert json.loads(shown["Regions"]) == [vars(region) for region in regions]
        assert shown["Model"] == f"model-{shown['Sequence']}"
        assert ready.read_all("Ready", "Busy", "Fault") == [False, False, FaultCode.NONE]
        ready.write(Trigger=False)
        assert ready.read_all("Ready", "ResultValid") == [True, False]


def test_regions_are_arrays_too(ready: Plc) -> None:
    ready.trigger("A1", 3)
    wait_until(lambda: ready.read("ResultValid"))
    assert ready.read("VerdictText") == "anomalous"
    assert ready.read("RegionCount") == 4
    assert ready.read("RegionView") == [REGION.view] * 4
    assert ready.read("RegionBox") == [REGION.left, REGION.top, REGION.width, REGION.height] * 4
    assert ready.read("RegionPeak") == [REGION.peak] * 4
    assert ready.read("RegionKind") == [REGION.kind] * 4


@dataclass
class Heard:
    """What a subscription was sent, in order."""

    changes: list[tuple[str, Any]] = field(default_factory=list)

    def datachange_notification(self, node: Any, value: Any, _data: Any) -> None:
        self.changes.append((str(node.nodeid.Identifier).removeprefix("Line."), value))


@pytest.mark.parametrize("period", [0, 20, 500])
def test_a_subscriber_sees_the_result_before_it_becomes_valid(ready: Plc, line: AnsweringLine, period: int) -> None:
    heard = Heard()
    subscription = ready.client.create_subscription(period, heard)
    names = ("ResultValid", *RESULTS)
    subscription.subscribe_data_change([ready.client.get_node(f"ns=2;s=Line.{name}") for name in names])
    wait_until(lambda: len(heard.changes) == len(names))
    trigger_ids = range(500 + period, 512 + period)
    for trigger_id in trigger_ids:
        ready.trigger(f"part-{trigger_id}", trigger_id)
        wait_until(lambda: line.handshake.snapshot().result_valid, poll=0.001)
        ready.write(Trigger=False)
    wait_until(lambda: heard.changes[-1:] == [("ResultValid", False)] and heard.changes.count(heard.changes[-1]) > 12)
    subscription.delete()
    shown: dict[str, Any] = {}
    valid = []
    for name, value in heard.changes:
        if shown.get("ResultValid"):
            assert (name, value) == ("ResultValid", False), "a result changed while it was valid"
        shown[name] = value
        if (name, value) == ("ResultValid", True):
            valid.append(shown["TriggerId"])
            verdict, score, regions = expected("", shown["TriggerId"])
            assert (shown["Verdict"], shown["Score"]) == (VerdictCode[verdict.upper()], score)
            assert len(json.loads(shown["Regions"])) == len(regions)
            assert shown["PartNumber"] == f"part-{shown['TriggerId']}"
    assert valid == [*trigger_ids]


def test_methods_trigger_and_acknowledge(ready: Plc, line: AnsweringLine) -> None:
    assert ready.call("Inspect", "A1", "flange", ua.Variant(8, ua.VariantType.UInt32)) == [True, ""]
    wait_until(lambda: ready.read_all("ResultValid", "TriggerId", "Product") == [True, 8, "flange"])
    line.handshake.block((Fault(FaultCode.SOURCE, "camera top does not answer"),))
    accepted, reason = ready.call("Inspect", "A2", "", ua.Variant(9, ua.VariantType.UInt32))
    assert (accepted, reason.split("; ")[0]) == (False, "camera top does not answer")
    assert ready.call("AcknowledgeFault") is False
    line.handshake.block(())
    assert ready.call("AcknowledgeFault") is True
    for arguments in (("A1", "x"), ("A1", "x", 1), ("A1", "x\n", ua.Variant(1, ua.VariantType.UInt32))):
        with pytest.raises(ua.UaStatusCodeError, match=r"argument|out of range|Arguments|OutOfRange"):
            ready.call("Inspect", *arguments)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("Ready", ua.Variant(True, ua.VariantType.Boolean), DENIED),
        ("Trigger", ua.Variant(1, ua.VariantType.UInt32), ua.uaerrors.BadTypeMismatch),
        ("Trigger", ua.Variant(None, ua.VariantType.Null), ua.uaerrors.BadTypeMismatch),
        ("Trigger", ua.Variant([True], ua.VariantType.Boolean, is_array=True), ua.uaerrors.BadTypeMismatch),
        ("RequestedPartNumber", ua.Variant("x" * 65, ua.VariantType.String), ua.uaerrors.BadOutOfRange),
        ("RequestedProduct", ua.Variant("a\0b", ua.VariantType.String), ua.uaerrors.BadOutOfRange),
    ],
)
def test_what_cannot_be_written_is_refused(ready: Plc, name: str, value: ua.Variant, error: type[Exception]) -> None:
    with pytest.raises(error):
        ready.client.get_node(f"ns=2;s=Line.{name}").write_value(ua.DataValue(value))
    assert ready.read_all("Ready", "Trigger") == [True, False]


def test_nodes_cannot_be_added_or_removed(ready: Plc) -> None:
    line = ready.client.get_node("ns=2;s=Line")
    with pytest.raises(ua.UaStatusCodeError):
        line.add_variable(2, "more", 1)
    with pytest.raises(ua.UaStatusCodeError):
        ready.client.delete_nodes([line])[1][0].check()
    assert ready.read("Ready")


def test_a_user_who_reads_cannot_operate(server: OpcUaServer, place: Place, ready: Plc, line: AnsweringLine) -> None:
    with connected(server, place.trusted, "mes") as mes:
        assert mes.read("Ready")
        for name in ("Trigger", "Acknowledge"):
            with pytest.raises(DENIED):
                mes.write(**{name: True})
        for call in (("Inspect", "A1", "", ua.Variant(1, ua.VariantType.UInt32)), ("AcknowledgeFault",)):
            with pytest.raises(DENIED):
                mes.call(*call)
        assert (line.handshake.snapshot().ready, line.handshake.snapshot().trigger) == (True, False)
        assert server.state().clients == 2


@pytest.mark.parametrize("policy", ["Aes256Sha256RsaPss", "Basic256Sha256"])
def test_both_policies_connect(server: OpcUaServer, place: Place, policy: str) -> None:
    with connected(server, place.trusted, policy=policy) as client:
        assert client.read("Verdict") is not None


def refused(
    server: OpcUaServer, certificate: tuple[Path, Path] | None, user: str | None = "plc", password: str = PASSWORD
) -> str:
    """Why a client is refused."""
    with pytest.raises((ua.UaError, ConnectionError)) as error, connected(server, certificate, user, password):
        pass
    return f"{type(error.value).__name__} {error.value}"


def test_who_is_refused(server: OpcUaServer, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = server.state().clients
    assert "Untrusted" in refused(server, place.stranger)
    assert "No matching endpoints" in refused(server, None)
    assert over_an_open_channel(server) == "BadSecurityModeRejected"
    for user, password in (("plc", "guess"), ("nobody", PASSWORD)):
        assert "AccessDenied" in refused(server, place.trusted, user, password)
    with connected(server, place.trusted) as plc:
        assert plc.read("Verdict") is not None
    assert "IdentityToken" in refused(server, place.trusted, None)
    for _ in range(2):
        refused(server, place.trusted, password="guess")
    assert "AccessDenied" in refused(server, place.trusted), "after too many attempts, the right password waits too"
    monkeypatch.setattr(opcua_access, "WAIT", 0.0)
    with connected(server, place.trusted) as plc:
        assert plc.read("Verdict") is not None
    wait_until(lambda: server.state().clients == sessions)


def test_an_open_channel_is_refused_also_if_every_certificate_is_trusted(place: Place) -> None:
    async def check() -> None:
        access = opcua_access.Access(replace(place.settings, trusted_clients=None))
        access.check_channel(place.stranger[0].read_bytes())
        for nothing in (None, b""):
            with pytest.raises(ServiceError):
                access.check_channel(nothing)

    asyncio.run(check())


def over_an_open_channel(server: OpcUaServer) -> str:
    """The error of a client that ignores the list of endpoints and sends its password without encryption."""

    async def connect() -> str:
        client = asyncua.Client(server.state().address)
        await client.connect_socket()
        await client.send_hello()
        await client.open_secure_channel()
        await client.uaclient.create_session(ua.CreateSessionParameters(RequestedSessionTimeout=10_000))
        token = ua.UserNameIdentityToken(UserName="plc", Password=PASSWORD.encode(), PolicyId="username")
        try:
            await client.uaclient.activate_session(ua.ActivateSessionParameters(UserIdentityToken=token))
        except ua.UaStatusCodeError as error:
            return type(error).__name__
        finally:
            client.disconnect_socket()
        return "connected"

    return asyncio.run(connect())


def test_without_security_if_the_settings_say_so(tmp_path: Path) -> None:
    certificate, key = create_certificate(tmp_path, "soon", days=20)
    settings = OpcUaSettings(
        *("127.0.0.1", 0, "Press 3"), security=("None",), anonymous="read", certificate=certificate, private_key=key
    )
    with serving(AnsweringLine(), settings) as server, connected(server, None, None) as anyone:
        nodes = anyone.client.get_node("ns=2;s=Press 3")
        assert nodes.read_browse_name().Name == "Press 3"
        assert anyone.client.get_node("ns=2;s=Press 3.Ready").read_value() is True
        with pytest.raises(DENIED):
            anyone.client.get_node("ns=2;s=Press 3.Trigger").write_value(True)
        servers = ua.RegisteredServer(ServerUri="urn:x", ServerNames=[ua.LocalizedText("x")])
        with pytest.raises(ua.uaerrors.BadServiceUnsupported):
            anyone.client.tloop.post(anyone.client.aio_obj.uaclient.register_server(servers))
        assert server.state().trouble == "its certificate expires in 20 days"


def test_garbage_is_ignored(server: OpcUaServer, ready: Plc) -> None:
    host, port = server.state().address.removeprefix("opc.tcp://").split(":")
    for request in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 1000,
        b"HELF" + b"\xff" * 60,
        b"OPNF\x10\0\0\0" + b"\1" * 8,
    ):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(request)
    with socket.create_connection((host, int(port))) as endless:
        endless.settimeout(20)
        with pytest.raises(ConnectionError):  # one message must not fill the memory
            endless.sendall(b"MSGF\xff\xff\xff\x7f" + bytes(64 << 20))
    ready.trigger("A1", 5)
    wait_until(lambda: ready.read("ResultValid"))


def test_a_client_that_vanishes_leaves_its_part_to_be_answered(
    server: OpcUaServer, place: Place, line: AnsweringLine, ready: Plc
) -> None:
    with connected(server, place.trusted) as client:
        client.trigger("A1", 77)
        inside: Any = client.client.aio_obj.uaclient
        transport = inside.protocol.transport
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.client.tloop.post(aborted(transport))
        wait_until(lambda: server.state().clients == 1)
    wait_until(lambda: line.handshake.snapshot().result_valid)
    assert ready.read_all("ResultValid", "TriggerId", "Trigger") == [True, 77, True]


async def aborted(transport: Any) -> None:
    transport.abort()


def test_a_flood_of_triggers_is_an_overrun_and_parts_are_answered(
    ready: Plc, line: AnsweringLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "seconds", 0.05)
    parts, events = len(line.started), len(line.events)
    end, writes = time.monotonic() + 1.5, 0
    while time.monotonic() < end:
        ready.write(Trigger=True)
        ready.write(Trigger=False)
        writes += 1
    assert writes > len(line.started) - parts > 5
    assert ready.read("Fault") == FaultCode.OVERRUN
    wait_until(lambda: ready.read("Sequence") == len(line.started))
    assert len(line.events) == events + 1


def test_both_buses_at_once(ready: Plc, line: AnsweringLine) -> None:
    pytest.importorskip("pymodbus")
    from pymodbus.client import ModbusTcpClient

    turns, wrong, first = threading.Lock(), list[int](), len(line.started)
    modbus = ModbusServer(line.handshake, ModbusSettings("127.0.0.1", 0))
    modbus.start()

    def over_modbus() -> None:
        client: Any = ModbusTcpClient("127.0.0.1", port=int(modbus.state().address.rpartition(":")[2]))
        client.connect()
        client.write_register(0, 0)
        for trigger_id in range(1000, 1100):
            with turns:
                client.write_registers(0, [1, 0, 0, trigger_id])
                while not (words := client.read_input_registers(0, count=124).registers)[0] & 4:
                    pass
                if words[9] != trigger_id or words[10] != len(expected("", trigger_id)[2]):
                    wrong.append(trigger_id)
                client.write_register(0, 0)
        client.close()

    thread = threading.Thread(target=over_modbus)
    thread.start()
    for trigger_id in range(2000, 2100):
        with turns:
            ready.trigger("", trigger_id)
            while not ready.read("ResultValid"):
                pass
            if ready.read_all("TriggerId", "RegionCount") != [trigger_id, len(expected("", trigger_id)[2])]:
                wrong.append(trigger_id)
            ready.write(Trigger=False)
    thread.join()
    modbus.close()
    assert wrong == []
    assert sorted(part[2] for part in line.started[first:]) == [*range(1000, 1100), *range(2000, 2100)]
    assert ready.read("Fault") == FaultCode.NONE


def test_a_port_in_use_is_said(server: OpcUaServer, line: AnsweringLine, place: Place) -> None:
    port = int(server.state().address.rpartition(":")[2])
    second = OpcUaServer(line.handshake, replace(place.settings, port=port))
    with pytest.raises(ConfigError, match=r"OPC UA cannot listen on 127.0.0.1, port \d+: Address already in use"):
        second.start()
    assert second.state().trouble == "not started"


def test_what_is_wrong_with_the_certificate_is_said(place: Place, tmp_path: Path) -> None:
    expired = create_certificate(tmp_path, "old", days=0)
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    line = AnsweringLine()
    for changes, message in (
        ({"certificate": tmp_path / "missing.der"}, "cannot read the certificate .*missing.der: No such file"),
        ({"certificate": junk}, "neither DER nor PEM"),
        ({"private_key": junk}, "cannot read `private_key`"),
        ({"private_key": place.trusted[1]}, "does not belong to `certificate`"),
        ({"certificate": expired[0], "private_key": expired[1]}, "has expired"),
        ({"trusted_clients": tmp_path / "none"}, "must be a folder"),
        ({"trusted_clients": tmp_path / ".."}, "has no certificate"),
    ):
        with pytest.raises(ConfigError, match=message):
            OpcUaServer(line.handshake, replace(place.settings, **changes)).start()  # type: ignore[arg-type]


def test_a_certificate_is_for_this_machine_and_its_key_is_private(place: Place) -> None:
    path, key = place.server
    assert key.stat().st_mode & 0o777 == 0o600
    assert 3649 < days_left(load_certificate(path)) < 3651
    with pytest.raises(ConfigError, match="exists; delete it"):
        create_certificate(path.parent, "Line")


def test_the_example_of_the_documentation_runs(
    server: OpcUaServer, place: Place, ready: Plc, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ready.read("Ready")
    code = example("asyncua.sync")
    certificate, key = place.trusted
    for written, here in (
        ("opc.tcp://192.168.1.5:4840", server.state().address),
        ("plc-certificate.der", str(certificate)),
        ("plc-key.pem", str(key)),
        ("the password", PASSWORD),
    ):
        assert written in code
        code = code.replace(written, here)
    exec(code, {})
    assert capsys.readouterr().out == f"A-0815 1 good {expected('', 1)[1]}\n"


def test_a_missing_library_is_named(line: AnsweringLine, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncua", None)
    with pytest.raises(ConfigError, match=r'pip install "patchsvdd\[opcua\]"'):
        OpcUaServer(line.handshake, place.settings)
