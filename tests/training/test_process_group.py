"""Two processes that train together train what one trains with the whole batch."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from patchsvdd.core.config import Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.errors import ConfigError, Interrupted
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.critic.network import build_critic, critic_normalization
from patchsvdd.critic.training import CriticTrainer, critic_loss, train_critic
from patchsvdd.encoder.networks import SLOPE, build_encoder
from patchsvdd.images.normalization import Normalization
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.hooks import TrainingHooks, TrainingProgress
from patchsvdd.training.loop import train
from patchsvdd.training.process_group import ProcessGroup, check_shares, shared_norms
from patchsvdd.training.step import Trainer
from support.parts import draw_part

pytestmark = pytest.mark.slow

WORKERS = 2
STEPS = 20
CPU = torch.device("cpu")
PIXELS = torch.stack([torch.from_numpy(draw_part(seed).transpose(2, 0, 1).copy()) for seed in range(5)])
LARGER = torch.stack([torch.from_numpy(draw_part(seed, (72, 72)).transpose(2, 0, 1).copy()) for seed in range(5)])
SMALL: dict[str, Any] = {"image_size": 64, "steps": STEPS, "batch_size": 2, "pairs_per_crop": 16, "stop": "end"}
CONFIGS: dict[str, Config] = {
    "dense": preset("encoder", **SMALL, relative_svdd=True),
    "dense, not relative": preset("encoder", **SMALL, relative_svdd=False, clip=0.0, ema=0.0),
    "patches": preset("paper", **SMALL),
    "patches, relative": preset("paper", **SMALL, relative_svdd=True),
    "without positions": preset("paper", **SMALL, objective="svdd-prime", sampling="dense"),
    "one centre": preset("paper", **SMALL, objective="svdd"),
}
FLAT: dict[str, Any] = {"encoder": "flat", "scales": (Scale(64, 16),), "pairs_per_crop": 8}
CURVES: dict[str, Config] = {
    "dense": preset("encoder", **(SMALL | FLAT | {"image_size": 72})),
    "patches": preset("paper", **(SMALL | FLAT | {"image_size": 72})),
}
CRITIC = CriticSettings(width=4, steps=STEPS, batch_size=4)
Found = dict[str, Any]
ROUNDING = 5e-5
"""How far gradients in float32 may lie apart, in units of the largest. A weight's gradient is a sum over batch and
positions, about 10⁴ terms, and a process that has half of the batch adds them up in another order: √10⁴ · 6e-8 = 6e-6,
and the kernels of processors differ (5.7e-6 at most on x86 with AVX2 or AVX-512). Leaving a share out, or counting one
twice, changes gradients by a tenth or more."""


def one_step(config: Config, group: ProcessGroup | None) -> Found:
    """Gradients of the first step, before anything is clipped, and the weights after it.

    The weights preserve variance. With PyTorch's own, embeddings agree in their first four digits: gradients of their
    differences would be rounding errors to a part in 10⁴.
    """
    config = dataclasses.replace(config, clip=0.0)
    encoder = build_encoder(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for layer in encoder.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, a=SLOPE)
    trainer = Trainer(encoder, Normalization.fit(PIXELS, config)(PIXELS), config, STEPS, group=group)
    trainer.advance()
    gradients = [one.grad.clone() for one in trainer.optimizer.param_groups[0]["params"] if one.grad is not None]
    return {"gradients": gradients, "weights": list(trainer.state().values())}


def curve(config: Config, group: ProcessGroup | None) -> Found:
    """The metrics of every step, and the state at the end."""
    trainer = Trainer(build_encoder(config), Normalization.fit(LARGER, config)(LARGER), config, STEPS, group=group)
    losses = []
    for _ in range(STEPS):
        trainer.advance()
        losses.append([list(row.values()) for row in trainer.read_metrics(reset=True).values()])
    return {"losses": torch.tensor(losses), "state": trainer.state()}


def critic_curve(group: ProcessGroup | None) -> Found:
    """The metrics of every step of the critic, and its state at the end."""
    trainer = CriticTrainer(build_critic(CRITIC), PIXELS, critic_normalization(PIXELS), CRITIC, 0, group=group)
    losses = []
    for _ in range(STEPS):
        trainer.advance()
        losses.append(list(trainer.read_metrics().values()))
    return {"losses": torch.tensor(losses), "state": trainer.state()}


def critic_step(group: ProcessGroup | None) -> Found:
    """Gradients of the critic, in float64: in float32 a ReLU that is almost 0 may fall to either side."""
    trainer = CriticTrainer(build_critic(CRITIC), PIXELS, critic_normalization(PIXELS), CRITIC, 0, group=group)
    views, labels, counted = (one.double() for one in trainer.draw(CRITIC.batch_size))
    critic = trainer.critic.double()
    with shared_norms(critic, group):
        logits = critic(views if group is None else group.share(views))
    loss, _ = critic_loss(logits if group is None else group.gather(logits), labels, counted)
    loss.backward()  # type: ignore[no-untyped-call]
    if group is not None:
        group.average(trainer.parameters)
    return {"gradients": [one.grad for one in trainer.parameters], "state": critic.state_dict()}


def norms(group: ProcessGroup | None) -> Found:
    """A batch normalisation of uneven images: what it returns, learns and passes back."""
    images = torch.randn((4, 3, 5, 5), generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 9, 2, 5])[
        :, None, None, None
    ] + torch.arange(4.0).view(4, 1, 1, 1)
    images.requires_grad_()
    part = images if group is None else group.share(images)
    net = nn.Sequential(nn.BatchNorm2d(3))
    with shared_norms(net, group):
        found = net(part)
    whole = found if group is None else group.gather(found)
    (whole.square() * torch.linspace(0, 1, whole.numel()).view_as(whole)).sum().backward()
    assert images.grad is not None
    passed = images.grad
    if group is not None:
        group.average(net.parameters())
        passed = group.gather(group.share(passed)) / group.size
    gradients = [one.grad for one in net.parameters()]
    return {"out": whole.detach(), "passed": passed, "gradients": gradients, "state": net.state_dict()}


def stopped(folder: Path, group: ProcessGroup | None) -> Found:
    """What each process heard of a training that its second one is told to stop after 7 steps."""
    config, asked, steps = CURVES["dense"], [0], list[int]()

    def should_stop() -> bool:
        asked[0] += 1
        return asked[0] >= 7 and group is not None and group.rank == 1

    def hear(now: TrainingProgress) -> None:
        steps.append(now.step)

    hooks = TrainingHooks(hear, should_stop, CheckpointFile(folder), group=group)
    pixels = Normalization.fit(LARGER, config)(LARGER)
    try:
        train(build_encoder(config), pixels, config, "images", hooks)
    except Interrupted as error:
        return {"error": str(error), "steps": steps}
    return {"error": "", "steps": steps}


def stopped_critic(folder: Path, group: ProcessGroup | None) -> Found:
    """The same of a critic."""
    asked = [0]

    def should_stop() -> bool:
        asked[0] += 1
        return asked[0] >= 7 and group is not None and group.rank == 1

    hooks = TrainingHooks(None, should_stop, CheckpointFile(folder), group=group)
    try:
        train_critic(PIXELS, critic_normalization(PIXELS), CRITIC, 0, "images", hooks)
    except Interrupted as error:
        return {"error": str(error)}
    return {"error": ""}


def jobs(folder: Path) -> dict[str, Callable[[ProcessGroup | None], Found]]:
    """Everything that is done by both a team and one process."""
    found: dict[str, Callable[[ProcessGroup | None], Found]] = {"norms": norms, "critic": critic_curve}
    for name, config in CONFIGS.items():
        found[f"step, {name}"] = lambda group, config=config: one_step(config, group)  # type: ignore[misc]
    for name, config in CURVES.items():
        found[f"curve, {name}"] = lambda group, config=config: curve(config, group)  # type: ignore[misc]
    found["critic's step"] = critic_step
    found["stopped"] = lambda group: stopped(folder, group)
    found["stopped critic"] = lambda group: stopped_critic(folder, group)
    return found


def work(rank: int, folder: Path) -> None:
    """One process of the team: does all jobs and writes what it found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=WORKERS)
    group = ProcessGroup.here(CPU)
    torch.save({name: job(group) for name, job in jobs(folder).items()}, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("group")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Found]:
    """What both processes found."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, folder)) for rank in range(WORKERS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        for process in processes:
            process.start()
    for process in processes:
        process.join(timeout=500)
        process.kill()  # one that hangs must not outlive the test
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORKERS)]


def farthest(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference, in units of the largest number."""
    largest = max(float(one.abs().max()) for one in theirs)
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) / largest


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_of_a_step_are_those_of_the_whole_batch(name: str, ranks: list[Found]) -> None:
    alone = one_step(CONFIGS[name], None)
    assert farthest(ranks[0][f"step, {name}"]["gradients"], alone["gradients"]) < ROUNDING


def test_gradients_of_the_critic_are_those_of_the_whole_batch(ranks: list[Found]) -> None:
    alone, together = critic_step(None), ranks[0]["critic's step"]
    assert farthest(together["gradients"], alone["gradients"]) < 1e-10
    for name, value in alone["state"].items():
        torch.testing.assert_close(together["state"][name], value)


def test_batch_normalisation_knows_the_whole_batch(ranks: list[Found]) -> None:
    alone = norms(None)
    for found in ranks:
        torch.testing.assert_close(found["norms"]["out"], alone["out"])
        torch.testing.assert_close(found["norms"]["state"], alone["state"])
        torch.testing.assert_close(found["norms"]["gradients"], alone["gradients"])
        torch.testing.assert_close(found["norms"]["passed"], alone["passed"])


@pytest.mark.parametrize("name", ["dense", "patches"])
def test_the_loss_curve_is_that_of_the_whole_batch(name: str, ranks: list[Found]) -> None:
    alone = curve(CURVES[name], None)["losses"]
    assert alone.shape[0] == STEPS
    assert (alone[0] - alone[-1]).abs().max() > 1e-3  # it has learned something
    torch.testing.assert_close(ranks[0][f"curve, {name}"]["losses"], alone, atol=5e-3, rtol=5e-3)


def test_the_critics_loss_curve_is_that_of_the_whole_batch(ranks: list[Found]) -> None:
    torch.testing.assert_close(ranks[0]["critic"]["losses"], critic_curve(None)["losses"], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("name", ["curve, dense", "curve, patches", "critic"])
def test_weights_are_the_same_bits_in_both(name: str, ranks: list[Found]) -> None:
    ours, theirs = (found[name]["state"] for found in ranks)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[one], theirs[one]) for one in ours)


def test_all_stop_where_one_is_told_to_and_the_leader_alone_reports(ranks: list[Found]) -> None:
    assert [found["stopped"]["error"] for found in ranks] == ["stopped at step 7 of 20"] * 2
    assert ranks[0]["stopped"]["steps"] == [1, 2, 3, 4, 5, 6, 7]
    assert ranks[1]["stopped"]["steps"] == []


def test_one_process_resumes_what_a_team_began(folder: Path, ranks: list[Found]) -> None:
    config, pixels = CURVES["dense"], Normalization.fit(LARGER, CURVES["dense"])(LARGER)
    resumed, whole = build_encoder(config), build_encoder(config)
    steps: list[int] = []
    hooks = TrainingHooks(lambda now: steps.append(now.step), checkpoint=CheckpointFile(folder), resume=True)
    record = train(resumed, pixels, config, "images", hooks)
    again = train(whole, pixels, config, "images", TrainingHooks())
    assert steps[0] == 8
    assert [row["step"] for row in record.history] == [row["step"] for row in again.history]
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, atol=2e-3, rtol=2e-3)


def test_one_process_resumes_the_critic_of_a_team(folder: Path, ranks: list[Found]) -> None:
    assert [found["stopped critic"]["error"] for found in ranks] == ["stopped at step 7 of 20 of the critic"] * 2
    hooks = TrainingHooks(checkpoint=CheckpointFile(folder), resume=True)
    resumed, record = train_critic(PIXELS, critic_normalization(PIXELS), CRITIC, 0, "images", hooks)
    whole, again = train_critic(PIXELS, critic_normalization(PIXELS), CRITIC, 0, "images", TrainingHooks())
    assert [row["step"] for row in record.history] == [row["step"] for row in again.history]
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_every_row_belongs_to_one_process(blocks: int) -> None:
    whole = torch.arange(blocks * 6)
    parts = [ProcessGroup(rank, 3, CPU).share(whole, blocks) for rank in range(3)]
    assert sorted(torch.cat(parts).tolist()) == whole.tolist()
    assert parts[1][:2].tolist() == [2, 3]
    assert all(len(part) == blocks * 2 for part in parts)


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    check_shares("`batch_size`", 6, 3)
    with pytest.raises(ConfigError, match="`batch_size` 5 cannot be shared evenly by 2 workers"):
        check_shares("`batch_size`", 5, 2)
    config = preset("encoder", **{**SMALL, "batch_size": 3})
    pixels = Normalization.fit(PIXELS, config)(PIXELS)
    with pytest.raises(ConfigError, match="`batch_size` 3"):
        Trainer(build_encoder(config), pixels, config, 1, group=ProcessGroup(0, 2, CPU))
    odd = dataclasses.replace(CRITIC, batch_size=3)
    with pytest.raises(ConfigError, match="the critic's batch of 3"):
        CriticTrainer(build_critic(odd), PIXELS, critic_normalization(PIXELS), odd, 0, group=ProcessGroup(0, 2, CPU))
