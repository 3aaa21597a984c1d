"""Passwords and PINs: which are accepted.

A PIN of six digits has a million possibilities, so it is the limit of attempts that protects it, not the hash under
which it is stored; someone with a copy of the database can find a PIN.
"""

from __future__ import annotations

from patchsvdd.core.errors import ConfigError

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
