"""How passwords are stored: as ``scrypt$n$r$p$salt$hash``, a slow hash with a salt of its own and its parameters."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import unicodedata

N, R, P = 1 << 14, 8, 5
"""scrypt: 16 MB and some tenths of a second for each attempt."""
MEMORY = 64 << 20


def hashed(password: str) -> str:
    """The stored form of a password."""
    salt = secrets.token_bytes(16)
    return "$".join(("scrypt", str(N), str(R), str(P), _text(salt), _text(_scrypt(password, salt, N, R, P))))


def matches(password: str, stored: str | None) -> bool:
    """Whether a password is the stored one; without a stored one, False after the same time."""
    if stored is None:
        _scrypt(password, bytes(16), N, R, P)
        return False
    n, r, p, salt, wanted = _read(stored)
    return hmac.compare_digest(_scrypt(password, salt, n, r, p), wanted)


def is_stored_form(text: str) -> bool:
    """Whether a text is what ``hashed`` returns."""
    try:
        n, r, p, salt, _ = _read(text)
    except ValueError:
        return False
    known = text.startswith("scrypt$") and len(salt) >= 8
    return known and n.bit_count() == 1 and n > 1 and r > 0 and 0 < p <= 64 and 128 * n * r < MEMORY


def _read(stored: str) -> tuple[int, int, int, bytes, bytes]:
    _, n, r, p, salt, wanted = stored.split("$")
    return int(n), int(r), int(p), base64.b64decode(salt), base64.b64decode(wanted)


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    data = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=n, r=r, p=p, maxmem=MEMORY, dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
