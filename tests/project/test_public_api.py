from __future__ import annotations

import subprocess
import sys

import pytest

import patchsvdd


def test_every_public_name_is_there() -> None:
    assert len(set(patchsvdd.__all__)) == len(patchsvdd.__all__)
    for name in patchsvdd.__all__:
        assert getattr(patchsvdd, name) is not None


def test_all_is_every_name_that_is_imported_on_first_use() -> None:
    assert sorted(patchsvdd.__all__) == sorted(patchsvdd._MODULES)


def test_a_star_import_brings_exactly_these() -> None:
    names: dict[str, object] = {}
    exec("from patchsvdd import *", names)
    names.pop("__builtins__")
    assert set(names) == set(patchsvdd.__all__)


def test_other_names_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Detector'"):
        _ = patchsvdd.Detector
    assert not hasattr(patchsvdd, "utils")


def test_every_error_is_a_patchsvdd_error() -> None:
    errors = [value for value in map(patchsvdd.__getattr__, patchsvdd.__all__) if _is_error(value)]
    assert len(errors) == 10
    assert all(issubclass(error, patchsvdd.PatchSVDDError) for error in errors)


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert patchsvdd.__version__ == version("patchsvdd")


@pytest.mark.parametrize("module", ["patchsvdd", "patchsvdd.apps.cli", "patchsvdd.core.config"])
def test_importing_does_not_wait_for_torch(module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('torch', 'numpy', 'PIL') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
