"""Small inputs and outputs of open shapes are copied; what a caller holds stays the caller's."""

import threading

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import trireme
from trireme.runtime.program.io_binding import IN_PLACE_BYTES
from trireme.runtime.shapes.call_pool import SmallIO, is_small
from trireme.support.errors import RunError


def model():
    """Sums, a product and a shape: x [n, 8], p [n, 8] -> x + p, x * p, and x's own shape."""
    ends = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", 8)) for name in "xpst"
    }
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, (2,))
    nodes = [
        helper.make_node("Add", ["x", "p"], ["s"]),
        helper.make_node("Mul", ["x", "p"], ["t"]),
        helper.make_node("Shape", ["x"], ["sizes"]),
    ]
    graph = helper.make_graph(nodes, "small", [ends["x"], ends["p"]], [ends["s"], ends["t"], sizes])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return made.SerializeToString()


@pytest.fixture(scope="module")
def peer():
    return onnxruntime.InferenceSession(model(), providers=["CPUExecutionProvider"])


@pytest.fixture
def session():
    with trireme.Session(model(), threads=1) as one:
        yield one


def feeds_of(rows, seed):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((rows, 8)).astype(np.float32) for name in "xp"}


LARGE = IN_PLACE_BYTES // 32
"""Rows of which an array is not small."""


def test_results_are_those_of_onnx_runtime_and_stay_what_they_were(session, peer):
    ran = []
    for turn, rows in enumerate((3, 3, 1, 3, LARGE, LARGE - 1, 3, LARGE + 1, 1, 0, 3)):
        feeds = feeds_of(rows, turn)
        ran.append((peer.run(None, feeds), session.run(feeds)))
    for wanted, made in ran:
        for array, name in zip(wanted, ("s", "t", "sizes"), strict=True):
            assert made[name].dtype == array.dtype and np.array_equal(made[name], array)
            assert made[name].flags.writeable


@pytest.mark.parametrize("seed", range(4))
def test_runs_into_arrays_of_the_caller_and_others_take_turns(session, peer, seed):
    rng = np.random.default_rng(seed)
    for turn in range(150):
        rows = int(rng.choice([1, 2, 3, LARGE + 1], p=[0.4, 0.3, 0.2, 0.1]))
        feeds = feeds_of(rows, turn)
        into = {name: np.empty((rows, 8), np.float32) for name in "st" if rng.random() < 0.3}
        made = session.run(feeds, out=into) if into or rng.random() < 0.2 else session.run(feeds)
        for name, array in zip("st", peer.run(None, feeds), strict=False):
            assert np.array_equal(made[name], array), (seed, turn, rows, list(into))
            assert into.get(name, made[name]) is made[name]


def test_feeds_of_any_layout_are_read(session):
    plain = feeds_of(4, 1)
    wanted = session.run(plain)
    turned = {name: np.asfortranarray(array) for name, array in plain.items()}
    odd = np.zeros(4 * 8 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 8)
    odd[...] = plain["x"]
    for feeds in (
        turned,
        {"x": odd, "p": plain["p"]},
        {name: array.astype(">f4") for name, array in plain.items()},
        {name: array.tolist() for name, array in plain.items() if name == "x"} | {"p": plain["p"]},
    ):
        if isinstance(feeds["x"], list):
            feeds["x"] = np.asarray(feeds["x"], np.float32)
        made = session.run(feeds)
        assert all(np.array_equal(made[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    "x", [np.zeros((4, 7), np.float32), np.zeros((4, 8)), np.zeros(8, np.float32), np.array("a")]
)
def test_feeds_that_do_not_fit_are_refused_after_others(session, x):
    session.run(feeds_of(4, 1))
    with pytest.raises(RunError, match="'x'"):
        session.run({"x": x, "p": np.zeros((4, 8), np.float32)})
    with pytest.raises(RunError, match="missing: p"):
        session.run({"x": np.zeros((4, 8), np.float32)})


def test_callers_at_once_have_memory_of_their_own(session, peer):
    wrong = []

    def caller(seed):
        for turn in range(60):
            feeds = feeds_of(1 + (seed + turn) % 3, 100 * seed + turn)
            wanted = peer.run(None, feeds)
            made = session.run(feeds)
            if not all(np.array_equal(a, made[n]) for n, a in zip("st", wanted, strict=False)):
                wrong.append((seed, turn))

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def test_memory_is_aligned_and_apart():
    kinds = [((3, 5), np.float32), ((7,), np.int8), ((), np.float64), ((0, 4), np.float32)]
    io = SmallIO(kinds[:2], kinds[2:])
    assert is_small(kinds) and all(place % 64 == 0 for place in io.places)
    assert len(set(io.places)) >= 3
    assert [array.shape for array in io.copied()] == [(), (0, 4)]
    assert not is_small([((IN_PLACE_BYTES,), np.int8)])


def test_a_shape_that_ran_last_runs_though_its_instance_is_gone(peer):
    with trireme.Session(
        model(), threads=1, execution_options=trireme.ExecutionOptions(most_shapes=2)
    ) as session:
        feeds = feeds_of(3, 1)
        session.run(feeds)
        session.at(feeds).run(feeds)
        session.prepare([{"x": (n, 8), "p": (n, 8)} for n in (4, 5)], wait=True)
        wanted = peer.run(None, feeds)
        for _ in range(2):
            made = session.run(feeds)
            assert all(np.array_equal(a, made[n]) for n, a in zip("st", wanted, strict=False))
            assert session.stages[0].shapes["x"] == (3, 8)
            assert session.plan.tasks
            session.run(feeds_of(6, 2))
