"""A common interface to ONNX Runtime and OpenVINO."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ModelError
from patchsvdd.core.extras import require
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
from patchsvdd.scoring.regions import round_down

Outputs = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]
"""Map (N, H, W), score (N,), verdict (N,)."""


class Session(Protocol):
    """An exported detector, ready to run."""

    @property
    def software(self) -> str:
        """The software that runs the file."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata entries of the file."""

    def run(self, images: NDArray[np.uint8], threshold: float) -> Outputs:
        """Images (N, H, W, 3) → map, score and verdict."""


def open_session(path: Path, threads: int | None = None, few: bool = False) -> Session:
    """Open a file with the matching engine; raise ModelError if it is missing, damaged or not an exported detector.

    With ``few``, ONNX Runtime opens it faster and then computes more slowly.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read ({error.strerror}); check the path") from None
    if data[:2] == b"PK":
        return OpenVinoSession(data, str(path), threads)
    return OnnxRuntimeSession(data, str(path), threads, few)


class OnnxRuntimeSession:
    """An ONNX file in ONNX Runtime, on the CPU."""

    software = "ONNX Runtime"

    def __init__(self, data: bytes, name: str, threads: int | None = None, few: bool = False) -> None:
        check_bytes(data, name)
        runtime = require("onnxruntime", None, f"'{name}'")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        # Otherwise its threads keep spinning after a run and slow down whatever follows.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3  # errors only: it warns that the threshold can be overridden
        # It would convert a large memory to float32 once, which needs as long as some inspections that convert it.
        left_out = ["ConstantFolding"] if few else []
        providers = ["CPUExecutionProvider"]
        try:
            with signals_held():
                self._session = runtime.InferenceSession(data, options, providers, disabled_optimizers=left_out)
        except _errors_of(runtime.capi.onnxruntime_pybind11_state) as error:
            raise ModelError(f"ONNX Runtime cannot load '{name}' ({_one_line(error)}); {REMEDY}") from None
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map

    def run(self, images: NDArray[np.uint8], threshold: float) -> Outputs:
        """Images (N, H, W, 3) → map, score and verdict."""
        inputs = {IMAGES: np.ascontiguousarray(images), THRESHOLD: np.array(round_down(threshold), np.float32)}
        with signals_held():
            maps, scores, verdicts = self._session.run([MAP, SCORE, IS_ANOMALOUS], inputs)
        return maps, scores, verdicts


class OpenVinoSession:
    """An archive of ``model.xml`` and ``model.bin`` in OpenVINO, on the CPU."""

    software = "OpenVINO"

    def __init__(self, data: bytes, name: str, threads: int | None = None) -> None:
        members = _members(data, name)
        require("openvino", None, f"'{name}'")
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        try:
            with signals_held():
                core = openvino_core()
                model = core.read_model(members[XML], members[BIN])
                self._network = core.compile_model(model, "CPU", settings)
        except RuntimeError as error:
            raise ModelError(f"OpenVINO cannot load '{name}' ({_one_line(error)}); {REMEDY}") from None
        self.metadata: Mapping[str, str] = json.loads(members[ABOUT])["texts"]

    def run(self, images: NDArray[np.uint8], threshold: float) -> Outputs:
        """Images (N, H, W, 3) → map, score and verdict."""
        inputs = {IMAGES: np.ascontiguousarray(images), THRESHOLD: np.array(round_down(threshold), np.float32)}
        with signals_held():
            request = self._network.create_infer_request()  # one per call: requests are not thread-safe
            outputs = request.infer(inputs)
        maps, scores, verdicts = (np.array(outputs[name]) for name in (MAP, SCORE, IS_ANOMALOUS))
        return maps, scores, verdicts.astype(np.bool_)


def _members(data: bytes, name: str) -> dict[str, bytes]:
    """Members of the archive, with their checksums verified."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {member: archive.read(member) for member in (ABOUT, XML, BIN)}
        expected = json.loads(members[ABOUT])["sha256"]
        damaged = [part for part in (XML, BIN) if hashlib.sha256(members[part]).hexdigest() != expected[part]]
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, EOFError, OSError) as error:
        raise ModelError(f"'{name}' is damaged or not an exported detector ({error}); {REMEDY}") from None
    if damaged:
        raise ModelError(f"{damaged[0]} in '{name}' was modified: wrong checksum; {REMEDY}")
    return members


def _errors_of(module: Any) -> tuple[type[Exception], ...]:
    """All exception classes of a module; those of ONNX Runtime have no common base class."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return (RuntimeError, *kinds)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
