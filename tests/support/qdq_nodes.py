"""Quantised nets beside ONNX Runtime, node by node and whole, through the written QDQ file.

local: each node alone, in a file of its own, fed with what the interpreter has there
whole: the file of the whole net, whose values are all outputs, fed with the net's inputs

    python qdq_nodes.py MODEL... [--scheme int8|uint8] [--products float32|integers|rows]

MODEL is one of lively_models.py. Prints for each op the elements that differ, and for the net the
first node that differs, the share within one unit and the signal-to-noise of the output.
"""

import argparse
import collections
import tempfile
from dataclasses import dataclass, replace

import numpy as np
import onnxruntime as ort

import trireme
from trireme.converters.onnx.write import export
from trireme.ir.interpreter import evaluate, interpret, run_reference


@dataclass(frozen=True)
class Beside:
    """One value of a node in ONNX Runtime beside ours.

    units: differences in units of the last place where the value is of integers, else None
    relative: of floats, the largest difference as a part of the largest number
    """

    op: str
    name: str
    units: np.ndarray | None
    relative: float

    @property
    def within(self):
        """The share of elements within one unit; of floats, within 1e-5 of the largest."""
        if self.units is None:
            return float(self.relative <= 1e-5)
        return float((self.units <= 1).mean())

    @property
    def differs(self):
        """The share of elements that differ at all; of floats, whether 1e-5 is exceeded."""
        return 1 - self.within if self.units is None else float((self.units > 0).mean())


def beside(op, value, ours, theirs):
    """Compare arrays of a value."""
    if ours.dtype.kind in "iu" and value.quant is not None:
        units = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
        return Beside(op, value.first_name, units, 0.0)
    largest = max(float(np.abs(ours.astype(np.float64)).max(initial=0)), 1e-30)
    error = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max(initial=0)
    return Beside(op, value.first_name, None, float(error) / largest)


def session(graph, optimised):
    """Return ONNX Runtime on the written file of a graph."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(export(graph), options, providers=["CPUExecutionProvider"])


def alone(graph, node):
    """Return a graph of one node, whose inputs are those that are no constants."""
    used = dict.fromkeys(node.used)
    inputs = tuple(value for value in used if graph.values[value].data is None)
    values = {value: graph.values[value] for value in (*used, *node.outputs)}
    one = replace(node, id=0, after=())
    return replace(
        graph, inputs=inputs, outputs=node.outputs, nodes=(one,), values=values, symbols={}
    )


def local(graph, feeds, optimised=False):
    """Yield a Beside for each output of each node, fed with the interpreter's values."""
    env = {value.id: value.data for value in graph.values.values() if value.data is not None}
    env |= {value.id: feeds[value.name] for value in graph.input_values()}
    for node in graph.nodes:
        ours = evaluate(graph, node, [None if i is None else env[i] for i in node.inputs])
        env |= dict(zip(node.outputs, ours, strict=True))
        one = alone(graph, node)
        if not one.inputs or not any(graph.values[v].quant for v in (*node.used, *node.outputs)):
            continue
        theirs = session(one, optimised).run(
            None, {graph.values[value].name: env[value] for value in one.inputs}
        )
        for value, mine, other in zip(node.outputs, ours, theirs, strict=True):
            yield beside(node.op, graph.values[value], mine, other)


def whole(graph, feeds):
    """Return a Beside for each value of the net in order; both programs run the whole net.

    ONNX Runtime's optimiser is off: with all values as outputs it fuses nothing anyway.
    """
    made = [value for node in graph.nodes for value in node.outputs]
    ops = [node.op for node in graph.nodes for _ in node.outputs]
    every = replace(graph, outputs=tuple(made))
    given = {value.id: feeds[value.name] for value in graph.input_values()}
    ours = interpret(every, given)
    theirs = session(every, False).run(None, dict(feeds))
    values = [graph.values[value] for value in made]
    rows = zip(ops, values, theirs, strict=True)
    return [beside(op, value, ours[value.id], other) for op, value, other in rows]


def print_local(found):
    """Print one line an op."""
    by_op = collections.defaultdict(list)
    for row in found:
        by_op[row.op, row.units is None].append(row)
    for (op, is_float), rows in by_op.items():
        if is_float:
            print(f"    {op}: {len(rows)} nodes to floats, {max(r.relative for r in rows):.1e}")
            continue
        units = np.concatenate([row.units.ravel() for row in rows])
        worst = max(row.differs for row in rows)
        print(
            f"    {op}: {len(rows)} nodes, at most {units.max()}, {100 * (units > 0).mean():.3f} %"
            f" of elements differ, {100 * worst:.3f} % in the worst node"
        )


def print_whole(found):
    """Print the first difference, all integers, the last of them, and the output."""
    first = next((row for row in found if row.differs), None)
    if first is not None:
        print(f"    first: {first.op} '{first.name}', {100 * first.differs:.3f} %")
    integers = [row for row in found if row.units is not None]
    for what, rows in ("all integers", integers), ("the last", integers[-1:]):
        if rows:
            units = np.concatenate([row.units.ravel() for row in rows])
            print(
                f"    {what}: {100 * (units == 0).mean():.2f} % equal,"
                f" {100 * (units <= 1).mean():.2f} % within a unit, at most {units.max()}"
            )
    if found[-1].units is None:
        print(f"    output: {found[-1].relative:.2e} of its largest number")


def quantised(name, **options):
    """Return (graph of integers, feeds) of a model; ranges of 4 samples, one other is fed."""
    import lively_models

    with tempfile.TemporaryDirectory() as folder:
        path, (ranges, feeds), _ = lively_models.write(name, folder)
        graph = trireme.quantize(str(path), {"input": ranges[:4]}, repairs="none", **options)
    return graph, {"input": feeds[0]}


def print_output(graph, feeds):
    """Print how the output agrees with ours, as written and with the optimiser on."""
    ours = next(iter(run_reference(graph, feeds).values())).astype(np.float64)
    for optimised in (False, True):
        (theirs, *_) = session(graph, optimised).run(None, feeds)
        noise = np.square(theirs - ours).sum()
        db = 10 * np.log10(np.square(ours).sum() / noise) if noise else np.inf
        print(f"  output {'optimised' if optimised else 'as written'}: {db:.1f} dB beside ours")


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--scheme", default="int8")
    parser.add_argument("--products")
    given = parser.parse_args()
    asked = {"products": given.products} if given.products else {}
    for name in given.models:
        graph, feeds = quantised(name, scheme=given.scheme, **asked)
        for optimised in (False, True):
            print(f"{name}, each node {'optimised' if optimised else 'as written'}", flush=True)
            print_local(list(local(graph, feeds, optimised)))
        print(f"{name}, the whole net", flush=True)
        print_whole(whole(graph, feeds))
        print_output(graph, feeds)


if __name__ == "__main__":
    main()
