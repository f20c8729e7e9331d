"""Weights of one-row products in 28 bits: the bits of the kernel that reads them as they are."""

import numpy as np
import pytest
from cpu_run import run

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas, choose_isa
from trireme.devices.cpu.kernels.f32 import product_step
from trireme.devices.cpu.kernels.f32.compact import compacted, has_compact
from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

SEED = 3
ISAS = [isa for isa in available_isas(variants=False) if has_compact(choose_isa(isa))]
pytestmark = pytest.mark.skipif(not ISAS, reason="no instruction set here has compact weights")


@pytest.fixture
def compact(monkeypatch):
    """Have the smallest weights be compact; the function that it returns says whether they are."""

    def allow(yes=True):
        monkeypatch.setattr(product_step, "_LEAST_BYTES", 0 if yes else 1 << 60)
        monkeypatch.setattr(product_step, "_BEYOND_CACHES", 0)

    return allow


def normal(rng, depth, columns):
    return rng.standard_normal((depth, columns)).astype(np.float32)


def sparse(rng, depth, columns):
    w = normal(rng, depth, columns)
    w[rng.random(w.shape) < 0.5] = 0
    w[rng.random(w.shape) < 0.1] = -0.0
    return w


def wide(rng, depth, columns):
    """Some rows have weights that are far too small, denormals among them."""
    w = normal(rng, depth, columns)
    w[:: max(depth // 4, 9), 0] = 1e-30
    w[1::7, -1] = 1e-42
    return w


def special(rng, depth, columns):
    w = normal(rng, depth, columns)
    w[0, 0], w[-1, -1] = np.inf, np.nan
    return w / 1e30


KINDS = [normal, sparse, wide, special]
SIZES = [(1, 1), (5, 16), (40, 48), (256, 128), (100, 130), (37, 300), (64, 1000)]


def layer(w, bias=False, residual=False, activation=""):
    builder = GraphBuilder("layer")
    columns, depth = w.shape
    x = builder.input("x", TensorType((1, depth), "float32"))
    more = [None, None]
    if bias:
        more[0] = builder.constant("b", np.linspace(-1, 1, columns, dtype=np.float32))
    if residual:
        more[1] = builder.input("r", TensorType((1, columns), "float32"))
    weight = builder.constant("w", w)
    y = builder.add("fully_connected", x, weight, *more, activation=activation)
    past = builder.input("past", TensorType((3, columns), "float32"))
    return builder.finish(y, builder.add("concat", past, y, axis=0))


def outputs(cpus, isa, graph, feeds):
    """The bits of the result, equal with one thread and two, and the kernel."""
    found = []
    for threads in (1, 2):
        (got, _), kernels, _ = run(cpus[isa, threads], graph, feeds)
        found.append(got)
    assert found[0].tobytes() == found[1].tobytes()
    return found[0], " ".join(kernels.values())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_results_have_the_bits_of_plain_weights(cpus, compact, kind, isa):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    for k, (depth, columns) in enumerate(SIZES):
        w = np.ascontiguousarray(kind(rng, depth, columns).T)
        form = {"bias": k % 2 == 0, "residual": k % 3 == 0, "activation": ("", "swish")[k % 2]}
        graph = layer(w, **form)
        feeds = {
            value.id: rng.standard_normal(value.type.dims).astype(np.float32)
            for value in graph.input_values()
        }
        compact(False)
        want, kernel = outputs(cpus, isa, graph, feeds)
        assert "compact" not in kernel
        compact()
        got, kernel = outputs(cpus, isa, graph, feeds)
        assert ("compact" in kernel) == (compacted(w.T) is not None), (kind, depth, columns)
        assert got.tobytes() == want.tobytes(), (kind, depth, columns, form)


def test_weights_take_seven_eighths(compact):
    w = normal(np.random.default_rng(SEED), 512, 1024)
    assert compacted(w).nbytes < 0.91 * w.nbytes


def test_a_graph_that_does_not_grow_keeps_plain_weights(cpus, compact):
    compact()
    builder = GraphBuilder("layer")
    x = builder.input("x", TensorType((1, 40), "float32"))
    w = builder.constant("w", normal(np.random.default_rng(SEED), 100, 40))
    graph = builder.finish(builder.add("fully_connected", x, w, activation=""))
    _, kernels, _ = run(cpus[ISAS[0], 1], graph, {x: np.ones((1, 40), np.float32)})
    assert "compact" not in " ".join(kernels.values())


def test_weights_of_every_size_stay_as_they_are():
    rng = np.random.default_rng(SEED)
    assert compacted(np.exp2(rng.uniform(-60, 60, (64, 128))).astype(np.float32)) is None


@pytest.mark.parametrize("isa", ISAS)
def test_a_decoder_takes_them_for_one_row_at_every_shape(cpus, compact, isa):
    """A graph that appends to an input asks for one row at a time; others keep plain weights."""
    rng = np.random.default_rng(SEED)
    builder = GraphBuilder("decoder")
    x = builder.input("x", TensorType(("b", "s", 40), "float32"))
    past = builder.input("past", TensorType(("b", "t", 200), "float32"))
    w = builder.constant("w", normal(rng, 200, 40))
    y = builder.add("fully_connected", x, w, None, None, activation="relu")
    graph = builder.finish(y, builder.add("concat", past, y, axis=1))
    compact()
    every = {n: cpus[isa, n].compile_polymorphic([graph])[0] for n in (1, 2)}
    compact(False)
    for b, s, t in ((1, 1, 0), (1, 1, 9), (1, 3, 1), (2, 1, 5)):
        one = bind_shapes(graph, {"x": (b, s, 40), "past": (b, t, 200)})
        feeds = {
            v.id: rng.standard_normal(v.type.dims).astype(np.float32) for v in one.input_values()
        }
        want, kernels, _ = run(cpus[isa, 1], one, feeds)
        for threads, program in every.items():
            ready = program.at(one)
            is_compact = any("compact" in code.name for code in ready.codes)
            assert is_compact == (b * s == 1), (b, s, t)
            got, _, _ = run(cpus[isa, threads], one, feeds, executable=ready)
            assert [g.tobytes() for g in got] == [g.tobytes() for g in want], (b, s, t)
