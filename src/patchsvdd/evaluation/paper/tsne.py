"""Fig. 8 and 10: t-SNE of the embeddings of training patches, by position in the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.core.config import Config
from patchsvdd.core.extras import require
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.paper.embeddings import LOSSES, EmbeddingSample, remember, sample_embeddings
from patchsvdd.evaluation.paper.study import ItemReport, Study, figure
from patchsvdd.images.loading import load_good_images
from patchsvdd.report.article import FigureBlock, Section, TableBlock, Verdict
from patchsvdd.report.figures import embedding_scatter

POINTS = 2000
"""Embeddings per scatter plot."""
IMAGES = 12
PROPOSED = list(LOSSES)[-1]


def run_tsne(study: Study) -> ItemReport:
    """t-SNE of the embeddings of training images for the three losses: one object, one texture."""
    data: dict[str, dict[str, float | None]] = {}
    blocks = []
    for category in study.one_of_each_kind():
        data[category.name], block = _scatter_plot(study, category)
        blocks.append(block)
    rows = [
        [name, *("collapsed" if value is None else f"{value:.2f}" for value in row.values())]
        for name, row in data.items()
    ]
    caption = "Distance in the image of neighbours in t-SNE, ÷ that of random pairs (0: same position, 1: chance)"
    section = Section(
        title="Embeddings by position",
        lead="Fig. 8 and 10. In an object, patches of one position look alike in every image, so with L_SSL points of "
        "the same colour and size form clusters; in a texture, position means little.",
        verdicts=[_verdict(name, row) for name, row in data.items()],
        blocks=[TableBlock(caption, ["category", *LOSSES], rows), *blocks],
        anchor="tsne",
    )
    return ItemReport("tsne", {"neighbour_distance": data, "points": POINTS, "images": IMAGES}, section)


def _scatter_plot(study: Study, category: Path) -> tuple[dict[str, float | None], FigureBlock]:
    """The distance in the image of neighbours in the plot, for each loss; and the plot."""
    panels: dict[str, NDArray[np.float64]] = {}
    distances: dict[str, float | None] = {}
    position = np.zeros((1, 2))
    for name, objective in LOSSES.items():
        plot = _plot(study, category, study.with_loss(objective))
        if plot is None:
            distances[name] = None
        else:
            panels[name], position = np.array(plot["points"]), np.array(plot["positions"])
            distances[name] = _neighbour_distance(panels[name], position)
    point = np.zeros((len(position), 2))  # what a collapsed encoder makes of all patches
    titled = {name if name in panels else f"{name} (collapsed)": panels.get(name, point) for name in LOSSES}
    path = study.out / "tsne" / f"{category.name}.png"
    theta, radius = np.arctan2(position[:, 0], position[:, 1]), np.hypot(position[:, 0], position[:, 1])
    images = load_good_images(category, Experiment(category, study.config).sized().config)
    image = images.pixels[0].permute(1, 2, 0).clamp(0, 255).to(torch.uint8).numpy()
    embedding_scatter(path, titled, theta, radius, title=category.name, legend_image=image)
    caption = (
        f"{category.name}: t-SNE of embeddings of training patches under three losses; colour and size show the "
        f"position of a patch in the image (Fig. 8 and 10)."
    )
    return distances, figure(study, path, caption, f"t-SNE of embeddings of {category.name}")


def _plot(study: Study, category: Path, config: Config) -> dict[str, list[list[float]]] | None:
    """Points in the plot and positions in the image of the patches; None for a collapsed encoder. Computed once."""

    def draw() -> dict[str, list[list[float]]] | None:
        sample = sample_embeddings(study, category, config, IMAGES)
        if sample.is_collapsed:
            return None
        chosen, position = _choose(sample)
        points = _tsne(sample.of_largest[chosen], study.config.seed)
        return {"points": np.round(points, 3).tolist(), "positions": np.round(position, 4).tolist()}

    found: dict[str, list[list[float]]] | None = remember(study, category, config, f"tsne-{IMAGES}-{POINTS}", draw)
    return found


def _choose(sample: EmbeddingSample) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices of the embeddings of the largest patches to draw, the same for every loss, and their positions (N, 2)."""
    count = len(sample.of_largest)
    chosen = np.sort(np.random.default_rng(0).choice(count, min(POINTS, count), replace=False))
    return chosen, sample.centers[max(sample.centers)][chosen]


def _tsne(embeddings: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """t-SNE coordinates (N, 2) of embeddings (N, D)."""
    TSNE = require("sklearn.manifold", "paper", "t-SNE").TSNE  # noqa: N806
    centered = embeddings.astype(np.float64) - embeddings.mean(0)
    scaled = centered / centered.std()  # embeddings near collapse differ by less than t-SNE's tolerance
    perplexity = min(30, (len(scaled) - 1) / 3)
    points: NDArray[np.float64] = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(scaled)
    return points


def _neighbour_distance(points: NDArray[np.float64], position: NDArray[np.float64]) -> float:
    """Mean distance in the image between each point and its nearest neighbour in the plot, ÷ that of random pairs."""
    from sklearn.neighbors import NearestNeighbors

    nearest = NearestNeighbors(n_neighbors=2).fit(points).kneighbors(points, return_distance=False)[:, 1]
    shuffled = np.random.default_rng(0).permutation(len(position))
    near = np.linalg.norm(position - position[nearest], axis=1).mean()
    return float(near / np.linalg.norm(position - position[shuffled], axis=1).mean())


def _verdict(category: str, row: dict[str, float | None]) -> Verdict:
    words = ", ".join(f"{name} {'collapsed' if value is None else f'{value:.2f}'}" for name, value in row.items())
    known: dict[str, Any] = {name: value for name, value in row.items() if value is not None}
    if PROPOSED not in known or len(known) < 2:
        return Verdict(None, f"{category}: {words}; there is nothing to compare.")
    lowest = min(known, key=lambda name: known[name])
    return Verdict(lowest == PROPOSED, f"{category}: {words}; most ordered by position: {lowest}.")
