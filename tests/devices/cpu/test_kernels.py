"""The cpu device against the reference: every op's samples on instruction sets and thread counts,
with poisoned margins around what kernels may write.
"""

import faulthandler
import mmap
import os
import signal

import guard
import numpy as np
import pytest
from cpu_run import assert_close, isas_for, run, sample_graph
from sweep import sweep

import trireme.ops  # noqa: F401
from trireme.backend.device import Buffer, Done
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.compile.program import REFERENCE
from trireme.ir.builder import GraphBuilder
from trireme.ir.effects import uses_state
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops, get_op
from trireme.support.errors import TriremeError

SEED = 20261121
ISAS = available_isas()
PLAIN = available_isas(variants=False)
VARIANTS = [isa for isa in ISAS if isa not in PLAIN]


@pytest.mark.parametrize("variants", sweep([False, True], always=[False]))
@pytest.mark.parametrize("name", [op.name for op in all_ops()])
def test_samples(cpus, name, variants):
    """Variants of an instruction set multiply bytes in other ways: of floats, in a sweep."""
    op = get_op(name)
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    graphs = []
    for number, sample in enumerate(op.samples(rng)):
        try:
            graph, feeds = sample_graph(op, sample)
        except TriremeError:
            continue  # a sample that only the reference takes
        if uses_state(graph.nodes[0]):
            continue  # states need a session; test_states runs them
        if cpus[ISAS[0], 1].unsupported_reason(graph, graph.nodes[0]) is None:
            graphs.append((graph, feeds, f"{name} sample {number} {sample.note}"))
    graphs = [one for one in graphs if not variants or not _is_quantised(one[0])]
    for graph, feeds, what in graphs:
        isas = VARIANTS if variants else isas_for(what, ISAS if _is_quantised(graph) else PLAIN)
        made = {
            (isa, threads): cpus[isa, threads].compile([graph])[0]
            for isa in isas
            for threads in (1, 2)
        }
        native = [isa for isa in isas if REFERENCE not in made[isa, 1].kernels.values()]
        if not native:
            continue  # the numpy reference against itself
        want = list(interpret(graph, feeds).values())
        for isa in native:
            pair = [made[isa, threads] for threads in (1, 2)]
            _check_sample(op, [cpus[isa, 1], cpus[isa, 2]], pair, graph, feeds, want, what)


def _is_quantised(graph):
    return any(value.type.quant is not None for value in graph.values.values())


def _check_sample(op, devices, executables, graph, feeds, want, what):
    """One thread and two give the reference's result, and the same bits."""
    bits = []
    for device, executable in zip(devices, executables, strict=True):
        got, kernels, _ = run(device, graph, feeds, not bits, executable)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, op.rtol, f"{what} {kernels}")
        bits.append([g.tobytes() for g in got])
    assert bits[0] == bits[1], f"{what}: results depend on the number of threads"


def test_reference_steps_run_in_order(cpus):
    """Native and reference steps in one region, with an alias and an output used twice."""
    builder = GraphBuilder("mixed")
    x = builder.input("x", TensorType((4, 6), "float32"))
    y = builder.add("tanh", x)
    z = builder.add("relu", y)
    graph = builder.finish(z, y, x, z)
    feed = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    for device in cpus.values():
        got, _, spans = run(device, graph, {x: feed})
        np.testing.assert_allclose(got[1], np.tanh(feed), rtol=1e-6)
        np.testing.assert_array_equal(got[0], np.maximum(got[1], 0))
        np.testing.assert_array_equal(got[2], feed)
        np.testing.assert_array_equal(got[3], got[0])
        assert [s.start_s <= s.end_s for s in spans] == [True] * len(spans)


def test_types_of_the_contract(cpus):
    device = next(iter(cpus.values()))
    assert isinstance(device.alloc(100), Buffer)
    assert device.alloc(100).handle.ctypes.data % 64 == 0
    assert isinstance(Done(), Done)


@pytest.mark.skipif(not guard.NATIVE, reason="guard pages are Linux only")
@pytest.mark.parametrize("at_end", [True, False])
def test_guard_pages_end_a_process_that_writes_outside(cpus, at_end):
    """A kernel gets a page less for every operand than it uses, in a process of its own."""
    b = GraphBuilder("relu")
    graph = b.finish(b.add("relu", b.input("x", TensorType((4096,), "float32"))))
    executable = cpus[available_isas()[0], 1].compile([graph])[0]
    feeds = {graph.inputs[0]: np.ones(4096, np.float32)}
    (want,) = guard.run_guarded(executable, feeds, at_end)
    assert want.tobytes() == np.ones(4096, np.float32).tobytes()

    whole, child = guard.Guarded, os.fork()
    if child == 0:
        faulthandler.disable()
        guard.Guarded = lambda nbytes, *rest: whole(max(nbytes - mmap.PAGESIZE, 0), *rest[:1])
        try:
            guard.run_guarded(executable, feeds, at_end)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV


@pytest.mark.skipif(not guard.NATIVE, reason="guard pages are Linux only")
@pytest.mark.parametrize("at_end", [True, False])
def test_a_state_begins_as_its_constant_between_guard_pages(cpus, at_end):
    """One variable is a view of the state's memory, the other a copy, and an assign writes it."""
    b = GraphBuilder("states")
    type = TensorType((3, 5), "float32")
    first = {
        name: b.constant(f"{name}0", np.full((3, 5), at, np.float32))
        for at, name in [(2, "s"), (7, "t")]
    }
    x = b.input("x", type)
    kept, taken = (b.add("variable", first[name], state=name) for name in "st")
    y = b.add("add", x, kept)
    b.add("assign", y, state="s")
    graph = b.finish(y, taken)
    feed = np.arange(15, dtype=np.float32).reshape(3, 5)
    executable = cpus[available_isas()[0], 1].compile([graph])[0]
    total, read = guard.run_guarded(executable, {x: feed}, at_end)
    np.testing.assert_array_equal(total, feed + 2)
    np.testing.assert_array_equal(read, np.full((3, 5), 7, np.float32))
