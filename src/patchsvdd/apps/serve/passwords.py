"""Passwords and PINs: which are accepted, and how they are stored.

A password is stored as ``scrypt$n$r$p$salt$hash``: a slow hash with a salt of its own and the parameters with which it
was made. A PIN of six digits has a million possibilities, so it is the limit of attempts that protects it, not the
hash; someone with a copy of the database can find a PIN.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import unicodedata

from patchsvdd.core.errors import ConfigError

N, R, P = 1 << 14, 8, 5
"""scrypt: 16 MB and some tenths of a second for each attempt."""
MEMORY = 64 << 20
PIN_DIGITS = 6
PASSWORD_LENGTH = 8
MAX_LENGTH = 200
COMMON = frozenset(
    (
        *("password", "passwort", "passw0rd", "qwertyui", "qwertzui", "iloveyou", "letmein", "welcome", "admin"),
        *("patchsvdd", "inspect", "operator", "changeme", "112233", "121314", "159753", "147258", "789456", "246810"),
    )
)
"""Refused also with digits or marks after them."""
RUNS = ("01234567890" * 2, "abcdefghijklmnopqrstuvwxyz", "qwertyuiop", "qwertzuiop", "asdfghjkl")


def check_password(password: str, name: str) -> None:
    """Raise ConfigError if a password is too short, or among the first that anyone would try."""
    length = len(password)
    if length > MAX_LENGTH:
        raise ConfigError(f"a password may have at most {MAX_LENGTH} characters")
    enough = PIN_DIGITS if password.isascii() and password.isdigit() else PASSWORD_LENGTH
    if length < enough:
        raise ConfigError(
            f"a PIN needs {PIN_DIGITS} or more digits, and a password {PASSWORD_LENGTH} or more characters"
        )
    plain, own = password.casefold(), name.strip().casefold()
    if _is_obvious(plain) or (own and (plain in (own, own[::-1], 2 * own) or _adds_little(plain, own))):
        raise ConfigError(
            "this password is easy to guess; avoid rows and repeats such as 123456 or 111111, common words, "
            "and the user's name"
        )


def _is_obvious(plain: str) -> bool:
    length = len(plain)
    if plain in COMMON or plain.rstrip("0123456789!.?") in COMMON:
        return True
    if any(plain == (plain[:period] * length)[:length] for period in (1, 2, 3)):
        return True
    return any(plain in run or plain in run[::-1] for run in RUNS)


def _adds_little(plain: str, own: str) -> bool:
    """Whether a password is the name with a few characters before or after it."""
    return len(own) >= 3 and own in plain and len(plain) - len(own) < 4


def hashed(password: str) -> str:
    """The stored form of a password."""
    salt = secrets.token_bytes(16)
    return "$".join(("scrypt", str(N), str(R), str(P), _text(salt), _text(_scrypt(password, salt, N, R, P))))


def matches(password: str, stored: str | None) -> bool:
    """Whether a password is the stored one; without a stored one, False after the same time."""
    if stored is None:
        _scrypt(password, bytes(16), N, R, P)
        return False
    _, n, r, p, salt, wanted = stored.split("$")
    got = _scrypt(password, base64.b64decode(salt), int(n), int(r), int(p))
    return hmac.compare_digest(got, base64.b64decode(wanted))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    data = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=n, r=r, p=p, maxmem=MEMORY, dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
