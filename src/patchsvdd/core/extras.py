"""Packages that are installed as extras."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from patchsvdd.core.errors import ConfigError


def require(module: str, extra: str | None, purpose: str) -> Any:
    """Import and return an optional module.

    If it is not installed, the ConfigError names the ``purpose`` that needs it and the command that installs it: the
    extra of this package, or without an ``extra`` the package itself.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        requirement = package if extra is None else f'"patchsvdd[{extra}]"'
        raise ConfigError(
            f"{package} is not installed ({error}), which {purpose} needs; install it: pip install {requirement}"
        ) from None
