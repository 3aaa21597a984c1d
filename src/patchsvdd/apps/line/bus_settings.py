"""Settings of the buses: the tables ``[opcua]`` and ``[modbus]`` of a line's file."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from patchsvdd.apps.line.signal_table import WordOrder
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.password_hash import is_stored_form

Role = Literal["read", "operate"]
"""What a client may do: only read, or also trigger and acknowledge."""
Security = Literal["Basic256Sha256", "Aes256Sha256RsaPss", "None"]
"""How a connection is protected: signed and encrypted, or not at all."""
T = TypeVar("T")


@dataclass(frozen=True)
class OpcUaUser:
    """Someone who may connect over OPC UA."""

    name: str
    password: str
    """As ``patchsvdd.core.password_hash.hashed`` returns it."""
    role: Role


@dataclass(frozen=True)
class OpcUaSettings:
    """The table ``[opcua]``."""

    host: str
    """The address to listen on; 0.0.0.0 for all of this machine."""
    port: int = 4840
    name: str = "Line"
    """The object under which the nodes are, and the beginning of their ids."""
    security: tuple[Security, ...] = ("Basic256Sha256", "Aes256Sha256RsaPss")
    certificate: Path | None = None
    """The server's own, DER or PEM."""
    private_key: Path | None = None
    """PEM, without a password."""
    trusted_clients: Path | None = None
    """A folder with certificates of clients, or of authorities that signed them; None trusts every certificate."""
    users: tuple[OpcUaUser, ...] = ()
    anonymous: Role | None = None
    """What clients without a name may do; None refuses them."""

    def __post_init__(self) -> None:
        _check_address("opcua", self.host, self.port)
        if not self.name or not self.name.isprintable() or len(self.name) > 40:
            raise ConfigError(f"`name` of [opcua] must have 1 to 40 printable characters; got '{self.name}'")
        if not self.security:
            raise ConfigError(f"`security` of [opcua] is empty; choose from {', '.join(get_args(Security))}")
        if len({user.name for user in self.users}) != len(self.users):
            raise ConfigError("[opcua.users] names a user twice")
        if not self.users and self.anonymous is None:
            raise ConfigError('nobody could connect over OPC UA; add [opcua.users.NAME], or set `anonymous="read"`')
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("[opcua] needs both `certificate` and `private_key`, or neither")
        if self.certificate is None and self.security != ("None",):
            raise ConfigError(
                "[opcua] needs `certificate` and `private_key` for encrypted connections; create them, "
                'or set `security=["None"]` if nobody else can reach this network'
            )

    @classmethod
    def from_table(cls, table: Mapping[str, Any], folder: Path = Path()) -> OpcUaSettings:
        """The settings in a table; relative paths start at ``folder``. Raises ConfigError about anything else in it."""
        _check_keys("opcua", table, [field.name for field in fields(cls)])
        users = _read("opcua", table, "users", dict, {})
        anonymous = table.get("anonymous", False)
        return cls(
            host=_host("opcua", table),
            port=_read("opcua", table, "port", int, 4840),
            name=_read("opcua", table, "name", str, "Line"),
            security=_choices("opcua", "security", table.get("security", cls.security), get_args(Security)),
            certificate=_path("opcua", table, "certificate", folder),
            private_key=_path("opcua", table, "private_key", folder),
            trusted_clients=_path("opcua", table, "trusted_clients", folder),
            users=tuple(_user(name, user) for name, user in users.items()),
            anonymous=None if anonymous is False else _choice("opcua", "anonymous", anonymous, get_args(Role)),
        )


@dataclass(frozen=True)
class ModbusSettings:
    """The table ``[modbus]``."""

    host: str
    """The address to listen on; 0.0.0.0 for all of this machine."""
    port: int = 502
    word_order: WordOrder = "big"
    """Which register of a 32-bit value comes first: that with its high word (big) or its low word."""
    clients: tuple[str, ...] = ()
    """Addresses or networks that may connect, such as 192.168.1.7 or 192.168.1.0/24; empty for all."""

    def __post_init__(self) -> None:
        _check_address("modbus", self.host, self.port)
        for client in self.clients:
            try:
                ipaddress.ip_network(client)
            except ValueError as error:
                raise ConfigError(
                    f"`clients` of [modbus] must be addresses or networks such as 192.168.1.0/24; {error}"
                ) from None

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> ModbusSettings:
        """The settings in a table. Raises ConfigError about anything else in it."""
        _check_keys("modbus", table, [field.name for field in fields(cls)])
        clients = _read("modbus", table, "clients", list, [])
        if not all(isinstance(client, str) for client in clients):
            raise ConfigError(f"`clients` of [modbus] must be a list of texts; got {clients!r}")
        return cls(
            host=_host("modbus", table),
            port=_read("modbus", table, "port", int, 502),
            word_order=_choice("modbus", "word_order", table.get("word_order", "big"), get_args(WordOrder)),
            clients=tuple(clients),
        )

    def allows(self, address: str) -> bool:
        """Whether a client with this address may connect."""
        if not self.clients:
            return True
        there = ipaddress.ip_address(address.partition("%")[0])
        there = getattr(there, "ipv4_mapped", None) or there
        return any(there in ipaddress.ip_network(client) for client in self.clients)


def _user(name: str, table: Any) -> OpcUaUser:
    where = f"opcua.users.{name}"
    if not isinstance(table, Mapping):
        raise ConfigError(f"[{where}] must be a table with `password` and `role`; got {table!r}")
    _check_keys(where, table, ("password", "role"))
    password = _read(where, table, "password", str, "")
    if not is_stored_form(password):
        raise ConfigError(f"`password` of [{where}] must be a hash that begins with scrypt$, not the password itself")
    return OpcUaUser(name, password, _choice(where, "role", table.get("role", "read"), get_args(Role)))


def _check_keys(where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"[{where}] has an unknown setting '{key}'; {hint}")


def _check_address(where: str, host: str, port: int) -> None:
    if not host or not host.isprintable() or " " in host or "/" in host:
        raise ConfigError(f"`host` of [{where}] must be an address of this machine; got '{host}'")
    if not 0 <= port <= 65535:
        raise ConfigError(f"`port` of [{where}] must be 1 to 65535; got {port}")


def _host(where: str, table: Mapping[str, Any]) -> str:
    if "host" not in table:
        raise ConfigError(f"[{where}] needs `host`, the address to listen on, such as 127.0.0.1 or 192.168.1.5")
    return _read(where, table, "host", str, "")


def _read(where: str, table: Mapping[str, Any], key: str, kind: type[T], default: T) -> T:
    value = table.get(key, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        names = {int: "a number", str: "a text", list: "a list", dict: "a table"}
        raise ConfigError(f"`{key}` of [{where}] must be {names[kind]}; got {value!r}")
    return value


def _path(where: str, table: Mapping[str, Any], key: str, folder: Path) -> Path | None:
    return folder / _read(where, table, key, str, "") if key in table else None


def _choice(where: str, key: str, value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ConfigError(f"`{key}` of [{where}] must be {' or '.join(map(repr, known))}; got {value!r}")
    return value


def _choices(where: str, key: str, values: Any, known: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(values, (list, tuple)):
        raise ConfigError(f"`{key}` of [{where}] must be a list; got {values!r}")
    return tuple(dict.fromkeys(_choice(where, key, value, known) for value in values))
