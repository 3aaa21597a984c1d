"""The tables [opcua] and [modbus]."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from patchsvdd.apps.line.bus_settings import ModbusSettings, OpcUaSettings, OpcUaUser
from patchsvdd.apps.line.toml_table import TomlTable
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.password_hash import hashed, is_stored_form, matches

SECRET = hashed("the secret of the PLC")
OPCUA = f"""
host = "192.168.1.5"
port = 4841
name = "Press 3"
security = ["Basic256Sha256"]
certificate = "press-certificate.der"
private_key = "/keys/press-key.pem"
trusted_clients = "trusted"
anonymous = "read"

[users.plc]
password = "{SECRET}"
role = "operate"

[users.mes]
password = "{SECRET}"
"""


def test_opcua() -> None:
    assert OpcUaSettings.from_table(TomlTable("opcua", tomllib.loads(OPCUA)), Path("/line")) == OpcUaSettings(
        host="192.168.1.5",
        port=4841,
        name="Press 3",
        security=("Basic256Sha256",),
        certificate=Path("/line/press-certificate.der"),
        private_key=Path("/keys/press-key.pem"),
        trusted_clients=Path("/line/trusted"),
        users=(OpcUaUser("plc", SECRET, "operate"), OpcUaUser("mes", SECRET, "read")),
        anonymous="read",
    )


def test_modbus() -> None:
    table = tomllib.loads(
        'host = "0.0.0.0"\nword_order = "little"\nclients = ["192.168.1.7", "10.0.0.0/8", "fe80::/10"]'
    )
    settings = ModbusSettings.from_table(TomlTable("modbus", table))
    assert settings == ModbusSettings("0.0.0.0", 502, "little", ("192.168.1.7", "10.0.0.0/8", "fe80::/10"))
    allowed = ("192.168.1.7", "::ffff:192.168.1.7", "10.3.4.5", "fe80::1%eth0")
    assert all(settings.allows(address) for address in allowed)
    assert not any(settings.allows(address) for address in ("192.168.1.8", "127.0.0.1", "::1"))
    assert ModbusSettings("0.0.0.0").allows("203.0.113.9")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("hosts = 1", r"`opcua.hosts` is not a setting of a line; did you mean `host`\?"),
        ("zzz = 1", "`opcua.zzz` is not a setting of a line; known keys: anonymous, certificate, host, name, port"),
        ('port = "4840"', "`opcua.port` must be a whole number; got '4840'"),
        ("port = true", "`opcua.port` must be a whole number from 0 to 65535; got True"),
        ("port = 70000", "must be a whole number from 0 to 65535; got 70000"),
        ('host = ""', "`opcua.host` must be an address"),
        ('name = ""', "1 to 40 printable characters"),
        ("security = []", "`opcua.security` is empty"),
        ('security = ["Basic256"]', "must be one of Basic256Sha256, Aes256Sha256RsaPss, None; got 'Basic256'"),
        ('security = "None"', "`opcua.security` must be a list of texts; got 'None'"),
        ("anonymous = true", "`opcua.anonymous` must be one of read, operate; got True"),
        ('users = "plc"', "`opcua.users` must be a table"),
        ("certificate = 1", "`opcua.certificate` must be text in quotes; got 1"),
        ("users = { plc = 1 }", "`opcua.users.plc` must be a table; got 1"),
        (
            'users = { plc = { password = "secret" } }',
            "`opcua.users.plc.password` must be a hash that begins with scrypt",
        ),
        (
            f'users = {{ plc = {{ password = "{SECRET}", role = "admin" }} }}',
            "`opcua.users.plc.role` must be one of read, operate; got 'admin'",
        ),
        (
            f'users = {{ plc = {{ passwords = "{SECRET}" }} }}',
            "`opcua.users.plc.password` is missing; it must be text in quotes",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_said_in_one_line(change: str, message: str) -> None:
    key = change.split(" ")[0]
    lines = OPCUA.split("\n[users")[0] if key == "users" else OPCUA
    table = {**tomllib.loads(lines), **tomllib.loads(change)}
    with pytest.raises(ConfigError, match=message) as error:
        OpcUaSettings.from_table(TomlTable("opcua", table))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "`opcua.host` is missing"),
        ({"host": "127.0.0.1"}, "nobody could connect over OPC UA"),
        ({"host": "127.0.0.1", "anonymous": "read"}, "needs `certificate` and `private_key` for encrypted connections"),
        (
            {"host": "127.0.0.1", "anonymous": "read", "security": ["None"], "certificate": "a"},
            "both `certificate` and `private_key`, or neither",
        ),
    ],
)
def test_what_a_table_lacks_is_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpcUaSettings.from_table(TomlTable("opcua", table))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"port": 502}, "`modbus.host` is missing"),
        ({"host": "h", "word_order": "middle"}, "must be one of big, little; got 'middle'"),
        ({"host": "h", "clients": ["192.168.1.300"]}, "192.168.1.0/24; '192.168.1.300'"),
        ({"host": "h", "clients": [1]}, "must be a list of texts"),
        ({"host": "h", "user": "x"}, "`modbus.user` is not a setting of a line"),
    ],
)
def test_what_is_wrong_with_a_table_of_modbus(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModbusSettings.from_table(TomlTable("modbus", table))


def test_stored_passwords() -> None:
    assert is_stored_form(SECRET)
    assert matches("the secret of the PLC", SECRET)
    assert not any(
        is_stored_form(text) for text in ("", "secret", "scrypt$1", "scrypt$a$b$c$d$e", f"{SECRET}$", "md5$x")
    )
