"""A new shape writes numbers into the tables of one program: ONNX Runtime is the oracle."""

import random
import threading
import tracemalloc

import numpy as np
import onnxruntime
import pytest
from masked_decoder import HEADS, SIZE, WORDS, decoder, fed

import trireme.ops  # noqa: F401
from trireme.devices.cpu.compile.resizable import CpuResizable
from trireme.ir.builder import GraphBuilder
from trireme.ir.decided import DecidedValues
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.runtime.shapes.size_checks import SizeChecks
from trireme.support.errors import RunError, ShapeError


def peer(data):
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def agrees(session, oracle, feeds):
    found = session.run(feeds)
    names = [value.name for value in session.outputs]
    assert list(found) == names
    for name, wanted in zip(names, oracle.run(names, feeds), strict=True):
        assert found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name], wanted, rtol=2e-5, atol=2e-5)
    return found


def whole(session):
    """The graph of a session whose calls change their shape."""
    return session.ready.runner.program._open._polymorphic.resizable


def work(session):
    """Steps that were sized, decided nodes that were computed, nodes that were inferred."""
    one = whole(session)
    return np.array([one.call.resizer.resized, one.contents.computed, one.checks.asked])


def test_a_past_that_grows_by_one_500_times():
    data, rng = decoder(), np.random.default_rng(1)
    oracle = peer(data)
    with Session(data, threads=1) as session:
        feeds = fed(rng, 1, 3, 1)
        found = agrees(session, oracle, feeds)
        done, each = work(session), []
        for _ in range(500):
            feeds = {"ids": rng.integers(0, WORDS, (1, 1))}
            feeds |= {k.replace("present", "past"): v for k, v in found.items() if k != "y"}
            found = agrees(session, oracle, feeds)
            done, before = work(session), done
            each.append((done - before).tolist())
        assert found["present.k.0"].shape == (1, HEADS, 504, SIZE)
        assert session.stages[0].tier == "polymorphic"
    sized, computed, inferred = np.array(each[1:]).T
    assert sized[0] > 0
    assert sized.max() <= 8
    assert sized[100:].sum() < 30, "Python sizes steps whose code is recorded"
    assert computed.max() <= 12
    assert inferred.max() == 0


def test_more_layers_take_no_more_work():
    counts = []
    for layers in (2, 5):
        with Session(decoder(layers), threads=1) as session:
            session.run(fed(np.random.default_rng(0), 1, 1, 4, layers))
            before = work(session)
            session.run(fed(np.random.default_rng(0), 1, 1, 5, layers))
            counts.append((work(session) - before).tolist())
    assert counts[0] == counts[1]


@pytest.mark.parametrize("most_shapes", [1, 64])
def test_many_shapes_in_random_order(most_shapes):
    print("seed 5")
    draw, rng, data = random.Random(5), np.random.default_rng(5), decoder()
    oracle = peer(data)
    sizes = [(draw.randint(1, 3), draw.randint(1, 20), draw.randint(1, 70)) for _ in range(30)]
    options = ExecutionOptions(most_shapes=most_shapes)
    with Session(data, threads=2, execution_options=options) as session:
        for one in draw.choices(sizes, k=90):
            agrees(session, oracle, fed(rng, *one))
        assert session.ready.runner.program.kept <= most_shapes


@pytest.mark.parametrize("devices", [["cpu"], ["cpu#1"]])
def test_two_threads_call_one_session_with_shapes_of_their_own(devices):
    data, rng, wrong = decoder(), np.random.default_rng(3), []
    oracle = peer(data)
    threads = None if devices == ["cpu"] else 1
    with Session(data, devices=devices, threads=threads) as session:
        assert session.run(fed(rng, 1, 1, 1))

        def serve(seed):
            draw, mine = random.Random(seed), np.random.default_rng(seed)
            for _ in range(60):
                feeds = fed(mine, draw.randint(1, 2), draw.randint(1, 6), draw.randint(1, 40))
                try:
                    agrees(session, oracle, feeds)
                except Exception as error:
                    wrong.append(error)

        both = [threading.Thread(target=serve, args=(seed,)) for seed in (1, 2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    assert not wrong


def test_the_session_of_a_shape_runs_beside_the_others():
    data, rng = decoder(), np.random.default_rng(4)
    oracle = peer(data)
    with Session(data) as session:
        one, other = fed(rng, 1, 2, 5), fed(rng, 2, 1, 9)
        at = session.at(one)
        agrees(session, oracle, other)
        agrees(at, oracle, one)
        agrees(session, oracle, other)
        assert session.at(one) is at
        assert session.profile(one, runs=1, warmup=0).runs == 1
        assert session.placement.makespan_s > 0


def test_a_shape_that_comes_back_finds_its_tables(monkeypatch):
    """Clients with texts of a few lengths: no run writes tables, and new shapes make no more."""
    written, load = [], CpuResizable._load
    monkeypatch.setattr(CpuResizable, "_load", lambda *a: written.append(a[0]) or load(*a))
    rng = np.random.default_rng(8)
    data = decoder()
    oracle = peer(data)
    with Session(data, threads=1) as session:
        few = [fed(rng, 1, 1, p) for p in (1, 3, 5, 9)]
        for _ in range(8):
            for feeds in few:
                agrees(session, oracle, feeds)
        written.clear()
        for _ in range(3):
            for feeds in few:
                agrees(session, oracle, feeds)
        assert not written
        for p in range(10, 40):
            for _ in range(8):
                agrees(session, oracle, fed(rng, 1, 1, p))
                agrees(session, oracle, fed(rng, 1, 2, p))
        assert len({id(call) for call in written}) <= 8


def test_memory_is_flat_over_shapes():
    rng = np.random.default_rng(6)
    options = ExecutionOptions(most_shapes=4)
    with Session(decoder(), threads=1, execution_options=options) as session:

        def some(first):
            for p in range(first, first + 150):
                session.run(fed(rng, 1, 1, p))

        some(200)
        tracemalloc.start()
        some(50)
        least = tracemalloc.get_traced_memory()[0]
        some(51)
        grown = tracemalloc.get_traced_memory()[0] - least
        tracemalloc.stop()
    assert grown < 150 * 1000  # bounded caches fill; a table alone is larger


def test_pasts_of_unlike_lengths_are_refused_before_a_kernel_runs():
    rng, data = np.random.default_rng(2), decoder(past=("p", "t"))
    with Session(data) as session:
        good = fed(rng, 1, 2, 5)
        wanted = session.run(good)["y"]
        bad = good | {f"past.v.{n}": good[f"past.v.{n}"][:, :, :4] for n in range(2)}
        for _ in range(2):
            with pytest.raises(RunError, match=r"matmul|does not agree|do not"):
                session.run(bad)
        np.testing.assert_array_equal(session.run(good)["y"], wanted)


def products(n, m):
    b = GraphBuilder("products")
    b.symbols |= {"k": (1, 40)}
    x, y = b.input("x", TensorType((2, n), "float32")), b.input("y", TensorType((m, 3), "float32"))
    return b.finish(b.add("relu", b.add("matmul", x, y)))


def test_sizes_that_must_agree_are_asked_and_others_are_not():
    same = products("k", "k")
    assert not SizeChecks(same, DecidedValues(same, ("k",))).nodes
    apart = products("k", "m")
    checks = SizeChecks(apart, DecidedValues(apart, ("k", "m")))
    assert [node.op for node in checks.nodes] == ["matmul"]
    checks.check((7, 7))
    checks.check((7, 7))
    assert checks.asked == 1
    with pytest.raises(ShapeError, match="matmul"):
        checks.check((7, 8))
    with pytest.raises(ShapeError, match="matmul"):
        checks.check((7, 8))
    checks.check((8, 8))


@pytest.mark.parametrize("size", [3, 1])
def test_an_image_smaller_than_a_window_is_asked(size):
    b = GraphBuilder("window")
    x = b.input("x", TensorType(("n", "h", "w", 4), "float32"))
    attrs = dict(kernel=(size, size), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1))
    graph = b.finish(b.add("max_pool", x, layout="NHWC", **attrs))
    checks = SizeChecks(graph, DecidedValues(graph, ("n", "h", "w")))
    checks.check((1, size, 6))
    checks.check((0, 5, size))
    assert not checks.nodes and not checks.asked
    for _ in range(2):
        with pytest.raises(ShapeError):
            checks.check((1, size - 1, 6))


def test_what_is_added_to_a_convolution_is_asked_unless_it_has_its_shape():
    def with_residual(height):
        b = GraphBuilder("residual")
        x = b.input("x", TensorType((1, "h", 8, 4), "float32"))
        y = b.input("y", TensorType((1, height, 8, 4), "float32"))
        w = b.constant("w", np.ones((4, 1, 1, 4), np.float32))
        window = dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), layout="NHWC")
        graph = b.finish(b.add("conv", x, w, None, y, **window))
        return SizeChecks(graph, DecidedValues(graph, ("h", "k")[: 1 + (height == "k")]))

    assert not with_residual("h").nodes
    apart = with_residual("k")
    assert [node.op for node in apart.nodes] == ["conv"]
    apart.check((5, 5))
    with pytest.raises(ShapeError, match="residual"):
        apart.check((5, 6))


def test_a_division_that_must_be_whole_is_asked():
    b = GraphBuilder("halves")
    x = b.input("x", TensorType(("n", 4), "float32"))
    graph = b.finish(b.add("reshape", x, b.constant("t", np.array([-1, 3, 2, 4]))))
    with Session(graph) as session:
        feeds = {"x": np.ones((12, 4), np.float32)}
        assert session.run(feeds)[session.outputs[0].name].shape == (2, 3, 2, 4)
        with pytest.raises(RunError):
            session.run({"x": np.ones((13, 4), np.float32)})


def ends():
    """Outputs of every kind: made, an input, a constant and one that shapes decide."""
    b = GraphBuilder("ends")
    x = b.input("x", TensorType(("n", 4), "float32"))
    y = b.add("relu", x, names=["y"])
    count = b.add("shape", x, names=["count"])
    c = b.constant("c", np.arange(3, dtype=np.float32))
    return b.finish(y, x, c, count, b.add("tanh", y, names=["z"]))


def test_outputs_that_no_kernel_makes():
    graph = ends()
    with Session(graph) as session:
        for n in (3, 5, 3):
            feeds = {"x": np.linspace(-1, 1, 4 * n, dtype=np.float32).reshape(n, 4)}
            found, wanted = session.run(feeds), run_reference(graph, feeds)
            assert list(found) == [value.name for value in session.outputs]
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-6)
                assert not np.shares_memory(found[name], feeds["x"])
                found[name][...] = 0  # the caller's own
        assert session.stages[0].tier == "polymorphic"


def test_arrays_of_any_layout_come_in_and_given_ones_are_written():
    with Session(ends()) as session:
        rng = np.random.default_rng(0)
        plain = rng.standard_normal((6, 4)).astype(np.float32)
        wanted = session.run({"x": plain})
        raw = np.zeros(6 * 4 * 4 + 4, np.uint8)[4:]
        odd = raw.view(np.float32).reshape(6, 4)
        odd[...] = plain
        turned = np.asfortranarray(plain)
        frozen = plain.copy()
        frozen.flags.writeable = False
        for feed in (odd, turned, frozen, plain.astype(">f4")):
            np.testing.assert_array_equal(session.run({"x": feed})["z"], wanted["z"])
        z, y = np.empty((6, 4), np.float32), np.empty((12, 4), np.float32)[::2]
        found = session.run({"x": plain}, out={"z": z, "y": y})
        assert found["z"] is z
        assert found["y"] is y
        np.testing.assert_array_equal(z, wanted["z"])
        np.testing.assert_array_equal(y, wanted["y"])
        mine = plain.copy()
        assert session.run({"x": mine}, out={"z": mine})["z"] is mine
        np.testing.assert_array_equal(mine, wanted["z"])


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ({"q": np.zeros(3)}, "no output is called q"),
        ({"z": None}, r"out\['z'\] is None"),
        ({"z": np.zeros((6, 5), np.float32)}, r"expected float32\[6, 4\]"),
        ({"z": [1]}, "is a list"),
        ([1], "out is a list"),
    ],
)
def test_arrays_that_outputs_do_not_fit(out, sentence):
    with Session(ends()) as session, pytest.raises(RunError, match=sentence):
        session.run({"x": np.zeros((6, 4), np.float32)}, out=out)


def test_a_size_outside_its_bounds_and_axes_that_differ():
    with Session(products("k", "k")) as session:
        x, y = np.ones((2, 41), np.float32), np.ones((41, 3), np.float32)
        with pytest.raises(RunError, match=r"symbol k is 41, expected 1\.\.40"):
            session.run({"x": x, "y": y})
        with pytest.raises(RunError, match="symbol k is bound to 5 and to 6"):
            session.run({"x": x[:, :5], "y": y[:6]})
        np.testing.assert_array_equal(
            session.run({"x": x[:, :5], "y": y[:5]})[session.outputs[0].name], np.full((2, 3), 5)
        )
