"""Count the nodes of a model's unfolded functions and bodies, before any is converted.

A few hundred bytes of functions that call functions can unfold without end. Each function is
counted once and its count is multiplied, so the count takes no longer than reading the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from trireme.converters.onnx.file import bodies_of, domain_of, label_of, opsets_of
from trireme.converters.onnx.functions import static_body
from trireme.converters.onnx.scope import MOST_NODES
from trireme.converters.onnx.support import is_ours
from trireme.support.errors import ModelFileError
from trireme.support.records import dataclass

Functions = Mapping[tuple[str, str], Any]
_Key = tuple[str, str, int]
_SHOWN = 3


def refuse_endless(graph: Any, opsets: Mapping[str, int], functions: Functions) -> None:
    """Raise ModelFileError when a model unfolds to over MOST_NODES nodes.

    Both branches of an If count. Function bodies that depend on a node's types are unknown here;
    Common.count counts them during conversion.
    """
    counter = _Counter(functions)
    total = counter.nodes(graph.node, opsets)
    if total <= MOST_NODES:
        return
    largest = sorted(counter.known.items(), key=lambda item: -item[1])[:_SHOWN]
    raise ModelFileError(
        f"the model unfolds to {total:,} nodes, the limit is {MOST_NODES:,}",
        facts=[f"{domain or 'ai.onnx'} {op}: {count:,}" for (domain, op, _), count in largest],
    )


@dataclass
class _Counter:
    functions: Functions
    known: dict[_Key, int] = field(default_factory=dict)
    """The unfolded nodes of a call, by function."""
    inside: set[_Key] = field(default_factory=set)

    def nodes(self, nodes: Iterable[Any], opsets: Mapping[str, int]) -> int:
        """Return the number of unfolded nodes, the given ones included."""
        return sum(self._one(node, index, opsets) for index, node in enumerate(nodes))

    def _one(self, node: Any, index: int, opsets: Mapping[str, int]) -> int:
        count = 1 + sum(self.nodes(body.node, opsets) for body in bodies_of(node))
        domain, op = domain_of(node), node.op_type
        key = domain, op, opsets.get(domain, 1)
        if key not in self.known:
            self.known[key] = self._called(key, label_of(node, index), opsets)
        return count + self.known[key]

    def _called(self, key: _Key, label: str, opsets: Mapping[str, int]) -> int:
        domain, op, version = key
        function = self.functions.get((domain, op))
        if function is None and not is_ours(domain, op):
            function = static_body(op, domain, version)
        if function is None:
            return 0
        if key in self.inside:
            raise ModelFileError(f"{label}: function {op} calls itself")
        self.inside.add(key)
        inner = {**opsets, **opsets_of(function.opset_import, label)}
        count = self.nodes(function.node, inner)
        self.inside.remove(key)
        return count
