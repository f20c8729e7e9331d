"""Find every op that cannot be converted before converting any, and list them all at once."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from trireme.converters.torch.source import line_of, module_of, op_of
from trireme.converters.torch.table import ATEN, SCALARS
from trireme.support.errors import ConvertError

CONTROL = ("cond", "while_loop", "scan")
"""Ops of torch whose arguments are graphs."""
_SHOWN = 3


def refuse_unsupported(module: Any) -> None:
    """Raise one ConvertError that lists every unsupported op with its count and first lines."""
    missing: dict[str, list[str]] = {}
    for node in _every(module):
        if not has_rule(node):
            where = line_of(node) or module_of(node) or node.name
            missing.setdefault(op_of(node), []).append(where)
    if not missing:
        return
    facts = []
    for op, places in sorted(missing.items()):
        lines = list(dict.fromkeys(places))
        more = f" and {len(lines) - _SHOWN} more lines" if len(lines) > _SHOWN else ""
        facts.append(f"{op}: {len(places)} x ({', '.join(lines[:_SHOWN])}{more})")
    count = f"{len(missing)} ops are" if len(missing) > 1 else "1 op is"
    raise ConvertError(f"{count} not supported", facts=facts)


def _every(module: Any) -> Iterator[Any]:
    """Yield the nodes that matter, those of bodies included."""
    for node in needed(module.graph):
        if node.op == "get_attr":
            body = getattr(module, node.target, None)
            if isinstance(body, torch.fx.GraphModule):
                yield from _every(body)
        elif node.op == "call_function":
            yield node


def needed(graph: Any) -> list[Any]:
    """Return the nodes that outputs depend on, in order; checks are left out."""
    wanted: set[Any] = set()
    kept: list[Any] = []
    for node in reversed(graph.nodes):
        if node.op in ("output", "placeholder") or node in wanted:
            wanted.update(node.all_input_nodes)
            kept.append(node)
    return kept[::-1]


def has_rule(node: Any) -> bool:
    """Whether a rule converts a node that calls a function."""
    if control_of(node):
        return True
    return node.target is operator.getitem or op_of(node) in ATEN or op_of(node) in SCALARS


def control_of(node: Any) -> str:
    """Return the name of an op whose arguments are graphs; empty for all others."""
    is_higher = isinstance(node.target, torch._ops.HigherOrderOperator)
    return node.target.name() if is_higher and node.target.name() in CONTROL else ""
