from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.errors import ConfigError, Interrupted, TrainingCollapsed
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.encoder.networks import HierarchicalEncoder, build_encoder
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.collapse import check_collapse
from patchsvdd.training.hooks import TrainingHooks, TrainingProgress, TrainingRecord
from patchsvdd.training.loop import train
from patchsvdd.training.pair_sampler import DIRECTIONS
from patchsvdd.training.pairs import GatheredPairs
from patchsvdd.training.step import METRICS, Trainer

SIZE = 72
IMAGES = torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def tiny(sampling: str, **changes: Any) -> Config:
    """Settings under which a step takes a tenth of a second: the flat encoder, a few pairs."""
    settings: dict[str, Any] = {
        "image_size": SIZE,
        "encoder": "flat",
        "scales": (Scale(64, 16),),
        "sampling": sampling,
        "steps": 3,
        "batch_size": 4,
        "pairs_per_crop": 8,
        "learning_rate": 1e-3,
    }
    return preset("encoder" if sampling == "dense" else "paper", **(settings | changes))


def trained(
    config: Config, hooks: TrainingHooks | None = None, images: Tensor = IMAGES, fingerprint: str = "images"
) -> tuple[dict[str, Tensor], TrainingRecord]:
    """The weights of a fresh encoder after training, and the record."""
    encoder = build_encoder(config)
    record = train(encoder, images, config, fingerprint, hooks or TrainingHooks())
    return encoder.state_dict(), record


def differing(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    """Names of the weights that are not bit for bit the same."""
    return [name for name in first if not torch.equal(first[name], second[name])]


def stop_after(step: int, folder: Path) -> TrainingHooks:
    """Hooks that stop training after so many steps, leaving a checkpoint."""
    seen: list[TrainingProgress] = []
    return TrainingHooks(
        on_progress=seen.append, should_stop=lambda: seen[-1].step >= step, checkpoint=CheckpointFile(folder)
    )


SAMPLINGS = pytest.mark.parametrize("sampling", ["patches", "dense"])


class TestDeterminism:
    @SAMPLINGS
    def test_the_seed_decides_every_weight(self, sampling: str) -> None:
        config = tiny(sampling)
        torch.manual_seed(1)
        first, record = trained(config)
        torch.manual_seed(2)
        torch.rand(5)
        again, record_again = trained(config)
        other, _ = trained(replace(config, seed=1))
        assert not differing(first, again)
        assert record.history == record_again.history
        assert differing(first, other)
        assert differing(first, build_encoder(config).state_dict()), "nothing was learnt"

    def test_many_pairs_on_few_places_are_summed_in_a_fixed_order(self) -> None:
        # Gradients of pairs that share a place are added up; a parallel sum may differ from run to run.
        config = tiny("dense", encoder="hierarchical", scales=(Scale(32, 4), Scale(64, 16)), steps=1)
        config = replace(config, batch_size=1, pairs_per_crop=2048)
        first, _ = trained(config)
        for _ in range(2):
            assert not differing(first, trained(config)[0])

    def test_the_callers_random_numbers_are_left_alone(self) -> None:
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        trained(tiny("dense", steps=1))
        assert torch.equal(torch.rand(3), expected)


class TestResume:
    @SAMPLINGS
    @pytest.mark.parametrize("kind", ["flat", "hierarchical"])
    def test_equals_training_without_a_stop(self, tmp_path: Path, sampling: str, kind: str) -> None:
        scales = (Scale(64, 16),) if kind == "flat" else (Scale(32, 4), Scale(64, 16))
        config = tiny(sampling, encoder=kind, scales=scales, batch_size=2)
        whole, record = trained(config)
        with pytest.raises(Interrupted, match="stopped at step 1 of 3"):
            trained(config, stop_after(1, tmp_path))
        torch.manual_seed(123)
        resumed, resumed_record = trained(config, TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True))
        assert not differing(whole, resumed)
        assert resumed_record.history == record.history
        assert resumed_record.steps == record.steps == 3

    @SAMPLINGS
    def test_averaged_weights_too(self, tmp_path: Path, sampling: str) -> None:
        config = tiny(sampling, ema=0.9, clip=0.5, warmup=2, svdd_before_tanh=True, lamp=0.5)
        whole, _ = trained(config)
        with pytest.raises(Interrupted):
            trained(config, stop_after(1, tmp_path))
        resumed, _ = trained(config, TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True))
        assert not differing(whole, resumed)
        again, _ = trained(config, TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True))
        assert not differing(whole, again), "a finished training leaves its average once more"

    def test_more_than_once(self, tmp_path: Path) -> None:
        config = tiny("dense", objective="svdd")
        whole, record = trained(config)
        for step in (1, 2):
            with pytest.raises(Interrupted):
                trained(config, replace(stop_after(step, tmp_path), resume=True))
        resumed, resumed_record = trained(config, TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True))
        assert not differing(whole, resumed)
        assert resumed_record.history == record.history

    def test_a_finished_training_is_not_done_again(self, tmp_path: Path) -> None:
        config = tiny("dense")
        hooks = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        whole, record = trained(config, hooks)
        steps: list[int] = []
        again, record_again = trained(config, replace(hooks, on_progress=lambda progress: steps.append(progress.step)))
        assert steps == []
        assert not differing(whole, again)
        assert record_again.history == record.history
        assert record_again.seconds >= record.seconds

    def test_metrics_between_two_records_are_carried_over(self) -> None:
        config = tiny("dense")
        whole, first, second = (Trainer(build_encoder(config), IMAGES, config, 3) for _ in range(3))
        for trainer in (whole, whole, first):
            trainer.advance()
        second.load_state(copy.deepcopy(first.state()), 1)
        second.advance()
        assert whole.read_metrics(reset=True) == second.read_metrics(reset=True)

    def test_without_resume_training_starts_anew(self, tmp_path: Path) -> None:
        config = tiny("dense", steps=2)
        with pytest.raises(Interrupted):
            trained(config, stop_after(1, tmp_path))
        _, record = trained(config, TrainingHooks(checkpoint=CheckpointFile(tmp_path)))
        assert [row["step"] for row in record.history] == [1, 2]

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"lambda_": 0.5}, "lambda_ was 0.1, now 0.5"),
            ({"seed": 3}, "seed was 0, now 3"),
            ({"steps": 9}, "steps was 3, now 9"),
            ({"image_size": (80, 72)}, "image_size was"),
        ],
    )
    def test_other_settings_are_named(self, tmp_path: Path, changes: dict[str, Any], named: str) -> None:
        config = tiny("dense", lambda_=0.1)
        with pytest.raises(Interrupted):
            trained(config, stop_after(1, tmp_path))
        with pytest.raises(ConfigError) as error:
            trained(replace(config, **changes), TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True))
        assert named in str(error.value)
        assert "`overwrite=True`" in str(error.value)

    def test_other_images_are_an_error(self, tmp_path: Path) -> None:
        config = tiny("dense")
        with pytest.raises(Interrupted):
            trained(config, stop_after(1, tmp_path))
        hooks = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        with pytest.raises(ConfigError, match="the training images have changed"):
            trained(config, hooks, fingerprint="other images")

    def test_more_images_are_an_error_where_epochs_count(self, tmp_path: Path) -> None:
        config = tiny("patches", epochs=1, steps=None, batch_size=8)
        with pytest.raises(Interrupted):
            trained(config, stop_after(1, tmp_path))
        hooks = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        with pytest.raises(ConfigError, match="it ran for 37 steps, now 75"):
            trained(config, hooks, images=IMAGES.repeat(2, 1, 1, 1))


class TestCollapse:
    def test_a_huge_lambda_is_found_out(self) -> None:
        config = tiny("patches", lambda_=1e3, learning_rate=1e-2, steps=60)
        with pytest.raises(TrainingCollapsed) as error:
            trained(config)
        message = str(error.value)
        for part in ("64-px patches", "`lambda_=100`", "it is 1000"):
            assert part in message

    def test_a_learning_rate_that_explodes_is_found_out(self) -> None:
        with pytest.raises(TrainingCollapsed, match=r"diverged .* lower `learning_rate` \(it is 1e\+30\)"):
            trained(tiny("patches", learning_rate=1e30))

    def test_the_ablations_may_collapse(self) -> None:
        config = tiny("dense", objective="svdd-prime", learning_rate=1e-2, steps=6)
        _, record = trained(config)
        assert record.steps == 6

    @pytest.mark.parametrize("objective", ["svdd", "svdd-prime"])
    def test_an_ablation_whose_embeddings_are_all_the_same_ends(self, objective: str, tmp_path: Path) -> None:
        config = tiny("patches", objective=objective, steps=50)
        hooks = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        weights, record = trained(config, hooks, images=torch.zeros_like(IMAGES))
        assert record.steps == 1
        again, resumed = trained(config, hooks, images=torch.zeros_like(IMAGES))
        assert resumed.steps == 1
        assert not differing(weights, again)

    def test_ordinary_training_does_not(self) -> None:
        _, record = trained(tiny("dense"))
        assert record.history[-1]["scales"]["64"]["spread"] > 0


@pytest.fixture
def collapses_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings with λ above 1 collapse at their second step."""

    def check(history: list[dict[str, Any]], config: Config) -> None:
        if config.lambda_ > 1 and history[-1]["step"] == 2:
            raise TrainingCollapsed(f"collapsed with {config.lambda_:g}")

    monkeypatch.setattr("patchsvdd.training.loop.check_collapse", check)


class TestRetries:
    @pytest.mark.usefixtures("collapses_above")
    def test_start_anew_with_a_tenth(self) -> None:
        seen: list[TrainingProgress] = []
        config = tiny("dense", lambda_=100.0, retries=2)
        weights, record = trained(config, TrainingHooks(on_progress=seen.append))
        assert [(now.step, now.lambda_, now.collapses) for now in seen] == [
            *((1, 100.0, 0), (2, 100.0, 0)),
            *((1, 10.0, 1), (2, 10.0, 1)),
            *((1, 1.0, 2), (2, 1.0, 2), (3, 1.0, 2)),
        ]
        assert record.lambda_ == 1.0
        assert record.collapses == ("collapsed with 100", "collapsed with 10")
        direct, direct_record = trained(tiny("dense", lambda_=1.0))
        assert not differing(weights, direct), "nothing of the earlier attempts is left"
        assert record.history == direct_record.history
        assert (direct_record.lambda_, direct_record.collapses) == (1.0, ())

    @pytest.mark.usefixtures("collapses_above")
    @pytest.mark.parametrize(("retries", "lambda_"), [(0, 100.0), (1, 100.0), (2, 1e4)])
    def test_not_more_often_than_asked(self, retries: int, lambda_: float) -> None:
        with pytest.raises(TrainingCollapsed, match=f"collapsed with {lambda_ / 10**retries:g}"):
            trained(tiny("dense", lambda_=lambda_, retries=retries, stop="end"))

    @pytest.mark.usefixtures("collapses_above")
    @pytest.mark.parametrize("stop", [1, 3, 7])
    def test_a_resumed_training_knows_its_attempt(self, tmp_path: Path, stop: int) -> None:
        config = tiny("dense", lambda_=100.0, retries=2, steps=4)
        whole, record = trained(config)
        seen: list[int] = []
        hooks = TrainingHooks(
            on_progress=lambda now: seen.append(now.step),
            should_stop=lambda: len(seen) == stop,
            checkpoint=CheckpointFile(tmp_path),
        )
        with pytest.raises(Interrupted):
            trained(config, hooks)
        resumed, resumed_record = trained(config, TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True))
        assert not differing(whole, resumed)
        assert resumed_record.history == record.history
        assert resumed_record.collapses == record.collapses
        assert resumed_record.lambda_ == 1.0

    def test_without_lambda_there_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        attempts: list[int] = []

        def check(history: list[dict[str, Any]], config: Config) -> None:
            attempts.append(1)
            raise TrainingCollapsed("for another reason")

        monkeypatch.setattr("patchsvdd.training.loop.check_collapse", check)
        with pytest.raises(TrainingCollapsed, match="another reason"):
            trained(tiny("dense", lambda_=0.0, retries=2, stop="end"))
        assert len(attempts) == 1

    @pytest.mark.parametrize(
        ("changes", "remedy"),
        [
            ({"relative_svdd": True}, "λ L_SVDD' outweighs L_SSL: lower it, e.g. `lambda_=0.03` (it is 0.3)"),
            ({"relative_svdd": False}, "λ pulls them together: lower it, e.g. `lambda_=0.03` (it is 0.3)"),
            ({"lambda_": 0.0}, "lower `learning_rate` (it is 0.001)"),
        ],
    )
    def test_the_remedy_fits_the_loss(self, changes: dict[str, Any], remedy: str) -> None:
        history = [
            {"step": step, "scales": {"64": {"spread": spread, "position_loss": 2.0}}}
            for step, spread in ((1, 0.1), (2, 1e-5))
        ]
        with pytest.raises(TrainingCollapsed) as error:
            check_collapse(history, tiny("dense", **changes))
        assert remedy in str(error.value)


class TestLeftUntrained:
    """What is left after the last collapse where training may stop before its start."""

    @pytest.mark.usefixtures("collapses_above")
    @pytest.mark.parametrize(("retries", "lambda_"), [(0, 100.0), (1, 100.0)])
    def test_the_weights_are_those_before_training(self, retries: int, lambda_: float) -> None:
        config = tiny("dense", lambda_=lambda_, retries=retries, ema=0.5, stop="validation")
        weights, record = trained(config)
        assert not differing(weights, build_encoder(config).state_dict())
        assert record.kept_untrained
        assert (record.steps, record.history, record.lambda_) == (0, [], None)
        assert record.collapses == tuple(f"collapsed with {lambda_ / 10**tries:g}" for tries in range(retries + 1))
        assert record.seconds > 0
        assert record.validation == {}, "there was nothing to compare"

    def test_weights_that_are_no_numbers_do_not_stay(self) -> None:
        config = tiny("patches", learning_rate=1e30, stop="validation")
        weights, record = trained(config)
        assert not differing(weights, build_encoder(config).state_dict())
        (reason,) = record.collapses
        assert "diverged" in reason

    def test_without_lambda_nothing_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def check(history: list[dict[str, Any]], config: Config) -> None:
            raise TrainingCollapsed("for another reason")

        monkeypatch.setattr("patchsvdd.training.loop.check_collapse", check)
        _, record = trained(tiny("dense", lambda_=0.0, retries=2, stop="validation"))
        assert (record.collapses, record.kept_untrained) == (("for another reason",), True)

    @pytest.mark.usefixtures("collapses_above")
    @pytest.mark.parametrize("stop", [1, 3])
    def test_a_resumed_training_collapses_as_often(self, tmp_path: Path, stop: int) -> None:
        config = tiny("dense", lambda_=100.0, retries=1, stop="validation")
        seen: list[int] = []
        hooks = TrainingHooks(
            on_progress=lambda now: seen.append(now.step),
            should_stop=lambda: len(seen) == stop,
            checkpoint=CheckpointFile(tmp_path),
        )
        with pytest.raises(Interrupted):
            trained(config, hooks)
        weights, record = trained(config, TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True))
        assert not differing(weights, build_encoder(config).state_dict())
        assert record.collapses == ("collapsed with 100", "collapsed with 10")
        assert record.kept_untrained

    @pytest.mark.usefixtures("collapses_above")
    def test_a_retry_that_holds_is_kept(self) -> None:
        config = tiny("dense", lambda_=10.0, retries=1, stop="validation")
        weights, record = trained(config)
        assert differing(weights, build_encoder(config).state_dict())
        assert (record.steps, record.lambda_, record.collapses) == (3, 1.0, ("collapsed with 10",))
        assert not record.kept_untrained


class TestSteadier:
    def test_the_average_follows_the_weights(self) -> None:
        config = tiny("dense", ema=0.5)
        trainer = Trainer(build_encoder(config), IMAGES, config, 3)
        expected = copy.deepcopy(trainer.encoder.state_dict())
        for step in range(3):
            trainer.advance()
            share = max(0.5, 9 / (9 + step + 1))
            for name, value in trainer.encoder.state_dict().items():
                expected[name] += share * (value - expected[name])
        trainer.finish()
        for name, value in trainer.encoder.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)

    def test_without_an_average_the_last_weights_stay(self) -> None:
        config = tiny("dense")
        trainer = Trainer(build_encoder(config), IMAGES, config, 1)
        trainer.advance()
        before = copy.deepcopy(trainer.encoder.state_dict())
        trainer.finish()
        assert not differing(before, trainer.encoder.state_dict())

    @pytest.mark.parametrize("schedule", ["constant", "cosine"])
    def test_the_learning_rate_rises_in_a_line(self, schedule: str) -> None:
        config = tiny("dense", warmup=2, schedule=schedule)
        trainer = Trainer(build_encoder(config), IMAGES, config, 4)
        rates = []
        for _ in range(4):
            trainer.advance()
            rates.append(float(trainer.optimizer.param_groups[0]["lr"]))
        turns = [0.5 * (1 + math.cos(math.pi * step / 4)) if schedule == "cosine" else 1.0 for step in range(4)]
        expected = [1e-3 * turn * min(1, (step + 1) / 2) for step, turn in enumerate(turns)]
        assert rates == pytest.approx(expected, rel=1e-5)

    def test_long_gradients_are_shortened(self) -> None:
        norms = []
        for clip in (0.0, 1e-3):
            config = tiny("dense", clip=clip)
            trainer = Trainer(build_encoder(config), IMAGES, config, 1)
            trainer.advance()
            gradients = [one.grad for one in trainer.optimizer.param_groups[0]["params"] if one.grad is not None]
            norms.append(float(torch.stack([one.norm() for one in gradients]).norm()))
        assert norms[0] > 1e-2
        assert norms[1] == pytest.approx(1e-3, rel=1e-3)


class TestObjectives:
    @SAMPLINGS
    @pytest.mark.parametrize("objective", ["patch-svdd", "svdd-prime", "svdd"])
    def test_all_run_and_learn(self, sampling: str, objective: str) -> None:
        config = tiny(sampling, objective=objective, steps=2)
        weights, record = trained(config)
        assert all(value.isfinite().all() for value in weights.values())
        assert differing(weights, build_encoder(config).state_dict())
        told = METRICS if objective == "patch-svdd" else METRICS[:2]
        assert set(record.history[-1]["scales"]["64"]) == set(told)

    def test_the_position_loss_starts_at_a_guess(self) -> None:
        _, record = trained(tiny("dense", steps=1, pairs_per_crop=64))
        assert record.history[0]["scales"]["64"]["position_loss"] == pytest.approx(2.08, abs=0.1)  # log 8

    @pytest.mark.parametrize("frozen", [True, False])
    def test_a_frozen_position_output_keeps_its_weight(self, frozen: bool) -> None:
        config = tiny("dense", frozen_position_output=frozen)
        trainer = Trainer(build_encoder(config), IMAGES, config, 2)
        before = {name: value.clone() for name, value in trainer.classifiers.state_dict().items()}
        for _ in range(2):
            trainer.advance()
        after = trainer.classifiers.state_dict()
        assert torch.equal(after["64.output.weight"], before["64.output.weight"]) is frozen
        for name in ("64.output.bias", "64.layers.0.weight"):
            assert not torch.equal(after[name], before[name])

    @SAMPLINGS
    def test_one_pair_per_step_is_enough(self, sampling: str) -> None:
        _, record = trained(tiny(sampling, batch_size=1, pairs_per_crop=1, steps=2))
        assert record.steps == 2


class TestProgress:
    def test_every_step_is_told_on_a_cpu(self) -> None:
        seen: list[TrainingProgress] = []
        trained(tiny("dense"), TrainingHooks(on_progress=seen.append))
        assert [progress.step for progress in seen] == [1, 2, 3]
        assert {progress.steps for progress in seen} == {3}
        assert seen[-1].seconds_left == 0
        assert seen[0].steps_per_second > 0
        assert set(seen[0].metrics[64]) == set(METRICS)

    def test_no_steps_leave_the_encoder_as_it_is(self) -> None:
        config = tiny("dense", steps=0)
        weights, record = trained(config)
        assert not differing(weights, build_encoder(config).state_dict())
        assert (record.steps, record.history) == (0, [])


class TestGatheredPairs:
    """What a GPU does with dense sampling, done on the CPU."""

    def test_they_are_read_off_the_dense_maps(self) -> None:
        config = preset("encoder", image_size=160, crop_size=136, batch_size=2, pairs_per_crop=40)
        encoder = build_encoder(config)
        assert isinstance(encoder, HierarchicalEncoder)
        images = torch.randn(3, 3, 160, 160, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(7)
        source = GatheredPairs(encoder, images, config, generator)
        with torch.no_grad():
            pairs = source.draw()
            generator.manual_seed(7)
            maps = encoder.every_position(source._views())
        labels, places = source._places()
        side = maps[32].shape[2]
        for level, size in enumerate((32, 64)):
            view, place = places[level] // side**2, places[level] % side**2
            y, x = place // side, place % side
            expected = maps[size][view, :, y, x]  # (4, pairs, D)
            found, position = pairs[size], pairs[size].position
            assert position is not None
            assert torch.equal(position.label, labels[level])
            embedded = (position.first, found.jitter_first, position.second, found.jitter_second)
            torch.testing.assert_close(torch.stack(embedded), expected, atol=1e-5, rtol=1e-4)
            assert torch.equal(view[:2] + 2, view[2:])  # the same crop under another light
            way = torch.tensor(DIRECTIONS)[labels[level]].T * 2
            for before, after, direction in ((y[0], y[2], way[0]), (x[0], x[2], way[1])):
                assert ((after - before).abs() * 2 < size).all()
                assert torch.equal((after - before).sign() * 2, direction)
                assert (((after - before).abs() * 2 >= 3 * size // 4) | (direction == 0)).all()
            reach = max(1, size // 64)
            assert (y[1] - y[3]).abs().max() <= reach
            assert (x[1] - x[3]).abs().max() <= reach
            assert ((y[1] != y[3]) | (x[1] != x[3])).all()
