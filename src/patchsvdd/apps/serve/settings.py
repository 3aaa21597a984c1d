"""What a service is told when it starts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from patchsvdd.core.errors import ConfigError

MEBIBYTE = 1 << 20
LONGEST = 36500
"""Days that anything is kept, unless for good."""


@dataclass(frozen=True)
class Limits:
    """What a request may ask for; everything beyond is refused before it costs anything."""

    upload_bytes: int = 32 * MEBIBYTE
    """Of one image."""
    batch_images: int = 64
    """In one request."""
    batch_bytes: int = 256 * MEBIBYTE
    """Of them together."""
    pixels: int = 64_000_000
    """Of one image, by its header, before it is decoded."""
    decode_seconds: float = 10.0
    """After which the process that decodes an image is killed."""
    decoders: int = 2
    """Processes that decode."""
    queue: int = 64
    """Images that may be on their way at a time; one more is answered with 503."""
    batch_size: int | None = None
    """Images that are computed together at most; None for what suits the device."""
    deadline: float = 30.0
    """Seconds within which an image is answered, or given up with 503."""
    training_images: int = 2000
    """Uploaded for one training."""
    training_bytes: int = 4096 * MEBIBYTE
    """Of them together."""

    def __post_init__(self) -> None:
        for name in ("upload_bytes", "batch_images", "batch_bytes", "pixels", "decoders", "queue", "training_images"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1; got {getattr(self, name)}")
        for name in ("decode_seconds", "deadline"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` must be more than 0 seconds; got {getattr(self, name)}")


@dataclass(frozen=True)
class Retention:
    """How long inspections are kept, and how much room their pictures take; None for without end."""

    days: float | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        if self.days is not None and not 0 < self.days <= LONGEST:
            raise ConfigError(f"`keep_days` must be more than 0 and at most {LONGEST} days; got {self.days:g}")
        if self.bytes is not None and self.bytes < MEBIBYTE:
            raise ConfigError(f"`keep_gb` must be more than 0 gigabytes; got {self.bytes / 1e9:g}")


@dataclass(frozen=True)
class Settings:
    """A service."""

    models: tuple[Path, ...]
    """Model folders; each is served under the folder's name."""
    data: Path
    """Where pictures, trainings and the embedded database lie."""
    store: str | None = None
    """URL of the database; None for SQLite in ``data``."""
    host: str = "127.0.0.1"
    port: int = 8000
    require_key: bool = False
    """Whether an API key is needed on loopback too."""
    secure_cookies: bool = False
    """Whether browsers reach the page by HTTPS, and cookies go no other way."""
    device: str = "auto"
    engine: str = "auto"
    search: str = "auto"
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)

    @property
    def url(self) -> str:
        """Of the database, as SQLAlchemy takes it."""
        if self.store is None:
            return f"sqlite:///{self.data / 'inspections.sqlite'}"
        return database_url(self.store)

    @property
    def trained(self) -> Path:
        """Where models that were trained on the page lie; they are served too."""
        return self.data / "models"

    @property
    def needs_key(self) -> bool:
        """Whether every request must show a key."""
        return self.require_key or not is_loopback(self.host)


def database_url(store: str) -> str:
    """A database's URL with the driver that this software uses."""
    for prefix in ("postgresql://", "postgres://"):
        if store.startswith(prefix):
            return f"postgresql+psycopg://{store.removeprefix(prefix)}"
    if store.startswith(("sqlite:///", "postgresql+psycopg://")) and store not in ("sqlite:///", "sqlite:///:memory:"):
        return store
    kind = store.split("://")[0] if "://" in store else store
    raise ConfigError(f"`store` must be postgresql://user@host/database or sqlite:///file; got '{kind}…'")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
