"""The critic: a small network that marks the pixels of an image that look tampered with.

# Differs from the paper: Patch SVDD only knows how far a patch is from normal ones. The critic learns from defects
# drawn into the same good images (``defects``), from scratch, and sees what lies close to normal and yet looks wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from patchsvdd.config import Centering, CriticSettings
from patchsvdd.normalization import Normalization
from patchsvdd.presets import preset

STEP = 4
"""Pixels of the input under one logit."""
COARSEST = 32
"""Pixels of the input under one cell of the deepest layer."""
CENTERING: Centering = "exposure"
"""Each image by its own mean and contrast: how it was lit says nothing about whether it was tampered with."""
SMOOTHING = 4.0
"""Standard deviation, in pixels at 256 px, of the Gaussian that smoothes critic maps; it grows with the image."""


class Residual(nn.Module):
    """Two 3×3 convolutions beside a 1×1 one, with batch normalisation."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs or stride != 1 else None

    def forward(self, images: Tensor) -> Tensor:
        """(N, outputs, H / stride, W / stride)."""
        inner = F.relu(self.first_norm(self.first(images)))
        inner = self.second_norm(self.second(inner))
        return F.relu(inner + (images if self.skip is None else self.skip(images)))


class Joint(nn.Module):
    """A coarse map doubled and joined with a finer one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        """(N, outputs, H, W) from a map of half the size and one of the size."""
        doubled = F.interpolate(coarse, scale_factor=2.0, mode="nearest")
        mixed: Tensor = F.relu(self.norm(self.mix(torch.cat((doubled, fine), dim=1))))
        return mixed


class Critic(nn.Module):
    """Normalised images (N, 3, H, W) → logits (N, ⌈H/4⌉, ⌈W/4⌉): how much each place looks tampered with."""

    def __init__(self, settings: CriticSettings) -> None:
        super().__init__()
        w = settings.width
        self.stem = nn.Conv2d(3, w, 5, 2, 2, bias=False)
        self.stem_norm = nn.BatchNorm2d(w)
        self.quarter = nn.Sequential(Residual(w, 2 * w, 2), Residual(2 * w, 2 * w))
        self.eighth = nn.Sequential(Residual(2 * w, 4 * w, 2), Residual(4 * w, 4 * w))
        self.sixteenth = nn.Sequential(Residual(4 * w, 8 * w, 2), Residual(8 * w, 8 * w))
        self.deepest = Residual(8 * w, 8 * w, 2)
        self.to_sixteenth = Joint(16 * w, 4 * w)
        self.to_eighth = Joint(8 * w, 2 * w)
        self.to_quarter = Joint(4 * w, 2 * w)
        self.head = nn.Conv2d(2 * w, 1, 3, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits at every fourth pixel; other sizes than multiples of the coarsest layer's are padded."""
        height, width = images.shape[2:]
        missing = (-height % COARSEST, -width % COARSEST)
        padded = F.pad(images, (0, missing[1], 0, missing[0]), mode="replicate") if any(missing) else images
        half = F.relu(self.stem_norm(self.stem(padded)))
        quarter = self.quarter(half)
        eighth = self.eighth(quarter)
        sixteenth = self.sixteenth(eighth)
        joined = self.to_sixteenth(self.deepest(sixteenth), sixteenth)
        joined = self.to_quarter(self.to_eighth(joined, eighth), quarter)
        logits: Tensor = self.head(joined)[:, 0]
        return logits[:, : -(-height // STEP), : -(-width // STEP)]


def build_critic(settings: CriticSettings, seed: int = 0) -> Critic:
    """A freshly initialised critic; its weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Critic(settings)


class TrainedCritic:
    """A critic that has learned, with what its images are normalised by."""

    def __init__(self, critic: Critic, normalization: Normalization) -> None:
        self.critic = critic.eval().requires_grad_(False)
        self.normalization = normalization
        self._quick = without_norms(self.critic)

    def to(self, device: torch.device) -> TrainedCritic:
        """The same on another device."""
        return TrainedCritic(self.critic.to(device), self.normalization.to(device))

    def __call__(self, pixels: Tensor) -> Tensor:
        """Maps (N, H, W) in 0 … 1 of pixels (N, 3, H, W) in 0 … 255, on the critic's device."""
        size = (int(pixels.shape[2]), int(pixels.shape[3]))
        return critic_map(self._quick(self.normalization(pixels)), size)

    def state(self) -> dict[str, Tensor]:
        """What a file must hold."""
        weights = {f"critic.{name}": value for name, value in self.critic.state_dict().items()}
        return {**weights, "mean": self.normalization.mean, "scale": self.normalization.scale}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], settings: CriticSettings) -> TrainedCritic:
        """The critic whose ``state`` it was."""
        critic = build_critic(settings)
        prefix = "critic."
        critic.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        return cls(critic, Normalization(tensors["mean"], tensors["scale"], CENTERING))


def without_norms(critic: Critic) -> Critic:
    """The same critic, trained, with its batch normalisations folded into the convolutions before them."""
    quick = copy.deepcopy(critic).eval()
    pairs: list[tuple[nn.Module, str, str]] = [(quick, "stem", "stem_norm")]
    for module in quick.modules():
        if isinstance(module, Residual):
            pairs += [(module, "first", "first_norm"), (module, "second", "second_norm")]
        elif isinstance(module, Joint):
            pairs.append((module, "mix", "norm"))
    for owner, convolution, norm in pairs:
        setattr(owner, convolution, fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm)))
        setattr(owner, norm, nn.Identity())
    return quick


def critic_normalization(pixels: Tensor) -> Normalization:
    """How a critic of good images (N, 3, H, W) in 0 … 255 normalises what it sees."""
    return Normalization.fit(pixels.cpu(), preset("encoder", centering=CENTERING, standardize=True))


def critic_map(logits: Tensor, size: tuple[int, int], smoothing: float = SMOOTHING) -> Tensor:
    """Probabilities (N, height, width) from logits, stretched to ``size`` and smoothed."""
    marked = torch.sigmoid(logits.float())[:, None]
    marked = F.interpolate(marked, size, mode="bilinear", align_corners=False)
    return gaussian(marked, smoothing * min(size) / 256)[:, 0]


def gaussian(maps: Tensor, sigma: float) -> Tensor:
    """Maps (N, 1, H, W) convolved with a Gaussian; beyond the edge they continue with their last value."""
    kernel = gaussian_kernel(sigma, (maps.shape[2], maps.shape[3]), maps)
    reach = len(kernel) // 2
    maps = F.pad(maps, (reach, reach, reach, reach), mode="replicate")
    maps = F.conv2d(maps, kernel.view(1, 1, -1, 1))
    return F.conv2d(maps, kernel.view(1, 1, 1, -1))


def gaussian_kernel(sigma: float, size: tuple[int, int], like: Tensor | None = None) -> Tensor:
    """Weights (2 · reach + 1,) that sum to 1, for maps of (height, width); of the dtype and device of ``like``."""
    reach = min(max(1, round(3 * sigma)), min(size) - 1)
    device, dtype = (like.device, like.dtype) if like is not None else (None, torch.float32)
    x = torch.arange(-reach, reach + 1, device=device, dtype=dtype)
    kernel = torch.exp(-0.5 * (x / sigma).square())
    return kernel / kernel.sum()
