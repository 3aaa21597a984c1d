from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from patchsvdd import PatchSVDD
from patchsvdd.detector.model_folder import read_model, write_model
from support.command_line import QUICK, Ended, draw_parts, files, finish, images, part, rows, run, start

pytestmark = pytest.mark.slow

PRINT_PEAK = """
import atexit, sys
def peak():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    sys.stderr.write("peak" + status["VmHWM"])
atexit.register(peak)
"""
SMALL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
"""No file can grow beyond 100 kB."""


@pytest.fixture(scope="module")
def category(bolt: Path) -> Path:
    return bolt


@pytest.fixture(scope="module")
def trained(bolt_model: Path) -> Path:
    return bolt_model


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A model folder to spoil."""
    return Path(shutil.copytree(trained, tmp_path / "model"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return draw_parts(tmp_path / "photos")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def truncated_jpeg(path: Path) -> Path:
    part(1)[0].save(path, quality=95)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def bomb(path: Path, side: int = 20_000) -> Path:
    """A PNG of a few dozen kB that decodes to ``side`` × ``side`` pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    deflate = zlib.compressobj(9)
    row = bytes(1 + side // 8)  # no filter, black
    pixels = b"".join(deflate.compress(row) for _ in range(side)) + deflate.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)  # 1 bit per pixel
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


def train(good: Path, out: Path, *settings: object) -> Ended:
    return run("train", good, "--out", out, *QUICK, *settings)


def refused(ended: Ended, out: Path, *words: object) -> None:
    """The command failed with one line that says all of ``words``, and left nothing behind."""
    message = ended.error()
    for word in words:
        assert str(word) in message
    assert files(out) == {}
    assert not out.exists()


# Folders of images


def test_an_empty_folder(trained: Path, tmp_path: Path, out: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(train(empty, out), out, empty, "give PNG, JPEG, WebP, BMP or TIFF images")
    refused(run("inspect", trained, empty, "--out", out), out, empty, "give PNG, JPEG, WebP, BMP or TIFF images")
    assert str(empty) in run("evaluate", trained, empty).error()


def test_a_missing_folder(trained: Path, tmp_path: Path, out: Path) -> None:
    missing = tmp_path / "missing"
    refused(train(missing, out), out, missing, "check the path")
    refused(run("inspect", trained, missing, "--out", out), out, missing, "check the path")
    assert str(missing) in run("evaluate", trained, missing).error()
    assert not missing.exists()


def test_a_file_instead_of_a_folder(photos: Path, out: Path) -> None:
    refused(train(photos / "000.png", out), out, photos / "000.png", "give a folder")


def test_a_category_without_training_images(category: Path, tmp_path: Path, out: Path) -> None:
    shutil.copytree(category / "test", tmp_path / "half" / "test")
    refused(train(tmp_path / "half", out), out, tmp_path / "half", "train/good")


@pytest.mark.parametrize(("inside", "remedy"), [(".", "bolt"), ("bolt/test", "bolt/test/good")])
def test_a_folder_that_mixes_defects_with_good_images(
    category: Path, tmp_path: Path, out: Path, inside: str, remedy: str
) -> None:
    root = tmp_path / "mvtec"
    shutil.copytree(category, root / "bolt")
    refused(train(root / inside, out), out, f"'{root / inside}'", f"'{root / remedy}'")


def test_one_image_is_not_enough(photos: Path, tmp_path: Path, out: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(photos / "000.png", alone)
    refused(train(alone, out), out, "at least 2 good images", alone)


def test_a_text_file_named_png_is_skipped(trained: Path, photos: Path, out: Path) -> None:
    (photos / "notes.png").write_text("buy milk")
    (photos / "readme.txt").write_text("not even called an image")
    ended = train(photos, out, "--json")
    assert ended.json()["images"] == 4
    assert len(ended.json()["skipped"]) == 1
    assert "skipped:" in ended.stderr
    assert "notes.png" in ended.stderr
    assert "readme.txt" not in ended.stderr
    inspected = run("inspect", trained, photos, "--out", out / "inspected", "--json")
    assert inspected.json()["unreadable"] == 1
    assert "notes.png" in inspected.stderr
    assert images(out / "inspected") == ["000.png", "001.png", "002.png", "003.png", "notes.png"]


def test_a_truncated_jpeg_among_fifty_good_ones_is_skipped(tmp_path: Path, out: Path) -> None:
    photos = draw_parts(tmp_path / "photos", 50, suffix=".jpg")
    truncated_jpeg(photos / "025-half.jpg")
    ended = train(photos, out, "--json")
    assert ended.json()["images"] == 50
    assert "025-half.jpg" in ended.json()["skipped"][0]
    assert "skipped: " in ended.stderr
    assert "025-half.jpg" in ended.stderr
    inspected = run("inspect", out, photos, "--out", tmp_path / "inspected", "--json")
    assert inspected.json()["images"] == 51
    assert inspected.json()["unreadable"] == 1
    assert "025-half.jpg" in inspected.stderr
    failed = [row for row in rows(tmp_path / "inspected") if "error" in row]
    assert [row["image"] for row in failed] == ["025-half.jpg"]
    assert "damaged" in failed[0]["error"]
    assert "025-half.jpg" in (tmp_path / "inspected" / "index.html").read_text(encoding="utf-8")


def test_nothing_but_broken_images(trained: Path, tmp_path: Path, out: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for index in range(3):
        truncated_jpeg(broken / f"{index}.jpg")
    (broken / "empty.png").touch()
    refused(train(broken, out), out, "none of the 3 images could be used", "0.jpg", "give PNG, JPEG")
    message = run("inspect", trained, broken, "--out", out).error()
    assert "none of the 4 images could be read" in message
    assert "results.csv" in message
    assert len([row for row in rows(out) if "error" in row]) == 4


def test_native_size_with_images_of_several_sizes(photos: Path, out: Path) -> None:
    part(5, size=96)[0].save(photos / "large.png")
    ended = train(photos, out, "--image-size", "native")
    refused(ended, out, "000.png is 72x72", "large.png is 96x96", "--image-size 256")


def test_native_size_with_images_smaller_than_a_patch(tmp_path: Path, out: Path) -> None:
    (tmp_path / "small").mkdir()
    for index in range(3):
        part(index, size=60)[0].save(tmp_path / "small" / f"{index}.png")
    refused(train(tmp_path / "small", out, "--image-size", "native"), out, "60x60", "a fixed --image-size")


def test_an_image_of_one_pixel_is_skipped(trained: Path, photos: Path, out: Path) -> None:
    Image.new("RGB", (1, 1)).save(photos / "dot.png")
    ended = train(photos, out, "--json")
    assert ended.json()["images"] == 4
    assert "dot.png: is 1x1 pixels" in ended.stderr
    inspected = run("inspect", trained, photos, "--out", out / "inspected", "--json")
    assert inspected.json()["unreadable"] == 1
    assert "dot.png: is 1x1 pixels" in inspected.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_a_decompression_bomb_is_refused_in_little_memory(trained: Path, photos: Path, out: Path) -> None:
    size = bomb(photos / "bomb.png").stat().st_size
    assert size < 100_000
    ended = finish(start("train", photos, "--out", out, *QUICK, "--json", before=PRINT_PEAK))
    assert ended.json()["images"] == 4
    assert "bomb.png: has more than 128 million pixels" in ended.stderr
    assert int(ended.stderr.split("peak")[1].split()[0]) < 1_500_000  # kB
    inspected = run("inspect", trained, photos / "bomb.png", "--out", out / "inspected")
    assert "none of the 1 images could be read" in inspected.error()
    assert "128 million" in rows(out / "inspected")[0]["error"]


def test_files_and_folders_without_permission_are_told(trained: Path, photos: Path, out: Path) -> None:
    closed = photos / "000.png"
    closed.chmod(0)
    if os.access(closed, os.R_OK):
        pytest.skip("root reads everything")
    ended = run("inspect", trained, photos, "--out", out, "--json")
    assert ended.json()["unreadable"] == 1
    assert "000.png: cannot be read: Permission denied" in ended.stderr
    draw_parts(photos / "closed", 1).chmod(0)
    message = run("inspect", trained, photos, "--out", out).error()
    (photos / "closed").chmod(0o700)  # so that it can be deleted
    assert str(photos / "closed") in message


@pytest.mark.slow
def test_a_pipe_among_the_images_does_not_stop_the_run(trained: Path, photos: Path, out: Path) -> None:
    os.mkfifo(photos / "pipe.png")
    ended = finish(start("inspect", trained, photos, "--out", out, "--json"), seconds=20)
    assert ended.json()["images"] == 4


@pytest.mark.slow
def test_an_image_size_beyond_reason(photos: Path, out: Path) -> None:
    # Held in a small process: without the check it would eat all memory.
    small = "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))"
    ended = finish(start("train", photos, "--out", out, "--image-size", 60_000, before=small))
    refused(ended, out, "--image-size")


def test_odd_kinds_of_images_are_read(trained: Path, tmp_path: Path, out: Path) -> None:
    folder = tmp_path / "kinds"
    folder.mkdir()
    picture = part(3)[0]
    picture.convert("L").save(folder / "grey.png")
    picture.convert("LA").save(folder / "grey-alpha.png")
    picture.convert("RGBA").save(folder / "alpha.webp", lossless=True)
    picture.convert("P").save(folder / "palette.bmp")
    picture.convert("1").save(folder / "bits.tiff")
    picture.convert("CMYK").save(folder / "print.jpg")
    picture.convert("I;16").save(folder / "deep.png")
    picture.save(folder / "no-suffix", format="PNG")
    picture.save(folder / "wrong-suffix.bmp", format="JPEG")
    told = run("inspect", trained, folder, "--out", out, "--json").json()
    assert (told["images"], told["unreadable"]) == (9, 0)


# Places that cannot be written


def test_an_output_folder_nobody_can_make(category: Path, trained: Path) -> None:
    nowhere = Path("/proc/patchsvdd-out")
    for ended in (
        train(category, nowhere),
        run("inspect", trained, category, "--out", nowhere),
        run("demo", "--out", nowhere),
    ):
        assert str(nowhere) in ended.error()
        assert "choose another folder" in ended.error()


def test_a_file_where_the_output_folder_should_be(category: Path, trained: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for place in (taken, taken / "inner"):
        for ended in (
            train(category, place),
            run("inspect", trained, category, "--out", place),
            run("demo", "--out", place),
        ):
            assert str(taken) in ended.error()
            assert "move it or choose another folder" in ended.error()
    assert taken.read_text() == "mine"


def test_an_output_name_too_long(category: Path, trained: Path, tmp_path: Path) -> None:
    for name in ("x" * 300, "y/" * 2500):
        assert "shorter" in train(category, tmp_path / name).error()
        assert "shorter" in run("inspect", trained, category, "--out", tmp_path / name).error()
    assert files(tmp_path) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_FSIZE")
@pytest.mark.slow
def test_a_disk_that_fills_up_while_a_model_is_saved(category: Path, model: Path) -> None:
    before = files(model)
    ended = finish(start("train", category, "--out", model, *QUICK, "--overwrite", "--seed", 1, before=SMALL_DISK))
    message = ended.error()
    assert str(model) in message
    assert "choose another folder" in message
    assert files(model) == before
    assert run("info", model).code == 0


@pytest.mark.parametrize(
    ("function", "last"),
    [("replace", "training"), ("fsync", "encoder"), ("replace", "memory"), ("replace", "model.json")],
)
def test_a_full_disk_leaves_the_old_model(
    category: Path, model: Path, monkeypatch: pytest.MonkeyPatch, function: str, last: str
) -> None:
    before = files(model)
    with monkeypatch.context() as patch:
        fail_from(patch, function, ("training", "encoder", "memory", "pictures", "model.json").index(last))
        message = train(category, model, "--overwrite", "--seed", 1).error()
    assert "No space left on device" in message
    assert "free some space" in message
    assert str(model) in message
    assert before.items() <= files(model).items()
    assert not [name for name in files(model) if name.endswith(".tmp")]
    PatchSVDD.load(model, "cpu")
    if last != "training":  # the training itself is done and need not be done again
        assert train(category, model, "--resume", "--seed", 1).code == 0
        assert run("info", model, "--json").json()["provenance"]["seed"] == 1
        assert len(files(model)) == 4


def fail_from(patch: pytest.MonkeyPatch, function: str, call: int) -> None:
    """Make the disk full from one call of os.fsync or os.replace on, counted in writes of model files."""
    original: Callable[..., None] = getattr(os, function)
    calls = []

    def full(*arguments: object) -> None:
        if function == "replace" and str(arguments[1]).endswith(".writable"):
            return original(*arguments)
        calls.append(arguments)
        if len(calls) > call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*arguments)

    patch.setattr(os, function, full)


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_FSIZE")
@pytest.mark.slow
def test_a_disk_that_fills_up_during_inspection(photos: Path, tmp_path: Path, out: Path) -> None:
    native = tmp_path / "native"
    assert train(photos, native, "--image-size", "native").code == 0
    Image.effect_noise((400, 400), 100).save(photos / "large.png")  # its overlay takes more than 100 kB
    ended = finish(start("inspect", native, photos, "--out", out, before=SMALL_DISK))
    assert str(out) in ended.error()
    assert "choose another folder" in ended.error()
    assert images(out) == ["000.png", "001.png", "002.png", "003.png"]
    assert not [name for name in files(out) if name.endswith(".tmp")]
    told = run("inspect", native, photos, "--out", out, "--json").json()
    assert told["already_done"] == 4
    assert images(out) == ["000.png", "001.png", "002.png", "003.png", "large.png"]


def test_a_full_disk_keeps_the_rows_that_are_finished(
    trained: Path, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_from(patch, "replace", 2)
        message = run("inspect", trained, photos, "--out", out).error()
    assert "No space left on device" in message
    assert "a second run continues" in message
    assert images(out) == ["000.png", "001.png"]
    assert run("inspect", trained, photos, "--out", out, "--json").json()["already_done"] == 2
    assert images(out) == ["000.png", "001.png", "002.png", "003.png"]


# Models


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("kind", ["encoder", "memory", "pictures", "model.json"])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.7, 1.0])
def test_a_flipped_byte_is_noticed(category: Path, model: Path, out: Path, kind: str, place: float) -> None:
    path = next(path for path in model.iterdir() if path.name.startswith(kind))
    flip(path, round(place * (path.stat().st_size - 1)))
    for ended in (
        run("info", model),
        run("evaluate", model, category),
        run("inspect", model, category, "--out", out),
    ):
        assert str(path) in ended.error()
    assert not out.exists()


def test_every_byte_of_the_index_counts(model: Path) -> None:
    path = model / "model.json"
    intact = path.read_bytes()
    for position in range(0, len(intact), 97):
        path.write_bytes(intact)
        flip(path, position)
        assert str(path) in run("info", model).error(), position


@pytest.mark.parametrize("kind", ["encoder", "memory", "pictures"])
def test_a_part_cut_short_or_missing(model: Path, kind: str) -> None:
    path = next(path for path in model.iterdir() if path.name.startswith(kind))
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path} was truncated" in run("info", model).error()
    path.unlink()
    assert str(path) in run("info", model).error()
    assert "train again" in run("info", model).error()


def test_a_folder_that_is_not_a_model(category: Path, tmp_path: Path, out: Path) -> None:
    for place, words in (
        (category, ("is not a model folder", "check the path")),
        (tmp_path / "missing", ("no model folder", "check the path")),
        (category / "train" / "good" / "000.png", ("no model folder", "check the path")),
    ):
        refused(run("inspect", place, category, "--out", out), out, place, *words)
        assert str(place) in run("info", place).error()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ("damaged", "train again")),
        ("{", ("damaged", "train again")),
        ("[]", ("does not describe a patchsvdd model", "check the path")),
        ('{"name": "bert"}', ("does not describe a patchsvdd model", "check the path")),
        ('{"format": "patchsvdd model", "format_version": 999}', ("999", "update patchsvdd")),
        ('{"format": "patchsvdd model", "format_version": 1}', ("altered", "restore it")),
    ],
)
def test_an_index_that_is_not_one(model: Path, content: str, words: tuple[str, ...]) -> None:
    (model / "model.json").write_text(content)
    message = run("info", model).error()
    assert str(model / "model.json") in message
    assert all(word in message for word in words), message


def test_a_model_of_another_version(model: Path, category: Path) -> None:
    stored = read_model(model)
    about = {name: stored.about[name] for name in ("config", "calibration", "provenance", "image_names")}
    about["config"] = {**about["config"], "invented_since": 1}
    write_model(model, about, stored.parts)
    message = run("evaluate", model, category).error()
    assert str(model) in message
    assert "invented_since" in message
    assert "train again" in message


# Categories to evaluate


def evaluated(category: Path, model: Path) -> Ended:
    return run("evaluate", model, category, "--json")


def test_masks_that_fit_no_image(category: Path, trained: Path, tmp_path: Path) -> None:
    spoilt = Path(shutil.copytree(category, tmp_path / "bolt"))
    for mask in (spoilt / "ground_truth" / "spot").iterdir():
        mask.rename(mask.with_name(f"scan-{mask.name}"))
    told = evaluated(spoilt, trained).json()
    assert "segmentation_auroc" not in told
    assert "detection_auroc" in told
    assert set(told["skipped"]) == {"segmentation_auroc"}
    assert "scan-000" in told["skipped"]["segmentation_auroc"]
    ended = run("evaluate", trained, spoilt)
    assert ended.code == 0
    assert "scan-000" in ended.stderr


def test_no_masks_and_no_good_images(category: Path, trained: Path, tmp_path: Path) -> None:
    spoilt = Path(shutil.copytree(category, tmp_path / "bolt"))
    shutil.rmtree(spoilt / "ground_truth")
    assert "no ground_truth folder" in evaluated(spoilt, trained).json()["skipped"]["segmentation_auroc"]
    shutil.rmtree(spoilt / "test" / "good")
    assert "no good test images" in evaluated(spoilt, trained).json()["skipped"]["detection_auroc"]


def test_broken_test_images_and_masks_are_told(category: Path, trained: Path, tmp_path: Path) -> None:
    spoilt = Path(shutil.copytree(category, tmp_path / "bolt"))
    truncated_jpeg(spoilt / "test" / "good" / "half.jpg")
    (spoilt / "test" / "spot" / "empty.png").touch()
    (spoilt / "ground_truth" / "spot" / "001_mask.png").write_text("not a mask")
    ended = evaluated(spoilt, trained)
    told = ended.json()
    assert told["images"] == 6
    assert 0 <= told["segmentation_auroc"] <= 1
    for name in ("half.jpg", "empty.png", "001_mask.png"):
        assert any(name in warning for warning in told["warnings"])
        assert name in ended.stderr


def test_test_images_without_a_label(category: Path, trained: Path, tmp_path: Path) -> None:
    spoilt = Path(shutil.copytree(category, tmp_path / "bolt"))
    shutil.copy(spoilt / "test" / "good" / "000.png", spoilt / "test" / "loose.png")
    message = evaluated(spoilt, trained).error()
    assert "loose.png" in message
    assert "test/good or test/<defect>" in message


# Checkpoints of the authors' code


def reference_weights(embedding_dim: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    channels = (3, 32, 64, 128, 128, 64, 32, 32, embedding_dim)
    shapes: dict[str, tuple[int, ...]] = {f"enc.conv{i + 1}": (channels[i + 1], channels[i], 3, 3) for i in range(8)}
    shapes |= {"conv1": (128, embedding_dim, 2, 2), "conv2": (embedding_dim, 128, 1, 1)}
    weights = {f"{name}.weight": 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return weights | {f"{name}.bias": torch.zeros(shape[0]) for name, shape in shapes.items()}


@pytest.mark.parametrize("zipped", [False, True])
def test_import_reference(category: Path, tmp_path: Path, out: Path, zipped: bool) -> None:
    checkpoint, weights = tmp_path / "bolt.pkl", reference_weights()
    torch.save(weights, checkpoint, _use_new_zipfile_serialization=zipped)
    settings = ("--out", out, "--image-size", 64, "--device", "cpu", "--json")
    told = run("import-reference", checkpoint, category, *settings).json()
    assert (told["images"], told["steps"], told["preset"]) == (6, 0, "paper")
    encoder = PatchSVDD.load(out, "cpu").encoder.state_dict()
    assert torch.equal(encoder["small.head.weight"], weights["enc.conv8.weight"])
    assert torch.equal(encoder["merges.0.gather.weight"], weights["conv1.weight"])
    assert "bolt.pkl" in run("info", out).stdout
    assert 0 <= evaluated(category, out).json()["detection_auroc"] <= 1
    before = files(out)
    assert "--overwrite" in run("import-reference", checkpoint, category, *settings).error()
    assert files(out) == before
    assert run("import-reference", checkpoint, category, *settings, "--overwrite").code == 0


def write_text(path: Path) -> None:
    path.write_text("not a checkpoint")


def write_cut(path: Path) -> None:
    torch.save(reference_weights(), path)
    path.write_bytes(path.read_bytes()[:10_000])


def write_code(path: Path) -> None:
    path.write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")


def saver(content: object) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path)


@pytest.mark.parametrize(
    "write",
    [
        Path.touch,
        write_text,
        write_cut,
        write_code,
        saver({"epoch": 3, "model": reference_weights()}),
        saver({0: torch.zeros(3)}),
        saver([torch.zeros(3)]),
        saver(torch.zeros(3)),
        saver({}),
        saver(reference_weights(32)),
        saver({name: value for name, value in reference_weights().items() if name != "conv2.bias"}),
        saver({f"module.{name}": value for name, value in reference_weights().items()}),
    ],
    ids=[
        "empty",
        "text",
        "cut",
        "code",
        "nested",
        "numbered",
        "list",
        "tensor",
        "nothing",
        "other-size",
        "one-missing",
        "prefixed",
    ],
)
def test_a_wrong_checkpoint(
    category: Path, tmp_path: Path, out: Path, write: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = tmp_path / "wrong.pkl"
    write(checkpoint)
    ended = run("import-reference", checkpoint, category, "--out", out, "--image-size", 64)
    refused(ended, out, checkpoint, "enc.conv1 … enc.conv8")
    assert "weights_only" not in ended.stderr  # nobody should be told how to run code from the file
    assert not (tmp_path / "hacked").exists()


def test_a_missing_checkpoint(category: Path, tmp_path: Path, out: Path) -> None:
    missing = tmp_path / "missing.pkl"
    refused(run("import-reference", missing, category, "--out", out), out, missing, "check the path")


def test_json_stays_clean_when_files_are_skipped(photos: Path, out: Path) -> None:
    truncated_jpeg(photos / "half.jpg")
    ended = train(photos, out, "--json")
    assert json.loads(ended.stdout)["images"] == 4


@pytest.mark.parametrize("size", ["0%", "0", "101%", "abc", "ten%", "-5%", "1e3"])
def test_a_memory_size_that_cannot_work(photos: Path, out: Path, size: str) -> None:
    refused(train(photos, out, f"--memory={size}"), out, "--memory")


def test_a_search_that_cannot_work(photos: Path, out: Path) -> None:
    refused(train(photos, out, "--search", "tree"), out, "--search must be one of auto, exact, graph; got 'tree'")
