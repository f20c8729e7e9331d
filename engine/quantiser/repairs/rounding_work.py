"""How much rounding of weights fits a limit of work, by the sizes of a model alone.

The work is counted before it is done, so that a busy machine rounds the same products as a quiet
one. `rounding` asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trireme.cost.work import work_of
from trireme.ir.graph import Graph, Node
from trireme.quantiser.repairs.products import groups_of, weights
from trireme.quantiser.statistics import nodes_for

_MOST_BYTES = 256 << 20
"""The bytes of the Gram matrices that are summed in one pass over the samples."""
_LEAST_ROWS = 2048
_ROWS_A_COLUMN = 2
"""As many positions of all samples enter a Gram matrix: twice its size, 2048 at least."""
_FACTOR_FLOPS = 4 + 2 / 3
"""Operations a cube of the depth, to invert a Gram matrix and to factor the inverse."""
_ROW_FLOPS = 5
"""Operations a row and square of the depth: one to round a row, four to compare two errors."""


def planned(
    graph: Graph, nodes: Sequence[Node], samples: int, most_flops: float
) -> Iterator[tuple[list[Node], list[float]]]:
    """Yield the products to round in one pass over the samples, and the work of each.

    The pass itself counts for its first product. Products beyond the limit are left out.
    """
    left = most_flops
    for batch in _batches(graph, nodes):
        costs = [_product_flops(graph, node, samples) for node in batch]
        costs[0] += samples * _pass_flops(graph, batch)
        kept: list[float] = []
        for cost in costs:
            if cost > left:
                break
            left -= cost
            kept.append(cost)
        if kept:
            yield batch[: len(kept)], kept
        if len(kept) < len(batch):
            return


def depth_of(graph: Graph, node: Node) -> int:
    """Return how many weights a row of a product has."""
    return int(weights(graph, node)[0].size)


def rows_a_sample(depth: int, samples: int) -> int:
    """Return how many positions of one sample enter a Gram matrix."""
    return -(-max(_LEAST_ROWS, _ROWS_A_COLUMN * depth) // samples)


def _batches(graph: Graph, nodes: Sequence[Node]) -> Iterator[list[Node]]:
    batch: list[Node] = []
    size = 0
    for node in nodes:
        nbytes = 4 * groups_of(node) * depth_of(graph, node) ** 2
        if batch and size + nbytes > _MOST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(node)
        size += nbytes
    if batch:
        yield batch


def _pass_flops(graph: Graph, batch: Sequence[Node]) -> int:
    """Return the work of running one sample up to what the products read."""
    needed = nodes_for(graph, [node.used[0] for node in batch])
    return sum(work_of(graph, node).flops for node in graph.nodes if node.id in needed)


def _product_flops(graph: Graph, node: Node, samples: int) -> float:
    """Return the work of the Gram matrix of a product, its factor and its rows."""
    depth, groups = depth_of(graph, node), groups_of(node)
    made = graph.type(node.outputs[0])
    positions = made.elements // weights(graph, node).shape[0]
    gram = 2 * samples * min(positions, rows_a_sample(depth, samples)) * groups * depth**2
    factor = _FACTOR_FLOPS * groups * depth**3
    rows = _ROW_FLOPS * weights(graph, node).shape[0] * depth**2
    return float(gram + factor + rows)
