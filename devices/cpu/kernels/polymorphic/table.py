"""The table of polymorphic kernels, filled: import this, not step.py, to look ops up."""

from trireme.devices.cpu.kernels.lowering import TABLE, Reason
from trireme.devices.cpu.kernels.polymorphic import (
    elementwise,
    items,
    stored,
    triangles,
)
from trireme.devices.cpu.kernels.polymorphic.step import POLYMORPHIC, PolymorphicRule
from trireme.ir.graph import Graph, Node

__all__ = [
    "POLYMORPHIC",
    "elementwise",
    "items",
    "rule_for",
    "stored",
    "triangles",
]


def _both(reason: Reason, open_reason: Reason) -> Reason:
    return lambda graph, node: reason(graph, node) or open_reason(graph, node)


def rule_for(graph: Graph, node: Node) -> PolymorphicRule | str:
    """Return the rule that lowers a node of a sample for every shape, or why there is none."""
    fixed = TABLE.find(graph, node)
    rule = POLYMORPHIC.find(graph, node)
    if fixed is not None and fixed.open_reason is not None:
        both = _both(fixed.reason, fixed.open_reason)
        rule = PolymorphicRule(fixed.open_reason if fixed.open_alone else both, fixed.lower)
    why = "" if rule is None else rule.reason(graph, node)
    if rule is not None and why is None:
        return rule
    batch = items.EACH_ITEM.reason(graph, node)
    return items.EACH_ITEM if batch is None else why or batch
