"""Every op's samples with one attribute, dimension or operand made hostile.

As a program, `python hostile_ops.py DEVICES SEED COUNT FIRST`: opens, places and runs COUNT of the
cases (ALL, or one of EACH_KIND for each op) on the devices, in bounded memory and time.
"""

import random
import sys
import warnings
from dataclasses import dataclass, replace

import numpy as np
from lab.stress.bounded import try_cases
from op_samples import SEED, assert_close, outputs_of

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.ir.op import Sample, all_ops, get_op
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.dtypes import dtype_name
from trireme.support.errors import PlacementError

INTS = (0, -1, 2**31, 2**40, 2**62, -(2**63))
FLOATS = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e300)
SIZES = (0, 1, 2**31, 2**40, 2**62)
ALL, EACH_KIND = 0, -1
SAMPLES = 3
"""Of each op, as many as have inputs of other dtypes or quantisation."""
MOST_FED = 1 << 26
"""Bytes that a case is fed; a larger one is opened and placed."""
MOST_COMPARED = 1 << 16
"""Elements that are compared with the reference, which is slow."""


@dataclass(frozen=True)
class Case:
    """A sample and what is changed about it.

    kind: what is changed, whatever the sample and the axis
    attrs: attributes given in place of the sample's
    dims: shapes of fed inputs in place of the sample's, by position
    arrays: operands in place of the sample's, by position
    constant: positions that are constants
    """

    op: object
    sample: object
    number: int
    what: str
    kind: str = ""
    attrs: tuple = ()
    dims: tuple = ()
    arrays: tuple = ()
    constant: frozenset = frozenset()

    def __str__(self):
        return f"{self.op.name} sample {self.number}: {self.what}"


def _twice(states, more=()):
    """Return a body that takes `more` values and a state, and gives the state doubled."""
    builder = GraphBuilder("body")
    taken = [builder.input(f"i{k}", type_) for k, type_ in enumerate((*more, states))]
    made = builder.add("add", taken[-1], taken[-1])
    return builder, taken, made


def _bodies():
    """Samples of the ops whose attributes are graphs."""
    pair, turn = TensorType((2,), "float32"), TensorType((), "int64")
    x = np.ones(2, np.float32)
    builder, _, made = _twice(pair)
    branch = builder.finish(made)
    builder, taken, made = _twice(pair, (turn, TensorType((), "bool")))
    turns = builder.finish(taken[1], made)
    builder, _, made = _twice(pair, (pair,))
    steps = builder.finish(made, builder.add("neg", made))
    going = np.array(True)
    yield "if", Sample((going, x), {"then_branch": branch, "else_branch": branch})
    yield "loop", Sample((np.array(3), going, x), {"body": turns, "carried": 1})
    scan = {"body": steps, "carried": 1, "num_scan_inputs": 1}
    yield "scan", Sample((x, np.ones((3, 2), np.float32)), scan)


GRAMS = {
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 1,
    "mode": "TF",
    "ngram_counts": (0, 2),
    "ngram_indexes": (0, 1, 2),
    "pool_int64s": (1, 2, 1, 2),
}
MORE = {
    **dict(_bodies()),
    "mel_weight_matrix": Sample(
        (
            np.array(8),
            np.array(16),
            np.array(8192),
            np.array(0, np.float32),
            np.array(4000, np.float32),
        )
    ),
    "tf_idf_vectorizer": Sample((np.arange(6),), GRAMS),
    "string_split": Sample((np.array(["a b"], object),), {"delimiter": " "}),
}
"""Samples of ops that have none of their own."""
ENDLESS = ("loop",)
"""Ops that run for as long as the model says: their cases are opened."""


def all_cases():
    """Return every case, in the same order each time."""
    return [case for op in all_ops() for case in cases_of(op)]


def cases_of(op):
    """Yield the cases of an op."""
    seen = {}
    samples = [*op.samples(np.random.default_rng(SEED))] or [*filter(None, [MORE.get(op.name)])]
    for number, sample in enumerate(samples):
        kinds = tuple(a is None or (str(a.dtype), a.ndim) for a in sample.inputs)
        quants = tuple(q is not None for q in sample.quants)
        seen.setdefault((kinds, quants), (number, sample))
    for number, sample in list(seen.values())[:SAMPLES]:
        plain = Case(op, sample, number, "plain", constant=frozenset(sample.constants))
        yield from _attributes(plain)
        yield from _dimensions(plain)
        yield from _operands(plain)


def _attributes(case):
    for name, attr in case.op.attrs.items():
        given = case.sample.attrs.get(name, attr.default)
        for value in _values(attr.kind, given if isinstance(given, tuple | list) else (1, 1)):
            attrs, what = (*case.sample.attrs.items(), (name, value)), f"{name}={value!r}"
            yield replace(case, attrs=attrs, what=what, kind=what)


def _values(kind, given):
    if kind in ("int", "float"):
        yield from {"int": INTS, "float": FLOATS}[kind]
    elif kind in ("ints", "floats"):
        yield from ((), (*given, *given[:1]), tuple(given[:-1]))
        for value in INTS if kind == "ints" else FLOATS:
            yield from ((value,) * len(given), (value, *given[1:]), (*given[:-1], value))
    elif kind == "bool":
        yield from (False, True)
    elif kind in ("str", "strs"):
        yield from ("", "\0") if kind == "str" else ((), ("",), (*given, "x"))


def _dimensions(case):
    fed = {
        position: array.shape
        for position, array in enumerate(case.sample.inputs)
        if array is not None and position not in case.constant
    }
    for size in SIZES:
        for position, shape in fed.items():
            for axis in range(len(shape)):
                dims = ((position, (*shape[:axis], size, *shape[axis + 1 :])),)
                what, kind = f"input {position} is {dims[0][1]}", f"input {position} has {size}"
                yield replace(case, dims=dims, what=what, kind=kind)
        for old in sorted({dim for shape in fed.values() for dim in shape}):
            dims = tuple((p, tuple(size if d == old else d for d in s)) for p, s in fed.items())
            what, kind = f"every dimension of {old} is {size}", f"every dimension is {size}"
            yield replace(case, dims=dims, what=what, kind=kind)


def _operands(case):
    """Small operands, of which shapes, bounds and scales are made, as constants and as fed."""
    for position, array in enumerate(case.sample.inputs):
        if array is None or array.dtype.kind not in "iuf" or array.ndim > 1 or array.size > 16:
            continue
        for value in FLOATS if array.dtype.kind == "f" else INTS:
            with np.errstate(all="ignore"):
                put = np.asarray(value).astype(array.dtype)
            every = np.full(array.shape, put, array.dtype)
            first = array.copy()
            first.reshape(-1)[:1] = put
            for made, which in ((every, "all"), (first, "first")):
                for constant in (case.constant - {position}, case.constant | {position}):
                    how = "constant" if position in constant else "fed"
                    what = f"input {position} ({how}) {which} {value}"
                    arrays = ((position, made),)
                    yield replace(case, arrays=arrays, constant=constant, what=what, kind=what)


def graph_of(case):
    """Return a graph of one node, and the shapes and values to feed by name."""
    builder, feeds, operands = GraphBuilder(case.op.name), {}, []
    dims, arrays = dict(case.dims), dict(case.arrays)
    for position, array in enumerate(case.sample.inputs):
        array = arrays.get(position, array)
        quants = case.sample.quants
        quant = quants[position] if position < len(quants) else None
        if array is None:
            operands.append(None)
        elif position in case.constant:
            operands.append(builder.constant(f"c{position}", array, quant))
        else:
            shape = dims.get(position, array.shape)
            feeds[f"x{position}"] = array if shape == array.shape else shape
            type_ = TensorType(tuple(shape), dtype_name(array.dtype), quant)
            operands.append(builder.input(f"x{position}", type_))
    attrs = dict(case.attrs) if case.attrs else case.sample.attrs
    made = builder.add_node(
        case.op.name,
        operands,
        attrs,
        outputs=max(outputs_of(case.op, case.sample), 1),
        quants=case.sample.out_quants,
        source="test:hostile",
    )
    return builder.finish(*made), feeds


def fed(graph, feeds):
    """Return arrays to feed, zeros where a shape is all that is known; None for too large ones."""
    if sum(value.type.nbytes for value in graph.input_values()) > MOST_FED:
        return None
    types = {value.name: value for value in graph.input_values()}
    return {
        name: given
        if isinstance(given, np.ndarray)
        else np.zeros(given, object if types[name].dtype == "string" else types[name].dtype)
        for name, given in feeds.items()
    }


def attempt_on(devices):
    """Return what opens, places and runs a case: on the last device, else where it can run."""

    def attempt(case):
        graph, feeds = graph_of(case)
        try:
            return _run(graph, feeds, devices, {"*": devices[-1]})
        except PlacementError:
            return _run(graph, feeds, devices, {})

    return attempt


def _run(graph, feeds, devices, pins):
    with Session(
        graph,
        devices=devices,
        placement_options=PlacementOptions(pins=pins),
        threads=1,
        execution_options=ExecutionOptions(model_cache=None),
    ) as session:
        given = fed(graph, feeds)
        if given is None or graph.nodes[0].op in ENDLESS:
            return "opened"
        found = session.run(given)
    return _compared(graph, given, found)


def _compared(graph, given, found):
    """Return "ran", or "wrong" and why where the answer is not the reference's."""
    op = get_op(graph.nodes[0].op)
    if op.random or sum(a.size for a in found.values()) > MOST_COMPARED:
        return "ran"
    for name, wanted in run_reference(graph, given).items():
        got = found[name]
        if op.name in ("dft", "stft") and wanted.shape == got.shape:
            got = np.where(np.isfinite(wanted), got, wanted)
            # a fast transform does not multiply by the zeros that turn infinity into NaN
        try:
            assert_close(got, wanted, op.rtol, name)
        except AssertionError as error:
            return "wrong " + " ".join(str(error).split())[:600]
    return "ran"


def chosen(seed, count):
    """Return the numbered cases: all, a seeded choice of them, or one of each op and kind."""
    cases = list(enumerate(all_cases()))
    if count == ALL:
        return cases
    draw = random.Random(seed)
    if count != EACH_KIND:
        return sorted(draw.sample(cases, count), key=lambda c: c[0])
    draw.shuffle(cases)
    kinds = {(case.op.name, case.kind): (number, case) for number, case in cases}
    return sorted(kinds.values(), key=lambda c: c[0])


def main(devices, seed, count, first):
    warnings.simplefilter("ignore")
    names = devices.split("+")
    example = GraphBuilder("first")
    x = example.input("x", TensorType((2,), "float32"))
    graph = example.finish(example.add("exp", x))
    with Session(
        graph, devices=names, execution_options=ExecutionOptions(model_cache=None)
    ) as session:
        session.run({"x": np.zeros(2, np.float32)})
    try_cases(chosen(seed, count), attempt_on(names), first)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
