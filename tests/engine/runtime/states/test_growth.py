"""States that grow in place: the graph on buffers, buffers that double, and what is copied."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from opencl import need_opencl
from stateful_models import STATES, PeerRuns, random_model

from trireme import RunError, Session, State
from trireme.backend.registry import open_device
from trireme.devices.opencl.gpu_prices import GpuFacts
from trireme.ir.interpreter import interpret
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.runtime.options import ExecutionOptions
from trireme.runtime.states.growth import growing
from trireme.runtime.states.rooms import LEAST_ROWS
from trireme.runtime.states.rules import ties_of
from trireme.runtime.states.steps import StateSteps

HEADS, DEPTH = 2, 8
CLOSE = dict(rtol=1e-5, atol=1e-5)


def attention_model(reads_past=False):
    """Return a step of attention: keys and values join the past, queries read both.

    reads_past: whether an output depends on the past itself, and on how long it is
    """
    past, new = ["b", HEADS, "p", DEPTH], ["b", HEADS, "s", DEPTH]
    nodes = [
        helper.make_node("Concat", ["past.k", "k"], ["present.k"], axis=2),
        helper.make_node("Concat", ["past.v", "v"], ["present.v"], axis=-2),
        helper.make_node("Transpose", ["present.k"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "present.v"], ["y"]),
    ]
    outputs = [("y", new), ("present.k", ["b", HEADS, "t", DEPTH])]
    outputs.append(("present.v", ["b", HEADS, "t", DEPTH]))
    if reads_past:
        nodes += [
            helper.make_node("Shape", ["past.k"], ["shape"], start=2, end=3),
            helper.make_node("ReduceSum", ["past.v", "axes"], ["total"], keepdims=0),
            helper.make_node("Cast", ["shape"], ["count"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["total", "count"], ["z"]),
        ]
        outputs.append(("z", ["b", HEADS, DEPTH]))
    constants = [
        numpy_helper.from_array(np.array(DEPTH**-0.5, np.float32), "scale"),
        numpy_helper.from_array(np.array([2]), "axes"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "attention",
        [info(name, TensorProto.FLOAT, new) for name in "qkv"]
        + [info(f"past.{name}", TensorProto.FLOAT, past) for name in "kv"],
        [info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


class Peer:
    """ONNX Runtime, fed its own presents."""

    def __init__(self, model, batch):
        import onnxruntime as ort

        self._session = ort.InferenceSession(model.SerializeToString())
        self.states = {
            f"past.{name}": np.zeros((batch, HEADS, 0, DEPTH), np.float32) for name in "kv"
        }

    def run(self, feeds):
        names = [value.name for value in self._session.get_outputs()]
        made = dict(zip(names, self._session.run(None, {**feeds, **self.states}), strict=True))
        for name in "kv":
            self.states[f"past.{name}"] = made.pop(f"present.{name}")
        return made


def rows(rng, count, batch=1):
    shape = (batch, HEADS, count, DEPTH)
    return {name: rng.standard_normal(shape).astype(np.float32) for name in "qkv"}


def same(given, expected):
    assert given.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(given[name], array, **CLOSE)


def state_line(session):
    return session.stages[0].state


@pytest.mark.parametrize("reads_past", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_state_grows_where_it_is(reads_past, batch):
    model, rng = attention_model(reads_past), np.random.default_rng(0)
    peer = Peer(model, batch)
    with Session(model.SerializeToString(), states=STATES) as session:
        feeds = rows(rng, 5, batch)
        same(session.run(feeds), peer.run(feeds))  # a sum over no rows has no kernel of all shapes
        assert ("states are copied: cpu: reduce_sum" in state_line(session)) == reads_past
        for count in (1, 1, 3, 1):
            feeds = rows(rng, count, batch)
            before = session.states.arrays["past.k"]
            same(session.run(feeds), peer.run(feeds))
            assert np.shares_memory(before, session.states.arrays["past.k"]) or reads_past
            assert "2 states grow in place, buffers of 64 rows" in state_line(session)
            assert "copied" not in state_line(session)
            reads_past = False
        same(session.get_state(), peer.states)


def test_a_buffer_without_a_bound_doubles():
    model, rng = attention_model(), np.random.default_rng(1)
    peer = Peer(model, 1)
    with Session(model.SerializeToString(), states=STATES) as session:
        for count in (LEAST_ROWS - 1, 1, 1, 70, 1):
            feeds = rows(rng, count)
            same(session.run(feeds), peer.run(feeds))
        assert "buffers of 256 rows" in state_line(session)
        assert "4 copied into larger ones" in state_line(session)
        same(session.get_state(), peer.states)


def test_a_bound_is_the_size_of_the_buffer():
    model, rng = attention_model(), np.random.default_rng(2)
    shapes = {"past.k": ("b", HEADS, "p<=100", DEPTH)}
    with Session(model.SerializeToString(), states=STATES, shapes=shapes) as session:
        session.run(rows(rng, 60))
        session.run(rows(rng, 40))
        assert "buffers of 100 rows" in state_line(session)
        with pytest.raises(RunError, match=r"would be 101 long along axis 2, its bound is p<=100"):
            session.run(rows(rng, 1))
        assert session.get_state()["past.v"].shape == (1, HEADS, 100, DEPTH)


def test_states_of_unlike_symbols_that_grow_alike_share_a_length_and_its_bound():
    model, rng = attention_model(), np.random.default_rng(9)
    model.graph.input[4].type.tensor_type.shape.dim[2].dim_param = "other"
    peer, shapes = Peer(model, 1), {"past.v": ("b", HEADS, "other<=90", DEPTH)}
    with Session(model.SerializeToString(), states=STATES, shapes=shapes) as session:
        for count in (3, 1, 80):
            feeds = rows(rng, count)
            same(session.run(feeds), peer.run(feeds))
        assert "2 states grow in place, buffers of 90 rows" in state_line(session)
        with pytest.raises(RunError, match=r"'past.v' would be 91 long"):
            session.run(rows(rng, 7))


def test_states_are_set_and_reset_in_their_buffers():
    model, rng = attention_model(True), np.random.default_rng(3)
    with Session(model.SerializeToString(), states=STATES) as session:
        first, second = rows(rng, 4), rows(rng, 2)
        begun = session.run(first)
        state = session.get_state()
        wanted = session.run(second)
        session.set_state(state)
        same(session.run(second), wanted)
        session.reset()
        same(session.run(first), begun)
        session.reset()
        session.run(rows(rng, 3, batch=2))
        assert session.get_state()["past.k"].shape == (2, HEADS, 3, DEPTH)
        session.set_state(state)
        same(session.run(second), wanted)


def test_states_of_unequal_lengths_are_copied_or_refused():
    model, rng = attention_model(), np.random.default_rng(4)
    with Session(model.SerializeToString(), states=STATES) as session:
        uneven = {
            f"past.{name}": np.zeros((1, HEADS, count, DEPTH), np.float32)
            for name, count in (("k", 2), ("v", 3))
        }
        session.set_state(uneven)
        with pytest.raises(RunError):
            session.run(rows(rng, 1))
        session.reset()
        session.run(rows(rng, 1))


def test_a_state_begins_in_its_buffer_with_what_is_given():
    model, rng = attention_model(True), np.random.default_rng(5)
    peer = Peer(model, 1)
    start = rng.standard_normal((1, HEADS, 6, DEPTH)).astype(np.float32)
    peer.states = {"past.k": start, "past.v": 2 * start}
    given = {f"past.{n}": State(f"present.{n}", initial=peer.states[f"past.{n}"]) for n in "kv"}
    with Session(model.SerializeToString(), states=given) as session:
        for count in (1, 3):
            feeds = rows(rng, count)
            same(session.run(feeds), peer.run(feeds))
        assert "grow in place" in state_line(session)


@pytest.mark.parametrize("kind", ["run_traced", "run_nodes", "profile"])
def test_other_kinds_of_runs_work_on_the_buffers(kind):
    model, rng = attention_model(True), np.random.default_rng(6)
    peer = Peer(model, 1)
    with Session(model.SerializeToString(), states=STATES) as session:
        for count in (3, 1, 2):
            feeds = rows(rng, count)
            wanted = peer.run(feeds)
            if kind == "profile":
                session.profile(feeds, runs=1, warmup=0)
                same(session.run(feeds), wanted)
            elif kind == "run_nodes":
                same(session.run_nodes(feeds, lambda step: None), wanted)
            else:
                same(session.run_traced(feeds)[0], wanted)
        same(session.get_state(), peer.states)


def test_what_is_copied_has_a_reason():
    model, rng = attention_model(), np.random.default_rng(7)
    data = model.SerializeToString()
    interactive = ExecutionOptions(execution="interactive")
    with Session(data, states=STATES, execution_options=interactive) as session:
        session.run(rows(rng, 1))
        why = "states are copied: every node is a task of its own (interactive)"
        assert why in str(session.stages[0])
    turned = onnx.ModelProto()
    turned.CopyFrom(model)
    for node in turned.graph.node[:2]:
        node.input[:] = node.input[::-1]
    with Session(turned.SerializeToString(), states=STATES) as session:
        session.run(rows(rng, 2))
        session.run(rows(rng, 1))
        assert "'present.k' does not join 'past.k' and new rows in this order" in str(
            session.stages[0]
        )


def test_without_kernels_for_every_length_states_are_copied():
    """opencl alone was refused an op on buffers, which is no op of the model."""
    need_opencl()
    rng = np.random.default_rng(6)
    model = attention_model()
    peer = Peer(model, 1)
    with Session(model.SerializeToString(), states=STATES, devices=["opencl"]) as session:
        for count in (2, 1, 3):
            feeds = rows(rng, count)
            same(session.run(feeds), peer.run(feeds))
        assert state_line(session) == "states are copied: no device has kernels for every length"
        assert session.stages[0].on == "opencl"


def test_states_grow_in_place_beside_a_device_that_is_predicted_faster(no_calibration):
    """Each length was a program of opencl to compile, which took a second a run on a GPU."""
    need_opencl()
    rng = np.random.default_rng(7)
    model = attention_model()
    peer, gpu = Peer(model, 1), open_device("opencl")
    gpu.gpu, gpu.guesses_kernels = GpuFacts(units=10**6, clock=1e12, bandwidth=1e15), True
    gpu.spec = replace(gpu.spec, cores=frozenset(), link_latency_s=1e-9, link_bandwidth=1e15)
    devices = ["cpu", gpu]
    with Session(model.SerializeToString(), devices=devices) as session:
        session.run(rows(rng, 2) | peer.states)
        assert session.stages[0].tier == "specialised"
    with Session(model.SerializeToString(), states=STATES, devices=devices) as session:
        for count in (2, 1, 1):
            feeds = rows(rng, count)
            same(session.run(feeds), peer.run(feeds))
        assert "grow in place" in state_line(session)
        assert session.stages[0].on == "cpu"
    gpu.close()


@pytest.fixture
def steps(monkeypatch):
    """The sizes of the runs that looked at no states."""
    found, plain = [], StateSteps.run

    def run(self, given):
        made = plain(self, given)
        if made is not None:
            found.append(self.sizes)
        return made

    monkeypatch.setattr(StateSteps, "run", run)
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_have_the_bits_of_runs_that_look_at_the_states(threads, steps):
    data, rng = attention_model().SerializeToString(), np.random.default_rng(10)
    with (
        Session(data, states=STATES, threads=threads) as session,
        Session(data, states=STATES, threads=threads) as other,
    ):
        for turn, count in enumerate((5, 1, 1, 1, 60, 1, 2, 1, 1, 1)):
            feeds, done = rows(rng, count, batch=2), len(steps)
            made = session.run(feeds)
            # the first run makes the buffers, and 60 rows take more room
            assert len(steps) - done == (0 if turn == 0 or count == 60 else 1)
            wanted = other.run(feeds, out={})
            assert made.keys() == wanted.keys()
            assert made["y"].tobytes() == wanted["y"].tobytes()
            if turn % 3 == 2:
                for name, state in other.get_state().items():
                    assert session.get_state()[name].tobytes() == state.tobytes()
                assert session.stages[0].shapes == other.stages[0].shapes
        assert next(iter(session.plan.graph.input_values())).shape == (2, HEADS, 1, DEPTH)


def test_a_step_refuses_what_a_first_run_refuses(steps):
    model, rng = attention_model(), np.random.default_rng(11)
    peer, shapes = Peer(model, 1), {"past.k": ("b", HEADS, "p<=20", DEPTH)}
    good = rows(rng, 1)
    bad = {
        "missing: v": {name: good[name] for name in "qk"},
        "not an input: w": {**good, "w": good["v"]},
        "expected float32": {**good, "q": good["q"].astype(np.float64)},
        r"input 'q' is float32\[2,1,8\]": {**good, "q": good["q"][0]},
        "holds b = 1": rows(rng, 1, batch=2),
        "would be 21 long": rows(rng, 18),
        "are a list": [good],
    }
    with Session(model.SerializeToString(), states=STATES, shapes=shapes) as session:
        for count in (2, 1):
            feeds = rows(rng, count)
            same(session.run(feeds), peer.run(feeds))
        for why, feeds in bad.items():
            with pytest.raises(RunError, match=why):
                session.run(feeds)
        done = len(steps)
        turned = {name: np.asfortranarray(array) for name, array in rows(rng, 2).items()}
        for feeds in (rows(rng, 3), turned):
            same(session.run(feeds), peer.run(feeds))
        assert len(steps) == done + 2
        lists = {name: array.tolist() for name, array in good.items()}
        with pytest.raises(RunError, match="float64"):
            session.run(lists)
        same(session.get_state(), peer.states)
        session.close()
        with pytest.raises(RunError, match="closed"):
            session.run(good)


def test_a_step_with_a_wrong_index_changes_no_state(steps):
    model, rng = attention_model(), np.random.default_rng(12)
    table = rng.standard_normal((5, DEPTH)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    model.graph.node.insert(0, helper.make_node("Gather", ["table", "ids"], ["q"]))
    model.graph.input[0].CopyFrom(
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", HEADS, "s"])
    )
    peer = Peer(model, 1)
    with Session(model.SerializeToString(), states=STATES) as session:
        for last in (4, 3, 7, 2, 9, 9, 1):
            feeds = rows(rng, 2)
            del feeds["q"]
            feeds["ids"] = np.array([[[0, 1], [2, last]]])
            if last < 5:
                same(session.run(feeds), peer.run(feeds))
            else:
                with pytest.raises(RunError, match=f"index {last}"):
                    session.run(feeds)
        assert len(steps) == 3
        same(session.get_state(), peer.states)


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_on_buffers_mean_the_same(seed):
    print("seed", seed)
    model, rng = random_model(seed, True), np.random.default_rng(seed)
    graph = optimise(convert(model.model.SerializeToString()))
    ties = ties_of(graph, STATES)
    found = growing(graph, ties)
    if isinstance(found, str):
        assert "grows" not in model.kinds
        return
    assert len(found.buffers) == model.kinds.count("grows")
    feeds = model.feeds(rng)
    for value in graph.input_values():
        if value.name not in feeds:
            shape = (2, 3 if "grows" in model.kinds else 1, 4)
            kind = model.kinds[int(value.name.split(".")[1])]
            shape = (2, {"grows": 4, "slides": 2, "fixed": 1}[kind], 4)
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    wanted = by_name(graph, interpret(graph, {v.id: feeds[v.name] for v in graph.input_values()}))
    own = dict(feeds)
    for one in found.buffers:
        room = np.full((2, 16, 4), np.nan, np.float32)
        room[:, :4] = feeds[one.tie.name]
        own[one.tie.name], own[one.length] = room, np.zeros((4, 0), np.uint8)
    mine = found.graph
    made = by_name(mine, interpret(mine, {v.id: own[v.name] for v in mine.input_values()}))
    assert made.keys() == wanted.keys() - {one.tie.present.name for one in found.buffers}
    for name, array in made.items():
        np.testing.assert_array_equal(array, wanted[name])


def by_name(graph, results):
    return {graph.values[value].name: array for value, array in results.items()}


@pytest.mark.parametrize("seed", range(6))
def test_random_models_grow_past_their_first_buffers(seed):
    print("seed", seed)
    model, rng = random_model(seed, True), np.random.default_rng(seed)
    peer = PeerRuns(model)
    with Session(model.model.SerializeToString(), states=STATES) as session:
        for count in (40, 1, 30, 2, 1):
            feeds = {"x": rng.standard_normal((2, count, 4)).astype(np.float32)}
            same(session.run(feeds), peer.run(feeds))
        same(session.get_state(), peer.states)


def test_rows_that_are_read_in_their_buffer_have_no_copy():
    model, rng = attention_model(), np.random.default_rng(8)
    with Session(model.SerializeToString(), states=STATES) as session:
        session.run(rows(rng, 3))
        session.run(rows(rng, 1))
        served = session.at(rows(rng, 1))
        (executable,) = served.program.executables
        kernels = {node.op: executable.kernels[node.id] for node in served.graph.nodes}
        assert "attention" in kernels["held_rows"]
        assert "append_rows" in kernels["append_rows"]
        assert "concat" not in kernels
