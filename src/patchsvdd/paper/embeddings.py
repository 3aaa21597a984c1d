"""Fig. 8, 10 and 11: what the embeddings of training images look like under the three losses."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.config import Config
from patchsvdd.detector import load_good_images
from patchsvdd.device import reproducible
from patchsvdd.encoder import grids_for
from patchsvdd.errors import ConfigError, TrainingCollapsed
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.memory import rows_of
from patchsvdd.normalization import Normalization
from patchsvdd.output.article import FigureBlock, Section, TableBlock, Verdict
from patchsvdd.output.figures import bar_chart, embedding_scatter
from patchsvdd.paper.study import ItemReport, Study, figure

LOSSES = {"L_SVDD": "svdd", "L_SVDD′": "svdd-prime", "L_SVDD′ + L_SSL": "patch-svdd"}
POINTS = 2000
"""Embeddings in a t-SNE picture."""
DIMENSION_POINTS = 5000
"""Embeddings an intrinsic dimension is estimated from."""


@dataclass(frozen=True)
class EmbeddingSample:
    """Embeddings of every patch of training images, and where in its image each patch lies."""

    embeddings: dict[int, NDArray[np.float32]]
    """Patch size → (N, D)."""
    centers: dict[int, NDArray[np.float64]]
    """Patch size → (N, 2): row and column of the patch's centre from the image's centre, 1 at the corners."""
    picture: NDArray[np.uint8]
    """(H, W, 3): one of the images."""

    @property
    def of_largest(self) -> NDArray[np.float32]:
        """The embeddings of the largest patches."""
        return self.embeddings[max(self.embeddings)]


def sample_embeddings(study: Study, category: Path, config: Config, images: int | None = None) -> EmbeddingSample:
    """The embeddings of the first ``images`` training images (all if None) under the trained encoder."""
    loaded = load_good_images(category, config)
    encoder, _ = study.store.encoder(Experiment(category, config), loaded)
    encoder = encoder.eval().requires_grad_(False)
    normalization = Normalization.fit(loaded.pixels, config)
    grids = grids_for(encoder, config, loaded.size)
    count = len(loaded) if images is None else min(images, len(loaded))
    parts: dict[int, list[torch.Tensor]] = {grid.scale.patch_size: [] for grid in grids}
    for pixels in loaded.pixels[:count]:
        with torch.inference_mode(), reproducible():
            maps = encoder.dense(normalization(pixels[None]).to(study.store.device), grids)
        for grid, one in zip(grids, maps, strict=True):
            parts[grid.scale.patch_size].append(rows_of(one)[0].cpu())
    centers = {}
    half = np.array(loaded.size) / 2
    for grid in grids:
        corner = np.stack(np.meshgrid(grid.rows, grid.columns, indexing="ij"), axis=-1).reshape(-1, 2)
        offset = corner + grid.scale.patch_size / 2 - half
        centers[grid.scale.patch_size] = np.tile(offset / np.hypot(*half), (count, 1))
    picture = loaded.pixels[0].permute(1, 2, 0).clamp(0, 255).to(torch.uint8).numpy()
    return EmbeddingSample({size: torch.cat(one).numpy() for size, one in parts.items()}, centers, picture)


def intrinsic_dimension(embeddings: NDArray[np.float32], points: int = DIMENSION_POINTS) -> float | None:
    """TwoNN (Facco et al. 2017) of at most ``points`` of the embeddings (N, D); None if they are too few or one point.

    The estimator behind the paper's Fig. 11 and 15: it reads the dimension off the ratio of the distances to the two
    nearest neighbours.
    """
    try:
        from skdim.id import TwoNN
    except ImportError:
        raise ConfigError("intrinsic dimensions need scikit-dimension: pip install 'patchsvdd[paper]'") from None
    distinct = np.unique(embeddings.astype(np.float64), axis=0)
    if len(distinct) < 20:
        return None
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(distinct), min(points, len(distinct)), replace=False)
    return float(TwoNN().fit(distinct[chosen]).dimension_)


def run_intrinsic_dimension(study: Study) -> ItemReport:
    """The intrinsic dimension of the embeddings under the three losses, for every category."""
    data: dict[str, Any] = {}
    for category in study.categories:
        data[category.name] = {}
        for name, objective in LOSSES.items():
            try:
                sample = sample_embeddings(study, category, study.config.replace(objective=objective))
            except TrainingCollapsed:
                continue
            found = {str(size): intrinsic_dimension(one) for size, one in sample.embeddings.items()}
            data[category.name][name] = found
    sizes = [str(scale.patch_size) for scale in study.config.scales]
    means = {
        size: {name: _mean([row.get(name, {}).get(size) for row in data.values()]) for name in LOSSES} for size in sizes
    }
    columns = ["category", *(f"{name}, {size} px" for size in sizes for name in LOSSES)]
    rows = [[c, *(_show(row.get(n, {}).get(s)) for s in sizes for n in LOSSES)] for c, row in data.items()]
    rows.append(["mean", *(_show(means[size][name]) for size in sizes for name in LOSSES)])
    section = Section(
        title="Intrinsic dimension by loss",
        lead=f"Fig. 11. TwoNN over {DIMENSION_POINTS:,} embeddings of training patches. The paper finds the lowest "
        "dimension with L_SSL: embeddings lie neatly on low-dimensional manifolds.",
        verdicts=_verdicts(means),
        blocks=[TableBlock("Intrinsic dimension", columns, rows), *_dimension_chart(study, data, sizes[-1])],
        anchor="intrinsic-dimension",
    )
    return ItemReport("intrinsic-dimension", {"categories": data, "means": means, "estimator": "TwoNN"}, section)


def _verdicts(means: dict[str, dict[str, float | None]]) -> list[Verdict]:
    verdicts = []
    for size, row in means.items():
        known = {name: value for name, value in row.items() if value is not None}
        if len(known) == len(LOSSES):
            lowest = min(known, key=lambda name: known[name])
            words = ", ".join(f"{name} {value:.1f}" for name, value in known.items())
            verdicts.append(Verdict(lowest == list(LOSSES)[-1], f"{size} px: {words}; the lowest is {lowest}."))
    return verdicts


def _dimension_chart(study: Study, data: dict[str, Any], size: str) -> list[FigureBlock]:
    path = bar_chart(
        study.out / "intrinsic-dimension" / "dimension.svg",
        list(data),
        {name: [row.get(name, {}).get(size) for row in data.values()] for name in LOSSES},
        ylabel=f"intrinsic dimension of {size}-px embeddings",
    )
    caption = "Intrinsic dimension of the embeddings under three losses (Fig. 11)."
    return [figure(study, path, caption, caption)]


def run_tsne(study: Study) -> ItemReport:
    """t-SNE of the embeddings of training images for the three losses: one object, one texture."""
    blocks = []
    data: dict[str, Any] = {}
    for category in study.one_of_each_kind():
        panels: dict[str, NDArray[np.float64]] = {}
        theta = radius = np.zeros(0)
        picture = None
        for name, objective in LOSSES.items():
            try:
                sample = sample_embeddings(study, category, study.config.replace(objective=objective), images=12)
            except TrainingCollapsed:
                continue
            size = max(sample.embeddings)
            rng = np.random.default_rng(0)
            count = len(sample.of_largest)
            chosen = np.sort(rng.choice(count, min(POINTS, count), replace=False))
            panels[name] = _tsne(sample.of_largest[chosen], study.config.seed)
            row, column = sample.centers[size][chosen].T
            theta, radius, picture = np.arctan2(row, column), np.hypot(row, column), sample.picture
            data.setdefault(category.name, {})[name] = {
                "points": len(chosen),
                "patch_size": size,
                "neighbours_share_position": _share_position(panels[name], row, column),
            }
        path = study.out / "tsne" / f"{category.name}.png"
        embedding_scatter(path, panels, theta, radius, title=category.name, legend_picture=picture)
        caption = (
            f"{category.name}: t-SNE of embeddings of training patches under three losses; colour and size say where "
            f"in the image a patch lies (Fig. 8 and 10)."
        )
        blocks.append(figure(study, path, caption, f"t-SNE of embeddings of {category.name}"))
    columns = ["category", *LOSSES]
    rows = [
        [name, *(_show(row.get(loss, {}).get("neighbours_share_position")) for loss in LOSSES)]
        for name, row in data.items()
    ]
    caption = "Distance in the image of nearest neighbours in the picture, ÷ that of any two (0: same place, 1: chance)"
    section = Section(
        title="Embeddings by position",
        lead="Fig. 8 and 10. In an object, patches of one position look alike in every image, so with L_SSL points of "
        "one colour and size gather; in a texture position means little.",
        verdicts=_tsne_verdicts(data),
        blocks=[TableBlock(caption, columns, rows), *blocks],
        anchor="tsne",
    )
    return ItemReport("tsne", {"categories": data}, section)


def _tsne(embeddings: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """(N, 2) of embeddings (N, D)."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise ConfigError("t-SNE needs scikit-learn: pip install 'patchsvdd[paper]'") from None
    centered = embeddings.astype(np.float64) - embeddings.mean(0)
    scaled = centered / (centered.std() or 1.0)  # collapsed embeddings differ by less than t-SNE's tolerance
    found: NDArray[np.float64] = TSNE(perplexity=30, init="pca", random_state=seed).fit_transform(scaled)
    return found


def _share_position(points: NDArray[np.float64], row: NDArray[np.float64], column: NDArray[np.float64]) -> float:
    """Mean distance in the image between each point and its nearest in the picture, ÷ that between any two points."""
    from sklearn.neighbors import NearestNeighbors

    nearest = NearestNeighbors(n_neighbors=2).fit(points).kneighbors(points, return_distance=False)[:, 1]
    place = np.stack((row, column), axis=1)
    shuffled = np.random.default_rng(0).permutation(len(place))
    near = np.linalg.norm(place - place[nearest], axis=1).mean()
    return float(near / np.linalg.norm(place - place[shuffled], axis=1).mean())


def _tsne_verdicts(data: dict[str, Any]) -> list[Verdict]:
    verdicts = []
    for name, row in data.items():
        values = {loss: entry["neighbours_share_position"] for loss, entry in row.items()}
        if len(values) == len(LOSSES):
            lowest = min(values, key=lambda loss: values[loss])
            words = ", ".join(f"{loss} {value:.2f}" for loss, value in values.items())
            verdicts.append(Verdict(lowest == list(LOSSES)[-1], f"{name}: {words}; most by position: {lowest}."))
    return verdicts


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
