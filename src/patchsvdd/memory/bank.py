"""The memory bank: embeddings of all patches of the good images, and the position of each patch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.progress import OnProgress
from patchsvdd.encoder.networks import PatchEncoder
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.memory.cell_search import CellSearch, cell_search_runs_on
from patchsvdd.memory.exact_search import ExactSearch, NeighborSearch, Span
from patchsvdd.memory.gpu_search import FusedSearch, fused_search_runs_on
from patchsvdd.memory.graph_search import MIN_GRAPH_ROWS, GraphSearch
from patchsvdd.memory.layered_search import LayeredSearch, SearchLayer


@dataclass(frozen=True)
class ScaleMemory:
    """The memory of one scale. Rows are grouped by image, in the order of the image names."""

    embeddings: Tensor
    """(M, D) float32."""
    origins: Tensor
    """(M, 3) int32: image index, top and left of the patch in pixels."""
    graph: GraphSearch | LayeredSearch | None = None
    """Index for fast approximate search on a CPU; without it every search is exact."""
    local_scale: Tensor | None = None
    """(M,) float32, above 0: unit for distances to each row (``local_scale.learn_local_scale``); None for 1."""

    def __post_init__(self) -> None:
        if len(self.embeddings) != len(self.origins):
            raise ValueError(f"{len(self.embeddings)} embeddings but {len(self.origins)} origins")
        if self.graph is not None and len(self.graph) != len(self.embeddings):
            raise ValueError(f"{len(self.embeddings)} embeddings but a graph of {len(self.graph)}")
        if self.local_scale is not None and len(self.local_scale) != len(self.embeddings):
            raise ValueError(f"{len(self.embeddings)} embeddings but local scales of {len(self.local_scale)}")

    @cached_property
    def search(self) -> NeighborSearch:
        """The search over the embeddings, on their device."""
        return self.graph if self.graph is not None else exact_search(self.embeddings)

    def nearest(
        self, queries: Tensor, without_image: int | None = None, shape: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """A^patch (Eq. 8): distance (Q,) from each query (Q, D) to the nearest normal patch, and its row (Q,).

        ``without_image`` excludes the patches of one image, for leave-one-out scores. ``shape``: rows and columns of
        patches per image, if the queries are whole images.
        """
        spans = None if without_image is None else self._rows_without(without_image)
        return self.search.nearest(queries, spans, shape)

    def find(
        self, queries: Tensor, without_image: int | None = None, shape: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Distance to the nearest normal patch, the same divided by its local scale, and its row, (Q,) each."""
        distances, rows = self.nearest(queries, without_image, shape)
        return distances, distances if self.local_scale is None else distances / self.local_scale[rows], rows

    def measure(
        self, queries: Tensor, without_image: int | None = None, shape: tuple[int, int] | None = None
    ) -> Tensor:
        """Distance (Q,) to the nearest normal patch, divided by that patch's local scale if there is one."""
        return self.find(queries, without_image, shape)[1]

    def origin(self, row: int) -> list[int]:
        """Image index, top and left of a row."""
        origin: list[int] = self.origins[row].tolist()
        return origin

    @cached_property
    def length(self) -> int:
        """Dimension of an embedding."""
        return int(self.embeddings.shape[1])

    @property
    def is_worth_a_graph(self) -> bool:
        """Whether a graph is faster here than comparing with every embedding."""
        return len(self.embeddings) >= MIN_GRAPH_ROWS and not self.embeddings.is_cuda

    @property
    def grid_shape(self) -> tuple[int, int] | None:
        """(rows, columns) of patches per image; None if some patches are missing."""
        first = self.origins[self.origins[:, 0] == self.origins[0, 0], 1:]
        shape = (_distinct(first[:, 0]), _distinct(first[:, 1]))
        count = shape[0] * shape[1]
        if count == 0 or len(first) != count or len(self.origins) % count:
            return None
        whole = self.origins.view(-1, count, 3)
        same_places = bool((whole[:, :, 1:] == whole[:1, :, 1:]).all())
        one_image_each = bool((whole[:, :, 0] == whole[:, :1, 0]).all())
        return shape if same_places and one_image_each and _distinct(whole[:, 0, 0]) == len(whole) else None

    def of_images(self, keep: Tensor) -> ScaleMemory:
        """Only the rows of the images in ``keep`` (N,) bool; without a graph."""
        return self.of_rows(keep[self._image_column].nonzero()[:, 0])

    def searched_for(self, keep: Tensor) -> ScaleMemory:
        """Like ``of_images``, but searched with this memory's graph, which is faster than building another one."""
        fewer = self.of_images(keep)
        if self.graph is None:
            return fewer
        kept = keep[self._image_column]
        rows = torch.where(kept, kept.cumsum(0) - 1, -1)
        return replace(fewer, graph=LayeredSearch([SearchLayer(self.graph, rows)]))

    def of_rows(self, rows: Tensor) -> ScaleMemory:
        """Only the given rows (R,) int64, which must be ascending; without a graph."""
        device_rows = rows.to(self.embeddings.device)
        local_scale = None if self.local_scale is None else self.local_scale[device_rows]
        return ScaleMemory(self.embeddings[device_rows], self.origins[rows.to(self.origins.device)], None, local_scale)

    def with_graph(self, on_progress: OnProgress | None = None) -> ScaleMemory:
        """The same memory with a graph index."""
        graph = GraphSearch.build(self.embeddings, self.grid_shape, on_progress)
        return replace(self, graph=graph)

    def without_graph(self) -> ScaleMemory:
        """The same memory with exact search."""
        return replace(self, graph=None)

    def with_local_scale(self, local_scale: Tensor) -> ScaleMemory:
        """The same memory, which divides distances by each row's local scale (M,)."""
        measured = replace(self, local_scale=local_scale)
        if "search" in vars(self):
            vars(measured)["search"] = self.search  # unchanged, and slow to build
        return measured

    def _rows_without(self, image: int) -> list[Span]:
        start, stop = torch.searchsorted(self._image_column, torch.tensor([image, image + 1])).tolist()
        return [(0, start), (stop, len(self.embeddings))]

    @cached_property
    def _image_column(self) -> Tensor:
        return self.origins[:, 0].cpu().contiguous().long()

    def to(self, device: torch.device) -> ScaleMemory:
        """The same memory on another device, without the graph, which is useless on a GPU."""
        if self.embeddings.device == device:
            return self
        local_scale = None if self.local_scale is None else self.local_scale.to(device)
        return ScaleMemory(self.embeddings.to(device), self.origins, None, local_scale)


@dataclass(frozen=True)
class Memory:
    """One ScaleMemory per patch size, over the same images."""

    image_names: tuple[str, ...]
    scales: dict[int, ScaleMemory]

    def to(self, device: torch.device) -> Memory:
        """The same memory on another device."""
        return Memory(self.image_names, {size: scale.to(device) for size, scale in self.scales.items()})

    def of_images(self, keep: Tensor) -> Memory:
        """Only the patches of the images in ``keep`` (N,) bool; image indices do not change."""
        return Memory(self.image_names, {size: scale.of_images(keep) for size, scale in self.scales.items()})

    def searched_for(self, keep: Tensor) -> Memory:
        """Like ``of_images``, but searched with the graphs of this memory."""
        return Memory(self.image_names, {size: scale.searched_for(keep) for size, scale in self.scales.items()})

    def state(self) -> dict[str, Tensor]:
        """Tensors for the model file, without graphs."""
        tensors = {}
        for size, scale in self.scales.items():
            tensors[f"{size}.embeddings"] = scale.embeddings
            tensors[f"{size}.origins"] = scale.origins
            if scale.local_scale is not None:
                tensors[f"{size}.reach"] = scale.local_scale
        return tensors

    def with_graphs(self, on_progress: OnProgress | None = None) -> Memory:
        """The same memory with a graph for each scale that is large enough."""
        large = [scale for scale in self.scales.values() if scale.is_worth_a_graph and scale.graph is None]
        total, before = sum(len(scale.embeddings) for scale in large), 0
        scales = dict(self.scales)
        for size, scale in self.scales.items():
            if not any(scale is other for other in large):
                continue

            def on_scale(done: int, _: int, start: int = before) -> None:
                if on_progress is not None:
                    on_progress(start + done, total)

            scales[size] = scale.with_graph(on_scale)
            before += len(scale.embeddings)
        return Memory(self.image_names, scales)

    def without_graphs(self) -> Memory:
        """The same memory with exact search."""
        return Memory(self.image_names, {size: scale.without_graph() for size, scale in self.scales.items()})


def build_memory(
    encoder: PatchEncoder,
    images: Sequence[Tensor] | Tensor,
    image_names: Sequence[str],
    grids: Sequence[PatchGrid],
    on_progress: OnProgress | None = None,
) -> Memory:
    """Embed every patch on the grids of normalised images (N, 3, H, W), on their device."""
    return fill_memory((embed_image(encoder, image, grids) for image in images), image_names, grids, on_progress)


def embed_image(encoder: PatchEncoder, image: Tensor, grids: Sequence[PatchGrid]) -> list[Tensor]:
    """Embeddings (P, D) of every patch on each grid of one normalised image (3, H, W)."""
    with torch.inference_mode():
        return [rows[0] for rows in encoder.embed(image[None], grids)]


def fill_memory(
    embedded: Iterable[Sequence[Tensor]],
    image_names: Sequence[str],
    grids: Sequence[PatchGrid],
    on_progress: OnProgress | None = None,
) -> Memory:
    """Build the memory from embeddings (P, D) on each grid that arrive image by image."""
    sizes = [grid.scale.patch_size for grid in grids]
    counts = [grid.count for grid in grids]
    buffers: list[Tensor] = []
    for index, rows in enumerate(embedded):
        if not buffers:  # the first image gives the embedding dimension
            buffers = [
                torch.empty((len(image_names) * count, embedded_rows.shape[1]), device=embedded_rows.device)
                for count, embedded_rows in zip(counts, rows, strict=True)
            ]
        for buffer, count, embedded_rows in zip(buffers, counts, rows, strict=True):
            buffer[index * count : (index + 1) * count] = embedded_rows
        if on_progress is not None:
            on_progress(index + 1, len(image_names))
    origins = [_origins(grid, len(image_names)) for grid in grids]
    scales = {k: ScaleMemory(buffer, origin) for k, buffer, origin in zip(sizes, buffers, origins, strict=True)}
    return Memory(tuple(image_names), scales)


def _distinct(values: Tensor) -> int:
    return len(set(values.tolist()))


def _origins(grid: PatchGrid, image_count: int) -> Tensor:
    """(N · P, 3) int32: image, top, left."""
    corners = grid.pick(torch.cartesian_prod(torch.tensor(grid.rows), torch.tensor(grid.columns))[None])[0]
    images = torch.arange(image_count).repeat_interleave(len(corners))
    return torch.cat((images[:, None], corners.repeat(image_count, 1)), dim=1).int()


def memory_bytes(config: Config, image_size: tuple[int, int], image_count: int) -> int:
    """Size in bytes of the memory of ``image_count`` images, on disk and in RAM."""
    total = 0
    for scale in config.scales:
        patches = PatchGrid(image_size, scale, alignment=2, area=config.area(image_size)).count
        length = 3 * scale.patch_size**2 if config.encoder == "raw" else config.embedding_dim
        total += image_count * patches * 4 * (length + 3 + config.local_scaling)
    return total


def exact_search(vectors: Tensor) -> NeighborSearch:
    """The fastest exact search for these vectors on their device."""
    if fused_search_runs_on(vectors):
        return FusedSearch(vectors)
    return CellSearch(vectors) if cell_search_runs_on(vectors) else ExactSearch(vectors)
