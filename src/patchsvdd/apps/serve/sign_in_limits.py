"""Limits of failed sign-ins: after a few, each further attempt has to wait, longer and longer.

Failures are counted in three ways, so that neither guessing nor keeping somebody out works:

- by address, for all names: nobody tries many names from one place;
- by name at one address;
- by name at all addresses, with more failures allowed and shorter waits. It slows guessing from many addresses, and
  since one address soon waits for 15 minutes, it cannot keep a user out elsewhere. An address from which the user has
  signed in before is exempt: only its own failures count there.

A refused attempt is not looked at and does not count. A success clears the failures of the name and of the address.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_ENTRIES = 10_000
"""Entries of each kind; beyond it, the one that failed longest ago is forgotten."""
FORGET_SECONDS = 24 * 3600.0


@dataclass
class _Failures:
    count: int = 0
    last: float = 0.0
    wait: float = 0.0


class Failures:
    """Failures by key, and how long the next attempt has to wait."""

    def __init__(self, free: int, longest: float) -> None:
        self._free, self._longest = free, longest
        self._entries: OrderedDict[str, _Failures] = OrderedDict()

    def wait(self, key: str, now: float) -> float:
        """Seconds until the next attempt is allowed; 0 if it is."""
        entry = self._entries.get(key)
        if entry is None:
            return 0.0
        if now - entry.last > FORGET_SECONDS:
            del self._entries[key]
            return 0.0
        return max(0.0, entry.last + entry.wait - now)

    def add(self, key: str, now: float) -> None:
        """Count a failure."""
        entry = self._entries.setdefault(key, _Failures())
        entry.count, entry.last = entry.count + 1, now
        beyond = entry.count - self._free
        entry.wait = min(self._longest, 2.0 ** min(beyond, 30)) if beyond >= 0 else 0.0
        self._entries.move_to_end(key)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def clear(self, key: str) -> None:
        """Forget the failures of a key."""
        self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)


class SignInLimits:
    """Decides whether a sign-in may be attempted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.addresses = Failures(free=5, longest=900.0)
        self.pairs = Failures(free=5, longest=900.0)
        self.names = Failures(free=20, longest=60.0)
        self._known: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def attempt(self, address: str, name: str | None) -> float:
        """Seconds to wait before an attempt; 0 if it may go ahead, and is then counted as failed until ``succeeded``.

        Counting it first means that attempts sent at the same time count too. ``name`` is None for a key.
        """
        now, where = self._clock(), network(address)
        with self._lock:
            kinds = self._kinds(where, name)
            wait = max(failures.wait(key, now) for failures, key in kinds)
            if wait == 0.0:
                for failures, key in kinds:
                    failures.add(key, now)
            return wait

    def succeeded(self, address: str, name: str | None) -> None:
        """Clear the failures of a name and of an address."""
        where = network(address)
        with self._lock:
            self.addresses.clear(where)
            if name is not None:
                pair = _pair(where, name)
                self.pairs.clear(pair)
                self.names.clear(name)
                self._known[pair] = None
                self._known.move_to_end(pair)
                while len(self._known) > MAX_ENTRIES:
                    self._known.popitem(last=False)

    def _kinds(self, where: str, name: str | None) -> list[tuple[Failures, str]]:
        kinds = [(self.addresses, where)]
        if name is not None:
            kinds.append((self.pairs, _pair(where, name)))
            if _pair(where, name) not in self._known:
                kinds.append((self.names, name))
        return kinds


def _pair(where: str, name: str) -> str:
    return f"{where} {name}"


def network(address: str) -> str:
    """The part of an address that one client owns: all of an IPv4 address, the first 64 bits of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
