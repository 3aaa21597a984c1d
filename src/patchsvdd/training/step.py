"""The training step and all state that it changes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from patchsvdd.core.config import Config
from patchsvdd.core.device import trains_in_bfloat16
from patchsvdd.encoder.networks import HierarchicalEncoder, PatchEncoder, PositionClassifier, grids_for
from patchsvdd.training.checkpoint import below, moments, restore_moments
from patchsvdd.training.cuda_graph import RecordedStep
from patchsvdd.training.fused_step import FusedStep, fused_step_runs_on
from patchsvdd.training.losses import (
    before_tanh,
    embedding_spread,
    patch_svdd_loss,
    position_loss,
    svdd_center,
    svdd_loss,
    svdd_prime_loss,
)
from patchsvdd.training.pairs import EmbeddedPairs, PairSource, pair_source
from patchsvdd.training.process_group import ProcessGroup, check_shares

METRICS = ("svdd_loss", "spread", "position_loss", "position_accuracy")
"""Per scale: L_SVDD' (or L_SVDD) and the spread of the embeddings; with L_SSL, also its value and accuracy."""
KERNELS_PAY_AFTER = 15_000
"""Schedules of at least this many steps use the Triton kernels if supported: then their compilation pays off.
The whole schedule counts, not the remaining steps, so that a resumed run computes as before."""


class Trainer(RecordedStep):
    """Runs training one optimiser step at a time and holds all state that training changes."""

    def __init__(
        self,
        encoder: PatchEncoder,
        images: Tensor,
        config: Config,
        steps: int,
        with_kernels: bool | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        """``with_kernels``: whether to use the Triton kernels if supported; by default KERNELS_PAY_AFTER decides.

        In a ``group`` each process encodes its share of every batch, without kernels or CUDA graphs.
        """
        device = images.device
        super().__init__(device, torch.Generator(device).manual_seed(config.seed), group)
        if group is not None:
            check_shares("`batch_size`", config.batch_size, group.size)
            with_kernels = False
        self.config, self.steps = config, steps
        self.sizes = encoder.patch_sizes
        self.encoder = encoder.to(device).train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed + 1)
            self.classifiers = nn.ModuleDict(
                {
                    str(size): PositionClassifier(config.embedding_dim, config.frozen_position_output)
                    for size in self.sizes
                }
            ).to(device)
        self.centers = embedding_centers(encoder, images, config) if config.objective == "svdd" else {}
        with_kernels = steps >= KERNELS_PAY_AFTER if with_kernels is None else with_kernels
        self._source: PairSource | FusedStep
        if with_kernels and isinstance(encoder, HierarchicalEncoder) and fused_step_runs_on(encoder, images, config):
            self._source = FusedStep(encoder, self.classifiers, images, config, self._step_on_device)
        else:
            self._source = pair_source(encoder, images, config, self.generator, with_kernels, group)
        self._lr = torch.tensor(config.learning_rate, device=device)
        self._metrics = METRICS if config.learns_positions else METRICS[:2]
        self._sums = torch.zeros((len(self.sizes), len(self._metrics)), device=device)
        trained = [p for p in (*encoder.parameters(), *self.classifiers.parameters()) if p.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=self._lr, fused=True, capturable=device.type == "cuda")
        self._average: dict[str, Tensor] = {}
        if config.ema > 0:
            self._average = {name: value.detach().clone() for name, value in encoder.named_parameters()}

    def prepare(self) -> None:
        """Compile kernels and record the step as a CUDA graph on a GPU; otherwise the first step does both."""
        if self.device.type == "cuda" and self._graph is None and self._group is None:
            self._source.compile()
        super().prepare()

    def finish(self) -> None:
        """Load the averaged weights, if any, into the encoder; training cannot continue afterwards."""
        if self._average:
            self.encoder.load_state_dict(self._average)

    def read_metrics(self, reset: bool) -> dict[int, dict[str, float]]:
        """Return patch size → METRICS, averaged since the last reset."""
        if self._group is not None:
            self._group.follow(self._sums)  # decisions based on them must agree
        means = (self._sums / max(1, self._summed)).tolist()
        if reset:
            self._sums.zero_()
            self._summed = 0
        return {size: dict(zip(self._metrics, row, strict=True)) for size, row in zip(self.sizes, means, strict=True)}

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that the next step depends on."""
        tensors = {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
        tensors |= {f"classifiers.{name}": value for name, value in self.classifiers.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self._average.items()}
        tensors |= {f"center.{size}": value for size, value in self.centers.items()}
        tensors |= {f"adam.{name}": value for name, value in moments(self.optimizer).items()}
        tensors["generator"] = self.generator.get_state()
        # Metrics not yet reported belong to the state too: the history stays the same across a resume.
        tensors["metrics"] = self._sums
        tensors["metrics_count"] = torch.tensor(self._summed)
        return tensors

    def load_state(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from what ``state`` returned after ``step`` steps."""
        self.encoder.load_state_dict(below("encoder.", tensors))
        self.classifiers.load_state_dict(below("classifiers.", tensors))
        for name, value in below("average.", tensors).items():
            self._average[name].copy_(value)
        self.centers = {int(k): v.to(self.device) for k, v in below("center.", tensors).items()}
        restore_moments(self.optimizer, below("adam.", tensors), self._lr)
        self.generator.set_state(tensors["generator"])
        self._sums.copy_(tensors["metrics"])
        self._summed = int(tensors["metrics_count"])
        self.step = step
        self._step_on_device.fill_(step)

    def _compute(self) -> None:
        """Draw pairs, compute gradients and update the weights, without reading anything back to the host."""
        if self.config.schedule == "cosine":
            turn = torch.cos(self._step_on_device * (math.pi / self.steps))
            self._lr.copy_(self.config.learning_rate * 0.5 * (1 + turn))
        if self.config.warmup > 0:
            full = self._lr if self.config.schedule == "cosine" else self.config.learning_rate
            self._lr.copy_(full * ((self._step_on_device + 1) / self.config.warmup).clamp_max(1))
        self.optimizer.zero_grad(set_to_none=True)
        rows = self._source.backward() if isinstance(self._source, FusedStep) else self._backward(self._source)
        if self._group is not None:
            self._group.average(self.optimizer.param_groups[0]["params"])
        if self.config.clip > 0:
            nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], self.config.clip, foreach=True)
        self.optimizer.step()
        self._sums += rows
        self._step_on_device += 1
        if self._average:
            self._update_average(list(self.encoder.parameters()), list(self._average.values()), self.config.ema)

    def _backward(self, source: PairSource) -> Tensor:
        """Set the gradients of all parameters and return METRICS (scales, metrics)."""
        # Without L_SSL embeddings differ in their sixth digit, which bfloat16 would round away.
        half = trains_in_bfloat16(self.device) and self.config.learns_positions
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            pairs = source.draw()
        loss = torch.zeros((), device=self.device)
        rows = []
        for size, scale_pairs in pairs.items():
            scale_loss, row = self._loss(size, scale_pairs)
            loss = loss + scale_loss
            rows.append(row)
        loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack(rows)

    def _loss(self, size: int, pairs: EmbeddedPairs) -> tuple[Tensor, Tensor]:
        """Return the objective of one scale, and its METRICS as a detached row."""
        if self.config.objective == "svdd":
            embeddings = torch.cat((pairs.jitter_first, pairs.jitter_second))
            compact = svdd_loss(embeddings, self.centers[size])
        else:
            first, second = pairs.jitter_first, pairs.jitter_second
            if self.config.svdd_before_tanh:
                first, second = before_tanh(first), before_tanh(second)
            compact = svdd_prime_loss(first, second)
            if self.config.relative_svdd:
                compact = compact / embedding_spread(first)
        # Defined for a single pair too; in double precision, where the deviation of equal numbers is exactly 0.
        spread = pairs.jitter_first.double().std(0, correction=0).mean().float()
        if pairs.position is None:
            return compact, torch.stack((compact, spread)).detach()
        logits = self.classifiers[str(size)](pairs.position.first, pairs.position.second)
        position = position_loss(logits, pairs.position.label)
        accuracy = (logits.argmax(1) == pairs.position.label).float().mean()
        loss = patch_svdd_loss(compact, position, self.config.lambda_)
        return loss, torch.stack((compact, spread, position, accuracy)).detach()


def embedding_centers(encoder: PatchEncoder, images: Tensor, config: Config) -> dict[int, Tensor]:
    """Return c (D,) of each patch size (Eq. 3): the untrained encoder's mean embedding of all training patches."""
    grids = grids_for(encoder, config, (int(images.shape[2]), int(images.shape[3])))
    sums: dict[int, Tensor] = {}
    with torch.no_grad():
        for image in images:
            for grid, embeddings in zip(grids, encoder.dense(image[None], grids), strict=True):
                size, rows = grid.scale.patch_size, grid.pick(embeddings.flatten(2).transpose(1, 2))
                center = svdd_center(rows[0])
                sums[size] = sums.get(size, torch.zeros_like(center)) + center
    return {size: total / len(images) for size, total in sums.items()}
