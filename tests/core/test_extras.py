from __future__ import annotations

import subprocess
import sys

import pytest

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.extras import require


def test_an_installed_module_is_returned() -> None:
    assert require("json.decoder", "fast", "testing") is sys.modules["json.decoder"]


@pytest.mark.parametrize(("extra", "command"), [("fast", 'pip install "patchsvdd[fast]"'), (None, "pip install faiss")])
def test_a_missing_one_is_named_with_its_command(
    extra: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError) as error:
        require("faiss.contrib", extra, "a graph")
    assert str(error.value).startswith("faiss is not installed (")
    assert str(error.value).endswith(f"), which a graph needs; install it: {command}")


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, patchsvdd.core.extras; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
