"""Schemes that need no samples: the weights of nodes become smaller, and values stay float."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trireme.ir.graph import Graph, Node, node_names
from trireme.ir.quantization.report import FloatNode, WeightReport
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.verify import check
from trireme.passes.pipeline import optimise
from trireme.quantiser.float_rules import dynamic_product, dynamic_rows, half
from trireme.quantiser.prepare import FLOAT_ONLY
from trireme.quantiser.scheme import FLOAT16, GROUPS, WeightForm, WeightScheme
from trireme.quantiser.select import named_nodes
from trireme.quantiser.weight_rules import Rewriting, Stored, gather_blocks, matmul_blocks
from trireme.support.errors import GraphError

Rule = Callable[[Rewriting], tuple[int, Stored]]
RULES: Mapping[WeightForm, Mapping[str, Rule]] = {
    "blocks": {"fully_connected": matmul_blocks, "gather": gather_blocks},
    "float16": dict.fromkeys(FLOAT16.ops, half),
    "dynamic": {
        "conv": dynamic_product,
        "fully_connected": dynamic_product,
        "gather": dynamic_rows,
    },
}
"""The rule of each op, by form."""
_MOST_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class SmallerWeights:
    """A graph whose weights are smaller, and what was done to each node with weights."""

    graph: Graph
    weights: tuple[WeightReport, ...]
    floats: tuple[FloatNode, ...]


def prepare_weights(graph: Graph) -> Graph:
    """Return the float graph folded; open shapes, bodies and states stay."""
    return optimise(graph, disable=FLOAT_ONLY)


def smaller_weights(
    graph: Graph, scheme: WeightScheme, group: int | None, keep_float: Collection[str]
) -> SmallerWeights:
    """Return a graph with the weights of a scheme, those of bodies too.

    group: weights that share a scale; None takes the scheme's
    Errors: GraphError, if the group is none of the scheme's, or the scheme takes no node
    """
    work = _WeightRewrite(scheme, _group(scheme, group), [], [])
    made = work.rewrite(graph, named_nodes(graph, keep_float))
    if not work.weights:
        reasons = dict.fromkeys(one.reason for one in work.floats)
        raise GraphError(
            f"no node of {graph.name!r} has weights that {scheme.name} takes",
            facts=list(reasons) or [f"{scheme.name} takes {', '.join(sorted(scheme.ops))}"],
        )
    return SmallerWeights(made, tuple(work.weights), tuple(work.floats))


def _group(scheme: WeightScheme, group: int | None) -> int:
    if group is not None and scheme.group is None:
        raise GraphError(f"{scheme.name} has no groups, and group is {group}")
    if group is not None and group not in GROUPS:
        known = ", ".join(map(str, GROUPS))
        raise GraphError(f"group is {group}", facts=[f"groups: {known}"])
    return group or scheme.group or 0


@dataclass(frozen=True)
class _WeightRewrite:
    scheme: WeightScheme
    group: int
    weights: list[WeightReport]
    floats: list[FloatNode]

    def rewrite(self, graph: Graph, kept: Collection[int]) -> Graph:
        """Return a graph rewritten, its bodies first."""
        graph = replace(graph, nodes=tuple(self._with_bodies(node) for node in graph.nodes))
        names, rewriter = node_names(graph), GraphRewriter(graph)

        def rule(g: GraphRewriter, node: Node) -> tuple[int, ...] | None:
            why = "it was asked to stay float" if node.id in kept else self._reason(g, node)
            if why:
                self.floats.append(FloatNode(names[node.id], node.op, why))
                return None
            use = Rewriting(g, node, self.scheme, self.group)
            value, stored = RULES[self.scheme.form][node.op](use)
            self.weights.append(
                WeightReport(
                    names[node.id],
                    node.op,
                    stored.form,
                    stored.nbytes,
                    use.weights.nbytes,
                    stored.snr_db,
                )
            )
            return (value,)

        rewriter.walk({op: [rule] for op in self.scheme.ops})
        return check(rewriter.finish())

    def _with_bodies(self, node: Node) -> Node:
        bodies: Mapping[str, Graph] = {
            key: self.rewrite(value, ())
            for key, value in node.attrs.items()
            if isinstance(value, Graph)
        }
        return replace(node, attrs={**node.attrs, **bodies}) if bodies else node

    def _reason(self, g: GraphRewriter, node: Node) -> str:
        """Return why the weights of a node stay as they are; nothing where they may change."""
        data = g.data(node.used[self.scheme.ops[node.op]])
        if data is None:
            return "its weights are no constant"
        if g.is_quantized(node):
            return "it is quantised already"
        if data.dtype != np.float32:
            return "its weights are no float32"
        if not np.isfinite(data).all():
            return "its weights are not all finite"
        if self.scheme.form == "float16":
            large = np.abs(data).max(initial=0.0) > _MOST_HALF
            return f"its weights exceed {_MOST_HALF:.0f}, the most of float16" if large else ""
        if node.op == "gather" and _is_no_table(node, data.ndim):
            return "it gathers no rows of a matrix"
        if node.op == "conv":
            return _conv_reason(g, node)
        if self.group and data.shape[-1] < self.group:
            return f"its depth of {data.shape[-1]} is less than a group of {self.group}"
        if self.group and node.op == "gather" and data.shape[-1] % self.group:
            return f"its rows of {data.shape[-1]} are no whole number of groups of {self.group}"
        return ""


def _is_no_table(node: Node, rank: int) -> bool:
    return rank != 2 or node.attrs["axis"] % rank != 0 or bool(node.attrs["batch_dims"])


def _conv_reason(g: GraphRewriter, node: Node) -> str:
    """Return why a conv has no kernel on levels of 8 bits; nothing where it has one."""
    x, groups = g.type(node.used[0]).shape, node.attrs["groups"]
    if len(x) != 4 or node.attrs["layout"] != "NHWC":
        return "its input is no image in NHWC"
    if groups not in (1, x[3]):
        return "it has groups of several channels"
    return ""
