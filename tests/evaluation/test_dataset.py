from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from patchsvdd.core.errors import DatasetError
from patchsvdd.evaluation.dataset import digest_of, find_categories


def make_dataset(root: Path, *names: str) -> Path:
    """A data set whose categories hold nothing but the folder of their good images."""
    for name in names:
        (root / name / "train" / "good").mkdir(parents=True)
    return root


def write(folder: Path, **contents: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(content)
    return folder


class TestCategories:
    def test_are_found_in_order_of_name(self, tmp_path: Path) -> None:
        make_dataset(tmp_path, "zipper", "bottle", "pill")
        write(tmp_path, readme="MVTec AD")
        (tmp_path / "license" / "train").mkdir(parents=True)
        assert find_categories(tmp_path) == [tmp_path / name for name in ("bottle", "pill", "zipper")]

    def test_wanted_ones_come_in_their_order_and_once(self, tmp_path: Path) -> None:
        make_dataset(tmp_path, "zipper", "bottle", "pill")
        found = find_categories(tmp_path, ["zipper", "bottle", "zipper"])
        assert found == [tmp_path / "zipper", tmp_path / "bottle"]

    def test_a_single_category_is_a_data_set_of_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bottle = make_dataset(tmp_path, "bottle") / "bottle"
        assert find_categories(bottle) == [bottle]
        assert find_categories(bottle, ["bottle"]) == [bottle]
        monkeypatch.chdir(bottle)
        assert find_categories(Path(".")) == [bottle]  # results bear its name

    def test_an_unknown_name_lists_what_there_is(self, tmp_path: Path) -> None:
        make_dataset(tmp_path, "bottle", "pill")
        with pytest.raises(DatasetError, match="has no category 'botle'; choose from: bottle, pill"):
            find_categories(tmp_path, ["pill", "botle"])

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"there is no folder '.*mvtek'; give a folder of categories"):
            find_categories(tmp_path / "mvtek")

    def test_a_file_is_no_data_set(self, tmp_path: Path) -> None:
        write(tmp_path, mvtec="tar")
        with pytest.raises(DatasetError, match="there is no folder"):
            find_categories(tmp_path / "mvtec")

    def test_a_folder_without_categories_says_what_one_is(self, tmp_path: Path) -> None:
        (tmp_path / "photos" / "good").mkdir(parents=True)
        with pytest.raises(DatasetError, match="contains no category, a folder with train/good, test/good"):
            find_categories(tmp_path)

    def test_names_may_have_any_character(self, tmp_path: Path) -> None:
        names = ("a b", "ä", "[bold]", "*", "\udcff")
        make_dataset(tmp_path, *names)
        assert {path.name for path in find_categories(tmp_path)} == set(names)
        for name in names:
            assert find_categories(tmp_path, [name]) == [tmp_path / name]


class TestDigest:
    def test_tells_neither_place_nor_order_of_creation(self, tmp_path: Path) -> None:
        first = write(tmp_path / "first", a="1", b="2", c="3")
        second = write(tmp_path / "deeper" / "second", c="3", a="1", b="2")
        assert digest_of(first) == digest_of(second)
        assert digest_of(first) == digest_of(Path(shutil.copytree(first, tmp_path / "copy")))

    def test_does_not_hang_on_the_order_in_which_the_disk_lists_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = write(tmp_path / "folder", a="1", b="2", c="3")
        before = digest_of(folder)
        listed = Path.rglob
        for turn in (sorted, lambda paths: sorted(paths, reverse=True)):
            monkeypatch.setattr(Path, "rglob", lambda path, pattern, turn=turn: turn(listed(path, pattern)))
            assert digest_of(folder) == before

    def test_tells_neither_times_nor_empty_folders(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "folder", a="1")
        before = digest_of(folder)
        os.utime(folder / "a", (0, 0))
        (folder / "empty").mkdir()
        assert digest_of(folder) == before

    @pytest.mark.parametrize(
        "change",
        [
            lambda folder: (folder / "good" / "a").write_text("124"),
            lambda folder: (folder / "good" / "a").write_text("1230"),
            lambda folder: (folder / "good" / "a").rename(folder / "good" / "c"),
            lambda folder: (folder / "good").rename(folder / "bad"),
            lambda folder: (folder / "good" / "a").unlink(),
            lambda folder: write(folder / "good", c=""),
            lambda folder: write(folder / "good", a="12", b="345"),
            lambda folder: write(folder / "good", a="45", b="123"),
        ],
        ids=["byte", "longer", "name", "folder", "gone", "new", "moved-byte", "swapped"],
    )
    def test_changes_with_every_name_and_byte(self, tmp_path: Path, change: Callable[[Path], object]) -> None:
        folder = tmp_path / "folder"
        write(folder / "good", a="123", b="45")
        before = digest_of(folder)
        change(folder)
        assert digest_of(folder) != before

    def test_names_need_not_be_unicode(self, tmp_path: Path) -> None:
        digests = {digest_of(write(tmp_path / str(n), **{name: "1"})) for n, name in enumerate(("\udcff", "\udcfe"))}
        assert len(digests) == 2

    def test_a_pipe_among_the_files_is_not_waited_for(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "folder", a="1")
        before = digest_of(folder)
        os.mkfifo(folder / "pipe")
        (folder / "gone").symlink_to(tmp_path / "nowhere")
        assert digest_of(folder) == before
