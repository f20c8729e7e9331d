"""Make a failing graph small: drop nodes as long as it still fails.

A value whose node is dropped becomes an input that is fed with what the node made, so that every
subset of the nodes is a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from onnx import numpy_helper

from lab.fuzz.grower import Grown, assemble


def shrink(parts: Sequence[Any], fails: Callable[[list[Any]], bool], most: int = 300) -> list[Any]:
    """Return parts that still fail and of which none can be left out.

    Delta debugging: halves, quarters, .. of the parts are left out. `most` bounds the trials.
    Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input
    """
    best, step, trials = list(parts), max(len(parts) // 2, 1), 0
    while trials < most:
        for first in range(0, len(best), step):
            rest = best[:first] + best[first + step :]
            trials += 1
            if rest and fails(rest):
                best = rest
                break
        else:
            if step == 1:
                break
            step = max(step // 2, 1)
        step = min(step, max(len(best) // 2, 1))
    return best


def part_of(grown: Grown, nodes: Sequence[Any]) -> Grown:
    """Return the graph of some of the nodes, its outputs what they make and none of them reads."""
    graph = grown.model.graph
    read = {name for node in nodes for name in names_read(node) if name in grown.arrays}
    made = {name for node in nodes for name in node.output if name}
    constants = [n for n in graph.node if n.op_type == "Constant" and n.output[0] in read]
    weights = [weight for weight in graph.initializer if weight.name in read]
    known = made | {n.output[0] for n in constants} | {weight.name for weight in weights}
    feeds = {name: grown.arrays[name] for name in sorted(read - known)}
    asked = [value.name for value in graph.output if value.name in made]
    outputs = asked + [name for name in sorted(made - read) if name not in asked]
    opset = next(entry.version for entry in grown.model.opset_import if not entry.domain)
    model = assemble([*constants, *nodes], feeds, weights, outputs, opset)
    return replace(grown, model=model, feeds=feeds)


def names_read(node: Any) -> list[str]:
    """Return the names that a node reads, and those that its bodies do."""
    bodies = [a.g for a in node.attribute if a.HasField("g")]
    return [*node.input, *(n for body in bodies for inner in body.node for n in names_read(inner))]


def as_text(grown: Grown) -> str:
    """Return a graph as lines: opset, inputs, constants, nodes, outputs."""
    graph = grown.model.graph
    opset = next(entry.version for entry in grown.model.opset_import if not entry.domain)
    lines = [f"opset {opset}"]
    lines += [f"input {name} {_shown(array)}" for name, array in grown.feeds.items()]
    lines += [f"weight {w.name} {_shown(numpy_helper.to_array(w))}" for w in graph.initializer]
    for node in graph.node:
        attrs = ", ".join(f"{a.name}={_attribute(a)}" for a in node.attribute)
        made = [f"{n} {_shown(grown.arrays[n])}" for n in node.output if n in grown.arrays]
        lines.append(f"{', '.join(made)} = {node.op_type}({', '.join(node.input)}) {attrs}")
    lines.append(f"outputs {', '.join(value.name for value in graph.output)}")
    return "\n".join(lines)


def _shown(array: Any) -> str:
    data = f" {array.reshape(-1).tolist()}" if array.size <= 8 else ""
    return f"{array.dtype}{list(array.shape)}{data}"


def _attribute(attribute: Any) -> Any:
    if attribute.HasField("t"):
        return _shown(numpy_helper.to_array(attribute.t))
    kinds = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints"}
    found = getattr(attribute, kinds.get(attribute.type, "type"))
    return list(found) if attribute.type in (6, 7) else found
