"""The two export formats: an ONNX file, and an archive of OpenVINO's two files."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Literal, cast, get_args

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.extras import require
from patchsvdd.core.files import output_errors
from patchsvdd.core.onnx_writer import LIMIT, Graph, Pieces, model_pieces
from patchsvdd.core.signals import openvino_core, signals_held
from patchsvdd.runtime.contract import (
    ABOUT,
    BIN,
    IMAGES,
    IS_ANOMALOUS,
    MAP,
    SCORE,
    THRESHOLD,
    XML,
    About,
    checksum_entry,
)

Format = Literal["onnx", "openvino"]
PACKAGES: dict[str, str] = {"onnx": "onnxruntime", "openvino": "openvino"}
"""The package that runs each format."""
_DATE = (1980, 1, 1, 0, 0, 0)
"""Fixed date of the archive members, so that equal models give equal files."""


def as_format(text: str) -> Format:
    """The format that ``text`` names; raises ConfigError if it is unknown or its package is not installed."""
    if text not in get_args(Format):
        raise ConfigError(f"`format` must be one of {', '.join(get_args(Format))}; got '{text}'")
    require(PACKAGES[text], "deploy", "exporting")
    return cast(Format, text)


def write(path: Path, kind: Format, graph: Graph, about: About) -> None:
    """Write a graph and its metadata; ``path`` should be a temporary file."""
    pieces = model_pieces(graph, about.to_metadata(), producer="patchsvdd")
    size = sum(len(piece) for piece in pieces)
    if size > LIMIT - 1024:
        raise ConfigError(
            f"the file would need {size / 1e9:.1f} GB, and ONNX files end at 2 GB; keep fewer patches, e.g. "
            f"`memory=10%`"
        )
    if kind == "openvino":
        _write_archive(path, pieces, about)
        return
    with output_errors(path), path.open("xb") as file:
        file.writelines(pieces)
        file.write(checksum_entry(pieces))


def _write_archive(path: Path, pieces: Pieces, about: About) -> None:
    openvino = require("openvino", "deploy", "exporting")
    with output_errors(path), tempfile.TemporaryDirectory(dir=path.parent) as folder, signals_held():
        model = openvino_core().read_model(b"".join(pieces))
        _check_names(model)
        for key, text in about.to_metadata().items():
            model.set_rt_info(text, ["patchsvdd", key])
        openvino.save_model(model, str(Path(folder, XML)), compress_to_fp16=False)
        del model
        members = {name: Path(folder, name).read_bytes() for name in (XML, BIN)}
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
        members[ABOUT] = json.dumps({"texts": about.to_metadata(), "sha256": digests}, indent=1).encode()
        with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as archive:  # weights hardly compress
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name, _DATE), data)


def _check_names(model: Any) -> None:
    """Raise ConfigError if OpenVINO did not keep the names of inputs and outputs."""
    names = {name for port in (*model.inputs, *model.outputs) for name in port.get_names()}
    lost = {IMAGES, THRESHOLD, MAP, SCORE, IS_ANOMALOUS} - names
    if lost:
        raise ConfigError(f"this version of OpenVINO loses {', '.join(sorted(lost))}; use `format=onnx`")


def patches_in_words(counts: dict[int, int], size: str) -> str:
    """The number of patches of each size in the memory."""
    parts = [f"{count:,} of {patch_size} px" for patch_size, count in counts.items()]
    return f"{size}: {', '.join(parts)}"
