"""Find every op that cannot be converted before converting any, and list them all at once."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from trireme.converters.torch.source import line_of, module_of, op_of
from trireme.converters.torch.table import ATEN, ATEN_COMPLEX, SCALARS
from trireme.converters.torch.use import is_complex
from trireme.support.errors import ConvertError

CONTROL = ("cond", "while_loop", "scan")
"""Ops of torch whose arguments are graphs."""
_SHOWN = 3
_COMPLEX = "it has no rule for complex numbers"
_FACTORS = "no op factors a matrix"
_RANDOM = "it draws random numbers, which torch and trireme draw differently"
_WHY = {
    "_linalg_eigh": _FACTORS,
    "_linalg_svd": _FACTORS,
    "bernoulli": _RANDOM,
    "embedding_renorm": "it changes its weight in a run; scale the weight once, without max_norm",
    "fractional_max_pool2d": _RANDOM,
    "fractional_max_pool3d": _RANDOM,
    "linalg_lu": _FACTORS,
    "linalg_qr": _FACTORS,
    "mode": "no op counts equal elements along an axis",
    "multinomial": _RANDOM,
    "rand": _RANDOM,
    "randn": _RANDOM,
    "randperm": _RANDOM,
}
"""Why ops of torch have no rule, by name: those that layers and models use."""


def refuse_unsupported(module: Any) -> None:
    """Raise one ConvertError that lists every unsupported op with its count and first lines."""
    missing: dict[str, list[str]] = {}
    whys = dict[str, str]()
    for node in _every(module):
        if not has_rule(node):
            where = line_of(node) or module_of(node) or node.name
            op = op_of(node)
            missing.setdefault(op, []).append(where)
            name = op.split(".")[1] if "." in op else ""
            whys[op] = _WHY.get(name, _COMPLEX if on_complex(node) else "")
    if not missing:
        return
    facts = []
    for op, places in sorted(missing.items()):
        lines = list(dict.fromkeys(places))
        more = f" and {len(lines) - _SHOWN} more lines" if len(lines) > _SHOWN else ""
        because = f": {whys[op]}" if whys[op] else ""
        facts.append(f"{op}: {len(places)} x ({', '.join(lines[:_SHOWN])}{more}){because}")
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
    if node.target is operator.getitem:
        return True
    if on_complex(node):
        return op_of(node) in ATEN_COMPLEX
    return bool(control_of(node)) or op_of(node) in ATEN or op_of(node) in SCALARS


def on_complex(node: Any) -> bool:
    """Whether a node reads or makes complex numbers."""
    made = node.meta.get("val")
    results = made if isinstance(made, (tuple, list)) else [made]
    return any(map(is_complex, [*results, *(n.meta.get("val") for n in node.all_input_nodes)]))


def control_of(node: Any) -> str:
    """Return the name of an op whose arguments are graphs; empty for all others."""
    is_higher = isinstance(node.target, torch._ops.HigherOrderOperator)
    return node.target.name() if is_higher and node.target.name() in CONTROL else ""
