"""Settings of the buses: the tables ``[opcua]`` and ``[modbus]`` of a line's file."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from patchsvdd.apps.line.signal_table import WordOrder
from patchsvdd.apps.line.toml_table import TomlTable
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.password_hash import is_stored_form

Role = Literal["read", "operate"]
"""What a client may do: only read, or also trigger and acknowledge."""
Security = Literal["Basic256Sha256", "Aes256Sha256RsaPss", "None"]
"""How a connection is protected: signed and encrypted, or not at all."""


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
        _check_host("opcua", self.host)
        if not self.name or not self.name.isprintable() or len(self.name) > 40:
            raise ConfigError(f"`opcua.name` must have 1 to 40 printable characters; got '{self.name}'")
        if not self.security:
            raise ConfigError(f"`opcua.security` is empty; choose from {', '.join(get_args(Security))}")
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
    def from_table(cls, table: TomlTable, folder: Path = Path()) -> OpcUaSettings:
        """The settings in a table; relative paths start at ``folder``. Raises ConfigError about anything else in it."""
        settings = cls(
            host=_host(table),
            port=table.count("port", 4840, most=65_535),
            name=table.text("name", "Line"),
            security=table.choices("security", get_args(Security), cls.security),
            certificate=_path(table, "certificate", folder),
            private_key=_path(table, "private_key", folder),
            trusted_clients=_path(table, "trusted_clients", folder),
            users=tuple(_user(name, user) for name, user in table.tables("users").items()),
            anonymous=table.choice("anonymous", get_args(Role)) if "anonymous" in table.names() else None,
        )
        table.close()
        return settings


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
        _check_host("modbus", self.host)
        for client in self.clients:
            try:
                ipaddress.ip_network(client)
            except ValueError as error:
                raise ConfigError(
                    f"`modbus.clients` must be addresses or networks such as 192.168.1.0/24; {error}"
                ) from None

    @classmethod
    def from_table(cls, table: TomlTable) -> ModbusSettings:
        """The settings in a table. Raises ConfigError about anything else in it."""
        settings = cls(
            host=_host(table),
            port=table.count("port", 502, most=65_535),
            word_order=table.choice("word_order", get_args(WordOrder), "big"),
            clients=table.texts("clients"),
        )
        table.close()
        return settings

    def allows(self, address: str) -> bool:
        """Whether a client with this address may connect."""
        if not self.clients:
            return True
        there = ipaddress.ip_address(address.partition("%")[0])
        there = getattr(there, "ipv4_mapped", None) or there
        return any(there in ipaddress.ip_network(client) for client in self.clients)


def _user(name: str, table: TomlTable) -> OpcUaUser:
    password = table.text("password")
    if not is_stored_form(password):
        raise ConfigError(f"`{table.name}.password` must be a hash that begins with scrypt$, not the password itself")
    user = OpcUaUser(name, password, table.choice("role", get_args(Role), "read"))
    table.close()
    return user


def _check_host(where: str, host: str) -> None:
    if not host or not host.isprintable() or " " in host or "/" in host:
        raise ConfigError(f"`{where}.host` must be an address of this machine; got '{host}'")


def _host(table: TomlTable) -> str:
    host = table.optional_text("host")
    if host is None:
        raise ConfigError(
            f"`{table.name}.host` is missing; it must be the address to listen on, such as 127.0.0.1 or 192.168.1.5"
        )
    return host


def _path(table: TomlTable, key: str, folder: Path) -> Path | None:
    text = table.optional_text(key)
    return None if text is None else folder / text
