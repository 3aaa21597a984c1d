"""ONNX Runtime and OpenVINO behind one interface."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.signals import openvino_core, signals_held
from patchsvdd.runtime.contract import (
    ABOUT,
    BIN,
    IMAGES,
    IS_ANOMALOUS,
    MAP,
    REMEDY,
    SCORE,
    THRESHOLD,
    XML,
    check_bytes,
)

Outputs = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]
"""Map (N, H, W), score (N,), verdict (N,)."""


class Session(Protocol):
    """An exported detector, ready to run."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the file says about itself."""

    def run(self, images: NDArray[np.uint8], threshold: float) -> Outputs:
        """Images (N, H, W, 3) → map, score and verdict."""


def open_session(path: Path, threads: int | None = None) -> Session:
    """The session that fits the file's content; ModelError for a file that is missing, damaged or something else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read ({error.strerror}); check the path") from None
    kind = OpenVinoSession if data[:2] == b"PK" else OnnxRuntimeSession
    return kind(data, str(path), threads)


class OnnxRuntimeSession:
    """An ONNX file in ONNX Runtime, on the CPU."""

    def __init__(self, data: bytes, name: str, threads: int | None = None) -> None:
        check_bytes(data, name)
        runtime = _package("onnxruntime", name)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3  # errors: that the threshold can be overridden is no reason for a warning
        try:
            with signals_held():
                self._session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except _errors_of(runtime.capi.onnxruntime_pybind11_state) as error:
            raise ModelError(f"ONNX Runtime does not take '{name}' ({_one_line(error)}); {REMEDY}") from None
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map

    def run(self, images: NDArray[np.uint8], threshold: float) -> Outputs:
        """Images (N, H, W, 3) → map, score and verdict."""
        given = {IMAGES: np.ascontiguousarray(images), THRESHOLD: np.array(threshold, np.float32)}
        with signals_held():
            found, scores, verdicts = self._session.run([MAP, SCORE, IS_ANOMALOUS], given)
        return found, scores, verdicts


class OpenVinoSession:
    """An archive of ``model.xml`` and ``model.bin`` in OpenVINO, on the CPU."""

    def __init__(self, data: bytes, name: str, threads: int | None = None) -> None:
        members = _members(data, name)
        _package("openvino", name)
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        try:
            with signals_held():
                core = openvino_core()
                model = core.read_model(members[XML], members[BIN])
                self._network = core.compile_model(model, "CPU", settings)
        except RuntimeError as error:
            raise ModelError(f"OpenVINO does not take '{name}' ({_one_line(error)}); {REMEDY}") from None
        self.metadata: Mapping[str, str] = json.loads(members[ABOUT])["texts"]

    def run(self, images: NDArray[np.uint8], threshold: float) -> Outputs:
        """Images (N, H, W, 3) → map, score and verdict."""
        given = {IMAGES: np.ascontiguousarray(images), THRESHOLD: np.array(threshold, np.float32)}
        with signals_held():
            request = self._network.create_infer_request()  # of this call alone, so that threads do not meet in it
            found = request.infer(given)
        one, scores, verdicts = (np.array(found[name]) for name in (MAP, SCORE, IS_ANOMALOUS))
        return one, scores, verdicts.astype(np.bool_)


def _members(data: bytes, name: str) -> dict[str, bytes]:
    """The archive's members, each as its checksum says."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {member: archive.read(member) for member in (ABOUT, XML, BIN)}
        expected = json.loads(members[ABOUT])["sha256"]
        damaged = [one for one in (XML, BIN) if hashlib.sha256(members[one]).hexdigest() != expected[one]]
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, EOFError, OSError) as error:
        raise ModelError(f"'{name}' is damaged, or no exported detector ({error}); {REMEDY}") from None
    if damaged:
        raise ModelError(f"{damaged[0]} in '{name}' was altered: its checksum does not fit; {REMEDY}")
    return members


def _package(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"'{name}' takes the package {package} ({error}); install it: pip install {package}"
        ) from None


def _errors_of(module: Any) -> tuple[type[Exception], ...]:
    """Every kind of error that a module defines; ONNX Runtime's have no root of their own."""
    kinds = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Exception)]
    return (RuntimeError, *kinds)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
