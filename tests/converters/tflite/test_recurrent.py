"""Recurrent operators and SVDF against LiteRT, over runs that hand their states on."""

import numpy as np
import pytest
from litert import interpreter
from recurrent_integer_models import int8_lstm, int8_models
from recurrent_models import (
    BATCH,
    INPUTS,
    SEED,
    STEPS,
    TANH,
    UNITS,
    Lstm,
    Net,
    Sizes,
    bidirectional_lstm,
    float_models,
    hybrid_models,
)
from tflite_builder import T

from trireme import Session, convert
from trireme.ir.interpreter import interpret
from trireme.support.errors import ConvertError

RUNS = 3

MODELS = {
    name: (data, limit) for name, data, limit in (*float_models(), *hybrid_models(), *int8_models())
}


def litert_runs(data, feeds, reference):
    made = interpreter(data, reference=reference)
    for run in feeds:
        for detail in made.get_input_details():
            made.set_tensor(detail["index"], run[detail["name"]])
        made.invoke()
        yield {d["name"]: made.get_tensor(d["index"]) for d in made.get_output_details()}


def feeds_of(graph, seed=SEED):
    rng = np.random.default_rng(seed)
    for run in range(RUNS):
        feeds = {}
        for value in graph.input_values():
            if value.dtype == "int8":
                feeds[value.name] = rng.integers(-128, 128, value.type.dims).astype(np.int8)
            else:
                feeds[value.name] = rng.uniform(-1, 1, value.type.dims).astype(np.float32)
        if run == RUNS - 1 and not any(a.dtype == np.int8 for a in feeds.values()):
            feeds = {name: np.zeros_like(array) for name, array in feeds.items()}
        yield feeds


def check(got, want, limit, name):
    assert got.keys() == want.keys()
    for output, array in want.items():
        assert (got[output].dtype, got[output].shape) == (array.dtype, array.shape)
        if limit:
            np.testing.assert_allclose(got[output], array, atol=limit, rtol=0, err_msg=name)
        else:
            np.testing.assert_array_equal(got[output], array, err_msg=name)


def run_reference(graph, feeds, states):
    by_id = {value.id: feeds[value.name] for value in graph.input_values()}
    made = interpret(graph, by_id, states=states)
    return {graph.values[i].name: made[i] for i in graph.outputs}


@pytest.mark.parametrize("name", MODELS)
def test_reference_agrees_with_litert(name):
    data, limit = MODELS[name]
    graph, states = convert(data), {}
    feeds = list(feeds_of(graph))
    for run, want in zip(feeds, litert_runs(data, feeds, reference=False), strict=True):
        check(run_reference(graph, run, states), want, limit, f"{name}, seed {SEED}")


def test_merged_outputs_are_the_two_beside_each_other():
    """LiteRT merges batch-major outputs in a wrong order, so its outputs apart are the judge."""
    v = Lstm(time_major=False)
    merged, apart = convert(bidirectional_lstm(v, True)), bidirectional_lstm(v, False)
    feeds = list(feeds_of(merged))
    states = {}
    for run, want in zip(feeds, litert_runs(apart, feeds, reference=False), strict=True):
        (got,) = run_reference(merged, run, states).values()
        np.testing.assert_allclose(got, np.concatenate([*want.values()], -1), atol=1e-5)


IN_SESSIONS = [
    "lstm plain",
    "one step of lstm peepholes",
    "lstm all, coupled",
    "lstm projection",
    "lstm projection without bias",
    "two-way lstm, coupled True, aux weights",
    "sequence rnn 1 False",
    "rnn 4",
    "svdf 2",
    "lstm int8 True",
    "svdf int8 False",
    "int8 lstm all 23",
    "int8 lstm projection without bias 23",
    "one step of int8 lstm plain",
    "int8 svdf 2",
]


@pytest.mark.parametrize("name", IN_SESSIONS)
def test_session_agrees_with_litert(name):
    data, limit = MODELS[name]
    with Session(data) as session:
        feeds = list(feeds_of(session.graph))
        for run, want in zip(feeds, litert_runs(data, feeds, reference=True), strict=True):
            check(session.run(run), want, limit, f"{name}, seed {SEED}")


@pytest.mark.parametrize("name", ["lstm plain", "rnn 4", "two-way rnn True "])
def test_plain_float_layers_are_one_node_with_a_kernel(name):
    with Session(MODELS[name][0]) as session:
        graph = session.placement.graph
        found = [node for node in graph.nodes if node.op in ("lstm", "rnn", "scan")]
        assert found
        assert {session.placement.device_of[node.id] for node in found} == {"cpu"}
        assert all(node.op != "scan" for node in found)


def test_weights_with_several_scales_are_refused():
    net = Net(np.random.default_rng(SEED))
    net.x(BATCH, INPUTS)
    scales = tuple([0.01] * UNITS)
    stored = np.ones((UNITS, INPUTS), np.int8)
    net.add(T(stored.shape, "int8", scales, (0,) * UNITS, 0, stored))
    net.weight(UNITS, UNITS)
    net.vector(UNITS)
    net.state(BATCH, UNITS)
    data = net.finish("RNN", [T((BATCH, UNITS))], "RNNOptions", FusedActivationFunction=TANH)
    with pytest.raises(ConvertError, match="must be int8 of one scale"):
        convert(data)


def test_a_cell_whose_scale_is_no_power_of_two_is_refused():
    net = Net(np.random.default_rng(SEED))
    net.x(STEPS, BATCH, INPUTS, dtype="int8", scales=(0.1,))
    net.skip(17)
    net.state(BATCH, UNITS, dtype="int8", scales=(0.1,))
    net.state(BATCH, UNITS, dtype="int16", scales=(0.0003,))
    kind = "UnidirectionalSequenceLSTMOptions"
    parts = [T((1,), "int16", (2.0**-12,))] * 5
    y = T((STEPS, BATCH, UNITS), "int8", (0.1,))
    data = net.finish("UNIDIRECTIONAL_SEQUENCE_LSTM", [y], kind, parts, TimeMajor=True)
    with pytest.raises(ConvertError, match="the cell's scale is 0.0003"):
        convert(data)


@pytest.mark.parametrize("seed", range(40))
def test_random_int8_lstms_have_the_bits_of_litert(seed):
    rng = np.random.default_rng(seed)
    limits = {"steps": (1, 6), "batch": (1, 4), "inputs": (1, 20), "units": (2, 24)}
    sizes = Sizes(**{name: int(rng.integers(*ends)) for name, ends in limits.items()})
    v = Lstm(
        "int8",
        coupled=bool(rng.random() < 0.3),
        peepholes=bool(rng.random() < 0.4),
        projection=int(rng.integers(1, sizes.units + 1)) if rng.random() < 0.4 else 0,
        norms=bool(rng.random() < 0.4),
        time_major=bool(rng.random() < 0.5),
        cell_clip=float(rng.choice([0.0, 0.7])),
        proj_clip=float(rng.choice([0.0, 0.7])),
        sizes=sizes,
        projection_bias=bool(rng.random() < 0.6),
    )
    print("seed", seed, v)
    gain = float(rng.choice([0.3, 1.0, 5.0]))
    data = int8_lstm(v, seed, int(rng.integers(-9, 9)), bool(rng.random() < 0.3), gain)
    graph = convert(data)
    feeds, states = list(feeds_of(graph, seed)), {}
    wanted = list(litert_runs(data, feeds, reference=bool(seed % 2)))
    for run, want in zip(feeds, wanted, strict=True):
        check(run_reference(graph, run, states), want, 0, f"seed {seed}")
    with Session(data) as session:
        for run, want in zip(feeds, wanted, strict=True):
            check(session.run(run), want, 0, f"seed {seed}")


@pytest.mark.parametrize("name", ["lstm plain", "int8 lstm projection 23", "svdf int8 True"])
def test_states_are_tensors_by_name_and_a_reset_forgets_them(name):
    with Session(MODELS[name][0]) as session:
        feeds = next(feeds_of(session.graph))
        first = session.run(feeds)
        assert all(tensor.startswith("t") for tensor in session.states)
        second = session.run(feeds)
        assert any((second[k] != first[k]).any() for k in first)
        session.states.clear()
        for output, array in session.run(feeds).items():
            np.testing.assert_array_equal(array, first[output])
