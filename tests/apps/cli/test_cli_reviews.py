"""``patchsvdd calibrate MODEL --reviews FILE``."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchsvdd.apps.cli.review_file import read_reviews
from patchsvdd.core.errors import DatasetError
from patchsvdd.detector.model_folder import journal_of, read_index
from support.command_line import QUICK, draw_parts, files, run

pytestmark = pytest.mark.slow

THRESHOLD = 1.1
COLUMNS = ("id", "model", "version", "verdict", "score", "threshold", "review", "note", "sample")


def written(path: Path, rows: list[dict[str, Any]], columns: tuple[str, ...] = COLUMNS, separator: str = ",") -> Path:
    """A file like that of the service: a byte-order mark, and lines that end with CR LF."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, delimiter=separator, extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(("\ufeff" + text.getvalue()).encode())
    return path


def history(
    version: str, *, threshold: float = THRESHOLD, parts: int = 3000, sampled: int = 150, seed: int = 0
) -> list[dict[str, Any]]:
    """Inspections of a line with far too many false alarms: all alarms and a sample of the good parts reviewed."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(parts):
        is_defect = rng.random() < 0.02
        score = float(rng.lognormal(1.2, 0.5) if is_defect else rng.lognormal(0, 0.25))
        alarm, drawn = score > threshold, rng.random() < sampled / parts
        review = ("true_defect" if is_defect else "false_alarm") if alarm else ""
        if not alarm and drawn:
            review = "true_defect" if is_defect else "confirmed_good"
        facts = {"id": f"{number:06}", "version": version, "verdict": "anomalous" if alarm else "good"}
        sample = "yes" if drawn and not alarm else ""
        rows.append({**facts, "score": score, "threshold": threshold, "review": review, "sample": sample})
    return rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the threshold of the simulated line."""
    folder = tmp_path_factory.mktemp("data")
    assert run("train", draw_parts(folder / "good"), "--out", folder / "model", *QUICK).code == 0
    assert run("calibrate", folder / "model", "--threshold", THRESHOLD).code == 0
    return folder / "model"


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "model"))


@pytest.fixture
def rows(model: Path) -> list[dict[str, Any]]:
    return history(read_index(model)["identity"])


@pytest.fixture
def reviews(rows: list[dict[str, Any]], tmp_path: Path) -> Path:
    return written(tmp_path / "inspections.csv", rows)


class TestProposal:
    def test_is_reported_and_changes_nothing(self, model: Path, reviews: Path) -> None:
        before = files(model)
        told = run("calibrate", model, "--reviews", reviews, "--json").json()
        assert files(model) == before
        assert told.keys() == {
            *("model", "changed", "reviews", "rows", "broken", "repeated", "left_out", "cautions", "reviewed"),
            *("missing", "proposal"),
        }
        proposal = told["proposal"]
        assert not told["changed"]
        assert told["rows"] == 3000
        assert told["cautions"] == told["missing"] == told["broken"] == []
        assert proposal["is_better"]
        assert proposal["threshold"] > proposal["current"]["threshold"] == THRESHOLD
        assert proposal["aim"] == "balanced"
        reviewed = told["reviewed"]
        assert reviewed["called_good"] + reviewed["alarms"] == 3000
        assert reviewed["alarms_weight"] == 1.0
        assert reviewed["called_good_weight"] == reviewed["called_good"] / reviewed["called_good_reviewed"] > 10

    def test_people_get_a_table_and_a_sentence(self, model: Path, reviews: Path) -> None:
        ended = run("calibrate", model, "--reviews", reviews)
        assert ended.code == 0
        for words in ("current", "proposed", "false alarms (95% interval)", "The reviews support the change"):
            assert words in ended.stdout
        assert f"Proposal for {model}" in ended.stdout
        assert "--reviews FILE --apply" in ended.stderr

    def test_is_stored_with_apply_and_can_be_undone(self, model: Path, reviews: Path) -> None:
        before = read_index(model)
        told = run("calibrate", model, "--reviews", reviews, "--apply", "--json").json()
        now = read_index(model)
        assert told["changed"]
        assert now["calibration"]["threshold"] == told["proposal"]["threshold"]
        assert now["calibration"]["aim"] == "chosen"
        assert journal_of(now)[-1]["change"] == "calibrate"
        assert run("update", model, "--undo").code == 0
        assert read_index(model)["identity"] == before["identity"]

    def test_stays_where_it_is_in_a_dry_run(self, model: Path, reviews: Path) -> None:
        before = files(model)
        ended = run("calibrate", model, "--reviews", reviews, "--apply", "--dry-run")
        assert ended.code == 0
        assert f"Would calibrate {model}" in ended.stdout
        assert files(model) == before

    def test_weighs_misses_as_asked(self, model: Path, reviews: Path) -> None:
        balanced, careful = (
            run("calibrate", model, "--reviews", reviews, "--aim", aim, "--json").json()["proposal"]
            for aim in ("balanced", "few-misses")
        )
        assert careful["aim"] == "few-misses"
        assert careful["threshold"] < balanced["threshold"]
        assert "must be one of" in run("calibrate", model, "--reviews", reviews, "--aim", "few-alarms").error()

    def test_without_support_nothing_is_applied(self, model: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
        few = written(tmp_path / "few.csv", [row for row in rows if float(row["score"]) < THRESHOLD * 0.95][:400] + [
            {**row, "id": f"d{place}", "score": 9.0 + place, "verdict": "anomalous", "review": "true_defect"}
            for place, row in enumerate(rows[:6])
        ])  # fmt: skip
        before = files(model)
        assert run("calibrate", model, "--reviews", few, "--json").json()["proposal"]["is_better"] is False
        assert "do not support a change" in run("calibrate", model, "--reviews", few).stdout
        assert "nothing was changed" in run("calibrate", model, "--reviews", few, "--apply").error()
        assert files(model) == before


class TestTooFew:
    def test_what_is_missing_is_said(self, model: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
        few = written(tmp_path / "few.csv", [{**row, "review": ""} for row in rows])
        told = run("calibrate", model, "--reviews", few, "--json").json()
        assert told["proposal"] is None
        assert "5 more reviewed defects (0 of at least 5)" in told["missing"]
        ended = run("calibrate", model, "--reviews", few)
        assert ended.code == 0
        assert "No proposal" in ended.stdout
        assert "5 more reviewed defects" in ended.stdout
        assert "too few reviews, nothing was changed" in run("calibrate", model, "--reviews", few, "--apply").error()

    def test_other_versions_are_left_out_and_counted(
        self, model: Path, rows: list[dict[str, Any]], tmp_path: Path
    ) -> None:
        older = [{**row, "id": f"old{row['id']}", "version": "0123456789abcdef"} for row in rows[:500]]
        told = run("calibrate", model, "--reviews", written(tmp_path / "both.csv", rows + older), "--json").json()
        assert told["left_out"] == {"another version of the model": 500}
        assert told["reviewed"]["called_good"] + told["reviewed"]["alarms"] == 3000
        run("calibrate", model, "--threshold", 1.2)
        told = run("calibrate", model, "--reviews", tmp_path / "both.csv", "--json").json()
        assert told["left_out"] == {"another version of the model": 3500}
        assert told["proposal"] is None


class TestFile:
    """Rows are read in this process: the model does not matter."""

    def read(self, tmp_path: Path, rows: list[dict[str, Any]], **more: Any) -> Any:
        return read_reviews(written(tmp_path / "file.csv", rows, **more), "v", THRESHOLD)

    def test_only_a_random_sample_of_good_parts_counts(self, tmp_path: Path) -> None:
        rows = history("v")
        picked = [row for row in rows if row["verdict"] == "good" and not row["review"]][:30]
        for row in picked:
            row["review"] = "true_defect"
        found = self.read(tmp_path, rows)
        assert found.left_out == {"called good and not drawn at random for review": 30}
        assert found.reviews.good == sum(row["verdict"] == "good" for row in rows)
        assert found.reviews.scores(alarms=False, is_defect=True).size < 10

    def test_a_file_that_does_not_say_so_is_used_with_a_caution(self, tmp_path: Path) -> None:
        found = self.read(tmp_path, history("v"), columns=("score", "verdict", "review"))
        assert [caution.split(";")[0] for caution in found.cautions] == [
            "the file does not say which version of the model gave the scores",
            "the file does not say which parts called good were drawn at random",
        ]
        assert not found.reviews.missing

    def test_a_selection_of_reviewed_parts_is_noticed(self, tmp_path: Path) -> None:
        found = self.read(tmp_path, [row for row in history("v") if row["review"]])
        assert "every part called good in the file was reviewed" in found.cautions[0]

    def test_unsure_counts_as_not_reviewed(self, tmp_path: Path) -> None:
        rows = history("v")
        reviewed = next(row for row in rows if row["verdict"] == "anomalous")
        reviewed["review"] = "unsure"
        found = self.read(tmp_path, rows)
        assert found.left_out == {"reviewed as unsure": 1}
        assert found.reviews.weight(alarm=True) > 1

    def test_a_spreadsheet_may_have_saved_it(self, tmp_path: Path) -> None:
        rows = history("v")
        plain = self.read(tmp_path, rows).reviews
        german = [{**row, "score": str(row["score"]).replace(".", ",")} for row in rows]
        assert self.read(tmp_path, german, separator=";").reviews == plain
        assert self.read(tmp_path, rows, separator="\t").reviews == plain

    def test_repeated_rows_count_once(self, tmp_path: Path) -> None:
        rows = history("v")
        found = self.read(tmp_path, [*rows, rows[0], rows[7]])
        assert found.repeated == [3002, 3003]
        assert found.reviews == self.read(tmp_path, rows).reviews

    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            ({"score": "high"}, "row 5: the score 'high' is not a number"),
            ({"score": "nan"}, "row 5: the score nan is not possible"),
            ({"score": "-1"}, "row 5: the score -1 is not possible"),
            ({"verdict": "odd"}, "row 5: the verdict 'odd' is neither good nor anomalous"),
            ({"review": "fine"}, "row 5: the review 'fine' is not one of true_defect"),
            ({"verdict": "good", "score": 1.0, "review": "false_alarm"}, "row 5: the review false_alarm does not fit"),
            (
                {"verdict": "good", "score": 9.0, "review": ""},
                "row 5: the verdict is good, but the score 9 does not fit",
            ),
            ({"sample": "maybe"}, "row 5: the sample 'maybe' is neither yes nor empty"),
            ({"id": "000000"}, "row 5: the part 000000 is in row 2 too, with other content"),
        ],
    )
    def test_one_broken_row_is_named_and_skipped(self, tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
        rows = history("v")
        rows[3] |= wrong
        found = self.read(tmp_path, rows)
        assert len(found.broken) == 1
        assert words in found.broken[0]
        assert found.reviews.good + found.reviews.alarms == 2999

    def test_a_row_that_was_cut_off(self, tmp_path: Path) -> None:
        path = written(tmp_path / "file.csv", history("v"))
        path.write_bytes(path.read_bytes().rstrip()[:-1] + b"\r\n3000,part,v\r\n")
        assert read_reviews(path, "v", THRESHOLD).broken[-1] == "row 3002: it has 3 cells instead of 9"

    def test_a_note_may_have_lines_and_quotes(self, tmp_path: Path) -> None:
        rows = history("v")
        rows[0]["note"] = 'first\nsecond, "third"'
        rows[3]["score"] = "x"
        assert self.read(tmp_path, rows).broken == ["row 5: the score 'x' is not a number"]

    def test_many_broken_rows_are_an_error(self, tmp_path: Path) -> None:
        rows = history("v", parts=100)
        for row in rows[:20]:
            row["score"] = "?"
        with pytest.raises(DatasetError, match=r"20 of 100 rows of .* cannot be used, for example: row 2: the score"):
            self.read(tmp_path, rows)

    def test_missing_columns(self, tmp_path: Path) -> None:
        with pytest.raises(
            DatasetError, match="has no column verdict and no column review; save the service's history"
        ):
            self.read(tmp_path, history("v"), columns=("id", "score"))

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "has no column score"),
            (b"score,verdict,review\r\n", "has no rows"),
            (b"\xff\xfe\x00s", "not a CSV file in UTF-8"),
            (b"score,verdict,review\r\n1,good,\xff\r\n", "not a CSV file in UTF-8"),
        ],
    )
    def test_files_that_are_none(self, tmp_path: Path, content: bytes, words: str) -> None:
        (tmp_path / "file.csv").write_bytes(content)
        with pytest.raises(DatasetError, match=words):
            read_reviews(tmp_path / "file.csv", "v", THRESHOLD)


class TestMistakes:
    def test_options_that_do_not_go_together(self, trained: Path, tmp_path: Path) -> None:
        for more in (("--threshold", 1), ("--false-alarm-rate", 0.1), ("--min-area", 3), ("--defects", tmp_path)):
            ended = run("calibrate", trained, "--reviews", tmp_path / "x.csv", *more)
            assert ended.code == 2
            assert "--reviews" in ended.stderr
        assert run("calibrate", trained, tmp_path, "--reviews", tmp_path / "x.csv").code == 2
        ended = run("calibrate", trained, "--aim", "few-alarms", "--apply")
        assert ended.code == 2
        assert "--apply" in ended.stderr

    def test_a_file_that_is_not_there(self, trained: Path, tmp_path: Path) -> None:
        assert "cannot be read" in run("calibrate", trained, "--reviews", tmp_path / "x.csv").error()
        assert "cannot be read" in run("calibrate", trained, "--reviews", tmp_path).error()

    def test_broken_rows_are_reported(self, trained: Path, tmp_path: Path) -> None:
        rows = history(read_index(trained)["identity"])
        rows[3]["score"] = "x"
        ended = run("calibrate", trained, "--reviews", written(tmp_path / "x.csv", rows))
        assert "skipped: row 5: the score 'x' is not a number" in ended.stderr
