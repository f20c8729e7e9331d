"""Kernels for CPUs that are not at hand, under an emulator: every op's samples, larger convs and
products, and elementwise ops of every dtype, as AArch64 code with NEON.
"""

import numpy as np
import pytest
from cpu_run import assert_close, node_graph, sample_graph
from emulated import MACHINES, Job, missing, run_emulated
from every_expression import assert_outputs, casts, every_operation, values
from hybrid_graphs import Case, graph_of, numbers

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.scalars import SCALARS
from trireme.devices.cpu.kernels.lowering import TABLE
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops
from trireme.support.errors import TriremeError

SEED = 20261122


def samples(rng, name):
    """Every sample that runs on kernels alone: (what it is, tolerance, job)."""
    for op in all_ops():
        for number, sample in enumerate(op.samples(rng)):
            try:
                graph, feeds = sample_graph(op, sample)
            except TriremeError:
                continue  # a sample that only the reference takes
            if all(type.is_static and type.dtype != "string" for type in types(graph)):
                job = Job(graph, feeds, name)
                if job.native:
                    yield f"{op.name} sample {number} {sample.note}", within(op.rtol), job


def within(rtol):
    """Return a check of a job's outputs against the references, to a relative tolerance."""

    def check(job, got, what):
        for g, w in zip(got, interpret(job.graph, job.feeds).values(), strict=True):
            assert_close(g, w, rtol, what)

    return check


def every_dtype(rng, name):
    """Every elementwise expression, and every cast, on every element type."""

    def check(job, got, what):
        assert_outputs(job.graph, job.feeds, got, what)

    for dtype in SCALARS:
        yield f"elementwise {dtype}", check, Job(*every_operation(rng, dtype), name)
        yield f"cast {dtype}", check, Job(*casts(dtype, SCALARS, values(rng, dtype)), name)


def types(graph):
    return [value.type for value in graph.values.values()]


def shapes(rng, name):
    """Convs and products of more than one tile, with tails."""
    for x, w, groups in (
        ((1, 13, 11, 17), (31, 3, 3, 17), 1),
        ((1, 9, 10, 33), (33, 3, 3, 1), 33),
        ((2, 14, 14, 70), (130, 1, 1, 70), 1),
    ):
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (x, w, w[:1])]
        attrs = dict(
            strides=(1, 1),
            pads=(1, 1, 1, 1),
            dilations=(1, 1),
            groups=groups,
            layout="NHWC",
            activation="relu",
        )
        yield f"conv {x} {w}", within(1e-5), Job(*node_graph("conv", arrays, attrs, {1, 2}), name)


def hybrid(name):
    """Products on an input rounded to 8 bits: dense, depthwise and fully connected."""
    for case in (
        Case((2, 9, 11, 6), (18, 3, 2, 6), pads=(1, 0, 2, 1), asymmetric=True, by_channel=True),
        Case((1, 12, 9, 24), (24, 5, 5, 1), groups=24, pads=(2, 2, 2, 2), asymmetric=True),
        Case((3, 37), (21, 37)),
    ):
        graph = graph_of(case)
        feeds = {graph.inputs[0]: numbers(case)}
        yield f"hybrid {case}", within(1e-6), Job(graph, feeds, name)


@pytest.mark.parametrize("name", MACHINES)
def test_samples_under_an_emulator(name, tmp_path):
    if why := missing(name):
        pytest.skip(why)
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    cases = [*samples(rng, name), *shapes(rng, name), *hybrid(name), *every_dtype(rng, name)]
    assert set(TABLE.ops()) <= {what.split()[0] for what, _, _ in cases}
    results = run_emulated(name, [job for _, _, job in cases], tmp_path)
    for (what, check, job), got in zip(cases, results, strict=True):
        check(job, got, f"{what} {list(job.program.kernels.values())}")
