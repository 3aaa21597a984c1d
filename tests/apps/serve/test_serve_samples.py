"""Sample review: which Good parts are drawn, what may be said of them, and what their reviews tell."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from patchsvdd.apps.cli.review_file import read_reviews
from patchsvdd.apps.serve.overview_store import Counter
from patchsvdd.apps.serve.reports.csv_report import csv_chunks
from patchsvdd.apps.serve.samples import PER_DAY, Counts, Samples, day_start, estimate, missed_defects
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Filter, Store
from patchsvdd.apps.serve.tables import inspections
from support.serving import Running, part, row, running, settings

pytestmark = pytest.mark.service


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(Settings((), tmp_path / "data").url)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def served(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(settings(tmp_path_factory.mktemp("samples") / "data", stored)) as server:
        yield server


def add(store: Store, at: float, draw: float | None, verdict: str = "good", **more: Any) -> str:
    one = row(at, draw=draw, verdict=verdict, **more)
    store.insert_inspection(one).result()
    return str(one["id"])


def today(hour: float = 0.0) -> float:
    return day_start(datetime.now().date()) + 3600 * hour


# The sample


def test_the_sample_of_a_day_are_its_smallest_draws_among_good_parts(store: Store) -> None:
    noon = today(-12)  # yesterday
    draws = np.random.default_rng(0).random(40)
    numbers = [add(store, noon + index, draw) for index, draw in enumerate(draws)]
    add(store, noon, 0.0, "anomalous")
    add(store, noon, None)
    add(store, noon, 0.0, model="other")
    add(store, noon - 86_400, 0.0)  # the day before
    samples = Samples(store, Counter(store))
    expected = [numbers[index] for index in np.argsort(draws)[:PER_DAY]]
    assert [one["id"] for one in samples.due("part")] == expected
    samples.set_per_day("part", 3)
    assert [one["id"] for one in samples.due("part")] == expected[:3]
    samples.set_per_day("part", 0)
    assert samples.due("part") == []
    assert samples.counts("part").sampled == 0


def test_the_csv_says_what_was_drawn_and_calibrate_reads_it(store: Store, tmp_path: Path) -> None:
    noon, rng = today(-12), np.random.default_rng(0)
    samples = Samples(store, Counter(store))
    for day in range(4):
        for index in range(60):
            add(store, noon - 86_400 * day + index, float(rng.random()), score=float(rng.uniform(0.1, 1)))
        for index in range(3):
            store.review(add(store, noon - 86_400 * day, None, "anomalous", score=2.0 + index), "true_defect", "", "a")
    drawn = {number for day in range(4) for number in samples.of_day("part", day_of(noon - 86_400 * day), PER_DAY)}
    for number in drawn:
        store.review(number, "confirmed_good", "", "anna")
    picked = add(store, noon, 1.0, score=0.5)
    store.review(picked, "true_defect", "somebody noticed it", "anna")
    for path, given in ((tmp_path / "own.csv", samples), (tmp_path / "other.csv", None)):
        path.write_bytes(b"".join(csv_chunks(store, Filter(), given)))
        found = read_reviews(path, "i", 1.0)
        assert not found.broken
        assert not found.cautions
        assert found.left_out == {"called good and not drawn at random for review": 1}
        assert (found.reviews.good, found.reviews.alarms) == (241, 12)
        assert len(found.reviews.scores(alarms=False)) == len(drawn) == 4 * PER_DAY
        assert found.reviews.weight(alarm=False) == 241 / 20
    samples.set_per_day("part", 0)
    assert samples.drawn([row(noon)]) == set()


def day_of(at: float) -> date:
    return datetime.fromtimestamp(at).date()


def test_yesterdays_sample_comes_first_and_reviewed_parts_are_not_due(store: Store) -> None:
    now = datetime.now().replace(hour=12)
    samples = Samples(store, Counter(store))
    new, old = add(store, today(), 0.1), add(store, today(-5), 0.9)
    assert [one["id"] for one in samples.due("part", now)] == [old, new]
    store.review(old, "confirmed_good", "", "anna")
    assert [one["id"] for one in samples.due("part", now)] == [new]


def test_only_the_sample_counts_for_misses(store: Store) -> None:
    """A part that somebody picked because it looked odd would make the miss rate too high."""
    samples = Samples(store, Counter(store))
    samples.set_per_day("part", 2)
    noon = today(-12)
    drawn = [add(store, noon + index, 0.1 + index / 10) for index in range(4)]
    alarms = [add(store, noon + index, 0.5, "anomalous") for index in range(3)]
    store.review(drawn[0], "true_defect", "", "anna")
    store.review(drawn[1], "confirmed_good", "", "anna")
    store.review(drawn[3], "true_defect", "", "anna")
    store.review(alarms[0], "true_defect", "", "anna")
    store.review(alarms[1], "false_alarm", "", "anna")
    assert samples.counts("part") == Counts(4, 3, 1, 1, sampled=2, confirmed=1, missed=1)
    said = estimate(samples.counts("part"), 30)
    assert (said["misses"]["hits"], said["misses"]["of"]) == (1, 2)
    assert said["missed_defects"]["missed"] == 2  # half of four Good parts
    store.review(drawn[1], "unsure", "", "anna")
    assert samples.counts("part").unsure == 1


def test_counts_follow_reviews_of_past_hours(store: Store) -> None:
    """Past hours are counted once; a review of one of their parts shows at once all the same."""
    counter = Counter(store)
    noon = time.time() - 2 * 86_400
    number = add(store, noon, 0.5, "anomalous")
    since = noon - 86_400
    assert counter.period(since, time.time()).total().waiting == 1
    store.review(number, "false_alarm", "", "anna")
    counted = counter.period(since, time.time()).total()
    assert (counted.waiting, counted.false_alarms) == (0, 1)
    store.review(number, None, "", "anna")
    assert counter.period(since, time.time()).total().waiting == 1


# Intervals


def test_nothing_reviewed_says_nothing() -> None:
    said = estimate(Counts(good=100, anomalous=5), 30)
    assert said["misses"]["share"] is None
    assert said["missed_defects"] == {"share": None, "low": 0.0, "high": 1.0, "missed": None, "found": None}


def test_all_reviewed_leaves_no_doubt_about_the_number() -> None:
    said = missed_defects(Counts(10, 4, 1, 3, sampled=10, confirmed=9, missed=1))
    assert (said["share"], said["low"], said["high"]) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("good", "missed", "alarms", "found", "sampled", "reviewed"),
    [(2000, 20, 80, 60, 150, 40), (500, 5, 30, 25, 60, 30), (5000, 250, 300, 200, 150, 100), (300, 1, 5, 5, 150, 5)],
)
def test_the_interval_of_missed_defects_covers_the_truth(
    good: int, missed: int, alarms: int, found: int, sampled: int, reviewed: int
) -> None:
    """Samples without replacement from a known lot: the interval must hold the true share in 95 % of them."""
    random = np.random.default_rng(3)
    truth, runs, held = missed / (missed + found), 2000, 0
    for _ in range(runs):
        hits = int(random.hypergeometric(missed, good - missed, sampled))
        true = int(random.hypergeometric(found, alarms - found, reviewed)) if alarms > found else reviewed
        counts = Counts(good, alarms, reviewed - true, true, sampled, confirmed=sampled - hits, missed=hits)
        said = missed_defects(counts)
        assert said["low"] <= said["high"]
        held += said["low"] - 1e-9 <= truth <= said["high"] + 1e-9
    assert held / runs >= 0.95


# Routes


def test_the_sample_is_asked_for_and_set(served: Running) -> None:
    numbers = [served.inspect("part", part(seed)).json() for seed in range(10, 14)]
    query = sa.update(inspections).values(draw=0.5)
    served.service.store.write(lambda connection: connection.execute(query))
    good = [one["id"] for one in numbers if one["verdict"] == "good"]
    answer = served.client.put("/v1/samples/part", json={"per_day": 1000})
    assert answer.status_code == 200, answer.text
    said = served.client.get("/v1/samples", params={"model": "part"}).json()
    assert said["per_day"] == 1000
    assert said["due"] == len(good)
    assert {one["id"] for one in said["inspections"]} == set(good)
    assert said["estimate"]["days"] == 30
    assert served.client.get("/v1/samples", params={"model": "none"}).status_code == 404
    assert served.client.put("/v1/samples/none", json={"per_day": 1}).status_code == 404
    for wrong in ({"per_day": -1}, {"per_day": 1001}, {"per_day": "many"}, {}):
        assert served.client.put("/v1/samples/part", json=wrong).status_code == 422


def test_reviews_fit_the_verdict(served: Running) -> None:
    store = served.service.store
    good, alarm = add(store, time.time(), 0.5), add(store, time.time(), 0.5, "anomalous")

    def say(number: str, verdict: str | None) -> Any:
        return served.client.post(f"/v1/inspections/{number}/review", json={"verdict": verdict})

    assert say(good, "confirmed_good").status_code == 200
    assert say(alarm, "false_alarm").status_code == 200
    wrong = say(alarm, "confirmed_good")
    assert wrong.status_code == 409
    assert "false_alarm" in wrong.json()["detail"]
    wrong = say(good, "false_alarm")
    assert wrong.status_code == 409
    assert "confirmed_good" in wrong.json()["detail"]
    assert served.client.get(f"/v1/inspections/{good}").json()["review"]["verdict"] == "confirmed_good"
    for number in (good, alarm):
        for verdict in ("true_defect", "unsure", None):
            assert say(number, verdict).status_code == 200


def test_confirmed_good_parts_are_not_learned(served: Running) -> None:
    number = add(served.service.store, time.time(), 0.5)
    served.client.post(f"/v1/inspections/{number}/review", json={"verdict": "confirmed_good"})
    for body in ({"inspections": [number]}, {"inspections": None}):
        assert served.client.post("/v1/models/part/learn", json=body).status_code == 409


def test_the_sample_moves_with_the_day(store: Store) -> None:
    samples = Samples(store, Counter(store))
    number = add(store, today(-1), 0.5)
    now = datetime.now().replace(hour=12)
    assert [one["id"] for one in samples.due("part", now)] == [number]
    assert samples.due("part", now + timedelta(days=1)) == []
