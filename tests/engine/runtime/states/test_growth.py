"""States that grow in place: the graph on buffers, buffers that double, and what is copied."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from growing_attention import DEPTH, HEADS, attention_model, attention_peer, rows, same, state_line
from opencl import need_opencl
from stateful_models import STATES, PeerRuns, random_model

from trireme import RunError, Session, State
from trireme.backend.registry import open_device
from trireme.devices.opencl.gpu_prices import GpuFacts
from trireme.ir.interpreter import interpret
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.states.growth import LEAST_ROWS, growing
from trireme.runtime.states.rules import ties_of


@pytest.mark.parametrize("reads_past", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_state_grows_where_it_is(reads_past, batch):
    model, rng = attention_model(reads_past), np.random.default_rng(0)
    peer = attention_peer(model, batch)
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
    peer = attention_peer(model, 1)
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
    peer, shapes = attention_peer(model, 1), {"past.v": ("b", HEADS, "other<=90", DEPTH)}
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
    peer = attention_peer(model, 1)
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
    peer = attention_peer(model, 1)
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
    peer = attention_peer(model, 1)
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
    peer, gpu = attention_peer(model, 1), open_device("opencl")
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
    peer = PeerRuns(model.model, model.initial())
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
