"""The settings of a service."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.files import atomic_write

MEBIBYTE = 1 << 20
GoldenMode = Literal["block", "warn"]
LONGEST = 36500
"""Maximum retention in days."""


@dataclass(frozen=True)
class Limits:
    """Limits of requests; anything beyond is rejected before it uses resources."""

    upload_bytes: int = 32 * MEBIBYTE
    """Maximum size of one image."""
    batch_images: int = 64
    """Maximum number of images in one request."""
    batch_bytes: int = 256 * MEBIBYTE
    """Maximum total size of these images."""
    pixels: int = 64_000_000
    """Maximum pixels of one image, read from its header before decoding."""
    decode_seconds: float = 10.0
    """Time limit for decoding an image; the decoder process is killed after it."""
    decoders: int = 2
    """Number of decoder processes."""
    queue: int = 64
    """Images accepted at a time; more are rejected with 503."""
    batch_size: int | None = None
    """Maximum images per batch; None chooses it for the device."""
    deadline: float = 30.0
    """Time limit in seconds for one image; 503 after it."""
    arriving_bytes: int = 256 * MEBIBYTE
    """Memory for uploads, from their arrival until they are answered; more are rejected with 503."""
    training_images: int = 2000
    """Maximum number of images uploaded for one training."""
    training_bytes: int = 4096 * MEBIBYTE
    """Maximum total size of these images."""

    def __post_init__(self) -> None:
        counts = ("upload_bytes", "batch_images", "batch_bytes", "pixels", "decoders", "queue", "arriving_bytes")
        for name in (*counts, "training_images"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1; got {getattr(self, name)}")
        for name in ("decode_seconds", "deadline"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` must be more than 0 seconds; got {getattr(self, name)}")


@dataclass(frozen=True)
class Retention:
    """How long inspections are kept, and the disk space for images and maps; None for no limit."""

    days: float | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        if self.days is not None and not 0 < self.days <= LONGEST:
            raise ConfigError(f"`keep_days` must be more than 0 and at most {LONGEST} days; got {self.days:g}")
        if self.bytes is not None and self.bytes < MEBIBYTE:
            raise ConfigError(f"`keep_gb` must be more than 0 gigabytes; got {self.bytes / 1e9:g}")


@dataclass(frozen=True)
class Settings:
    """All settings of a service."""

    models: tuple[Path, ...]
    """Model folders; each is served under the folder's name."""
    data: Path
    """Folder of images, training jobs and the embedded database."""
    store: str | None = None
    """URL of the database; None for SQLite in ``data``."""
    host: str = "127.0.0.1"
    port: int = 8000
    require_key: bool = False
    """Whether an API key is required on loopback too."""
    secure_cookies: bool = False
    """Whether the service is behind an HTTPS proxy; marks session cookies Secure."""
    device: str = "auto"
    engine: str = "auto"
    search: str = "auto"
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)
    golden_check: GoldenMode = "block"
    """Whether a model that fails the check with its golden images gives no verdicts, or only a warning."""
    shift_starts: tuple[str, ...] = ()
    """Local times, as HH:MM, at which all models are checked with their golden images."""

    def __post_init__(self) -> None:
        if self.golden_check not in get_args(GoldenMode):
            raise ConfigError(f"`golden_check` must be block or warn; got '{self.golden_check}'")
        for start in self.shift_starts:
            try:
                datetime.strptime(start, "%H:%M")
            except ValueError:
                raise ConfigError(f"`shift_start` must be a time of day such as 06:00; got '{start}'") from None
        object.__setattr__(self, "data", self.data.resolve())  # jobs may go on from another working directory
        object.__setattr__(self, "models", tuple(folder.absolute() for folder in self.models))

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database."""
        if self.store is None:
            return f"sqlite:///{self.data / 'inspections.sqlite'}"
        return database_url(self.store)

    @property
    def trained(self) -> Path:
        """Folder of models trained on the page, which are served too."""
        return self.data / "models"

    @property
    def service_id(self) -> str:
        """Identifier of the data folder, by which services on one database know their own files and jobs."""
        path = self.data / "service-id"
        if not path.is_file():
            with atomic_write(path) as file:
                file.write(secrets.token_hex(8).encode())
        return path.read_text().strip()

    @property
    def needs_key(self) -> bool:
        """Whether every request requires a key."""
        return self.require_key or not is_loopback(self.host)


def database_url(store: str) -> str:
    """The SQLAlchemy URL, with driver, of a URL given by the user."""
    for prefix in ("postgresql://", "postgres://"):
        if store.startswith(prefix):
            return f"postgresql+psycopg://{store.removeprefix(prefix)}"
    if store.startswith(("sqlite:///", "postgresql+psycopg://")) and store not in ("sqlite:///", "sqlite:///:memory:"):
        return store
    kind = store.split("://")[0] if "://" in store else store
    raise ConfigError(f"`store` must be postgresql://user@host/database or sqlite:///file; got '{kind}…'")


def is_loopback(host: str) -> bool:
    """Whether the host is only reachable from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
