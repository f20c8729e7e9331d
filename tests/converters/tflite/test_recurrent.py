"""Recurrent operators and SVDF against LiteRT, over runs that hand their states on."""

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from litert import interpreter

from trireme import Session, convert
from trireme.ir.interpreter import interpret
from trireme.support.errors import ConvertError
from trireme.tools.stress.tflite_builder import Op, T, constant, model

SEED = 23
NONE, RELU, RELU6, TANH = 0, 1, 3, 4
STEPS, BATCH, INPUTS, UNITS = 4, 2, 6, 8
RUNS = 3


@dataclass
class Net:
    """A one-operator model under construction; an input of -1 is left out."""

    rng: np.random.Generator
    dtype: str = "float32"
    tensors: list = field(default_factory=list)
    inputs: list = field(default_factory=list)
    feeds: list = field(default_factory=list)

    def add(self, tensor):
        self.tensors.append(tensor)
        self.inputs.append(len(self.tensors) - 1)
        return self.inputs[-1]

    def skip(self, count=1):
        self.inputs += [-1] * count

    def x(self, *shape, **quant):
        self.feeds.append(self.add(T(shape, **quant)))

    def weight(self, *shape, width=0.4):
        """Weights as floats, or as int8 of one scale."""
        data = self.rng.uniform(-width, width, shape).astype(np.float32)
        if self.dtype == "float32":
            return self.add(constant(data))
        scale = float(np.abs(data).max() / 127)
        stored = np.clip(np.rint(data / scale), -127, 127).astype(np.int8)
        return self.add(constant(stored.view(self.dtype), scale))

    def vector(self, *shape, width=0.5, base=0.0):
        data = base + self.rng.uniform(-width, width, shape)
        return self.add(constant(data.astype(np.float32)))

    def state(self, *shape, **quant):
        self.add(T(shape, variable=True, **quant))

    def finish(self, code, outputs, kind, intermediates=(), **options):
        made = []
        for tensor in outputs:
            self.tensors.append(tensor)
            made.append(len(self.tensors) - 1)
        between = []
        for tensor in intermediates:
            self.tensors.append(tensor)
            between.append(len(self.tensors) - 1)
        op = Op(code, self.inputs, made, kind, options, intermediates=between)
        return model(self.tensors, [op], self.feeds, made)


@dataclass(frozen=True)
class Lstm:
    """The variant of an lstm."""

    dtype: str = "float32"
    coupled: bool = False
    peepholes: bool = False
    projection: int = 0
    norms: bool = False
    asymmetric: bool = False
    time_major: bool = True
    activation: int = TANH
    cell_clip: float = 0.0
    proj_clip: float = 0.0


def direction(net, v):
    """The 17 inputs of one direction after x."""
    outputs = v.projection or UNITS
    for columns in (INPUTS, outputs):
        if v.coupled:
            net.skip()
        for _ in range(3 if v.coupled else 4):
            net.weight(UNITS, columns)
    if not v.peepholes:
        net.skip(3)
    else:
        if v.coupled:
            net.skip()
        for _ in range(2 if v.coupled else 3):
            net.weight(UNITS)
    if v.coupled:
        net.skip()
    for _ in range(3 if v.coupled else 4):
        net.vector(UNITS)
    if v.projection:
        net.weight(outputs, UNITS)
        net.vector(outputs)
    else:
        net.skip(2)


def sequence_shape(v, size):
    return (STEPS, BATCH, size) if v.time_major else (BATCH, STEPS, size)


def lstm(v, seed=SEED, single=False):
    net, outputs = Net(np.random.default_rng(seed), v.dtype), v.projection or UNITS
    net.x(*((BATCH, INPUTS) if single else sequence_shape(v, INPUTS)))
    direction(net, v)
    net.state(BATCH, outputs)
    net.state(BATCH, UNITS)
    if v.norms:
        if v.coupled:
            net.skip()
        for _ in range(3 if v.coupled else 4):
            net.vector(UNITS, base=1.0)
    options = {
        "FusedActivationFunction": v.activation,
        "CellClip": v.cell_clip,
        "ProjClip": v.proj_clip,
        "AsymmetricQuantizeInputs": v.asymmetric,
    }
    if single:
        y = [T((BATCH, outputs))]
        return net.finish("LSTM", y, "LSTMOptions", **options)
    return net.finish(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [T(sequence_shape(v, outputs))],
        "UnidirectionalSequenceLSTMOptions",
        TimeMajor=v.time_major,
        **options,
    )


def bidirectional_lstm(v, merge, aux="", seed=SEED):
    net, outputs = Net(np.random.default_rng(seed), v.dtype), v.projection or UNITS
    net.x(*sequence_shape(v, INPUTS))
    direction(net, v)
    direction(net, v)
    for _ in range(2):
        net.state(BATCH, outputs)
        net.state(BATCH, UNITS)
    if not aux:
        net.skip(9)
    else:
        net.x(*sequence_shape(v, INPUTS))
        if aux == "weights":
            for _ in range(2):
                if v.coupled:
                    net.skip()
                for _ in range(3 if v.coupled else 4):
                    net.weight(UNITS, INPUTS)
        else:
            net.skip(8)
    parts = [T(sequence_shape(v, (2 if merge else 1) * outputs))] * (1 if merge else 2)
    return net.finish(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        parts,
        "BidirectionalSequenceLSTMOptions",
        FusedActivationFunction=v.activation,
        CellClip=v.cell_clip,
        ProjClip=v.proj_clip,
        MergeOutputs=merge,
        TimeMajor=v.time_major,
        AsymmetricQuantizeInputs=v.asymmetric,
    )


def rnn(code, dtype, activation, time_major=True, asymmetric=False):
    net = Net(np.random.default_rng(SEED), dtype)
    v = Lstm(time_major=time_major)
    shape = (BATCH, INPUTS) if code == "RNN" else sequence_shape(v, INPUTS)
    net.x(*shape)
    net.weight(UNITS, INPUTS)
    net.weight(UNITS, UNITS)
    net.vector(UNITS)
    net.state(BATCH, UNITS)
    kind = "RNNOptions" if code == "RNN" else "SequenceRNNOptions"
    more = {} if code == "RNN" else {"TimeMajor": time_major}
    return net.finish(
        code,
        [T((*shape[:-1], UNITS))],
        kind,
        FusedActivationFunction=activation,
        AsymmetricQuantizeInputs=asymmetric,
        **more,
    )


def bidirectional_rnn(dtype, merge, aux="", time_major=True, asymmetric=False):
    net, v = Net(np.random.default_rng(SEED), dtype), Lstm(time_major=time_major)
    net.x(*sequence_shape(v, INPUTS))
    for _ in range(2):
        net.weight(UNITS, INPUTS)
        net.weight(UNITS, UNITS)
        net.vector(UNITS)
        net.state(BATCH, UNITS)
    if not aux:
        net.skip(3)
    else:
        net.x(*sequence_shape(v, INPUTS))
        if aux == "weights":
            net.weight(UNITS, INPUTS)
            net.weight(UNITS, INPUTS)
        else:
            net.skip(2)
    parts = [T(sequence_shape(v, (2 if merge else 1) * UNITS))] * (1 if merge else 2)
    return net.finish(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        parts,
        "BidirectionalSequenceRNNOptions",
        FusedActivationFunction=TANH,
        MergeOutputs=merge,
        TimeMajor=time_major,
        AsymmetricQuantizeInputs=asymmetric,
    )


def svdf(dtype, rank, activation=NONE, bias=True, asymmetric=False):
    net, filters, memory = Net(np.random.default_rng(SEED), dtype), 6, 5
    net.x(BATCH, INPUTS)
    net.weight(filters, INPUTS)
    net.weight(filters, memory)
    if bias:
        net.vector(filters // rank)
    else:
        net.skip()
    net.state(BATCH, filters * memory)
    return net.finish(
        "SVDF",
        [T((BATCH, filters // rank))],
        "SVDFOptions",
        Rank=rank,
        FusedActivationFunction=activation,
        AsymmetricQuantizeInputs=asymmetric,
    )


def float_models():
    plain = Lstm()
    for name, v in {
        "plain": plain,
        "batch major": replace(plain, time_major=False),
        "coupled": replace(plain, coupled=True),
        "peepholes": replace(plain, peepholes=True),
        "coupled, peepholes": replace(plain, coupled=True, peepholes=True),
        "relu": replace(plain, activation=RELU),
        "relu6": replace(plain, activation=RELU6),
        "projection": replace(plain, projection=5),
        "projection, clips": replace(plain, projection=5, cell_clip=0.3, proj_clip=0.2),
        "norms": replace(plain, norms=True),
        "all": Lstm("float32", False, True, 5, True, False, False, TANH, 0.4, 0.3),
        "all, coupled": Lstm("float32", True, True, 5, True, False, True, TANH, 0.4, 0.3),
    }.items():
        yield f"lstm {name}", lstm(v), 1e-5
        yield f"one step of lstm {name}", lstm(v, single=True), 1e-5
    for coupled, aux in itertools.product((False, True), ("", "weights", "crossed")):
        v = replace(plain, coupled=coupled, projection=5 if coupled and aux else 0)
        name = f"two-way lstm, coupled {coupled}, aux {aux or 'none'}"
        yield name, bidirectional_lstm(v, not aux, aux), 1e-5
    apart = bidirectional_lstm(replace(plain, time_major=False), False)
    yield "two-way lstm, batch major", apart, 1e-5
    for activation in (NONE, RELU, RELU6, TANH):
        yield f"rnn {activation}", rnn("RNN", "float32", activation), 1e-5
        for major in (True, False):
            name = f"sequence rnn {activation} {major}"
            yield name, rnn("UNIDIRECTIONAL_SEQUENCE_RNN", "float32", activation, major), 1e-5
    for merge, aux in itertools.product((True, False), ("", "weights", "crossed")):
        yield f"two-way rnn {merge} {aux}", bidirectional_rnn("float32", merge, aux), 1e-5
    yield "two-way rnn, batch major", bidirectional_rnn("float32", False, "", False), 1e-5
    for rank, activation in ((1, NONE), (2, RELU), (3, TANH)):
        yield f"svdf {rank}", svdf("float32", rank, activation, bias=rank != 2), 1e-5


def hybrid_models():
    """A rounding that goes the other way is one step of 127 of a value: a few thousandths."""
    near = 1e-2
    for dtype, asymmetric in (("int8", False), ("int8", True), ("uint8", False)):
        v, tag = Lstm(dtype, asymmetric=asymmetric), f"{dtype} {asymmetric}"
        yield f"lstm {tag}", lstm(v), near
        yield f"lstm, batch major {tag}", lstm(replace(v, time_major=False)), near
        yield f"lstm, peepholes {tag}", lstm(replace(v, peepholes=True)), near
        rest = replace(v, projection=5, norms=True, cell_clip=0.4, proj_clip=0.3)
        yield f"lstm, all {tag}", lstm(rest), near
        yield f"lstm, all coupled {tag}", lstm(replace(rest, coupled=True, peepholes=True)), near
        yield f"one step of lstm {tag}", lstm(v, single=True), near
        for aux in ("", "weights", "crossed"):
            yield f"two-way lstm {aux} {tag}", bidirectional_lstm(v, True, aux), near
            if aux == "crossed":
                continue  # LiteRT's batch-major rnn ignores the crossing
            yield (
                f"two-way rnn {aux} {tag}",
                bidirectional_rnn(dtype, True, aux, False, asymmetric),
                near,
            )
        yield f"rnn {tag}", rnn("RNN", dtype, TANH, True, asymmetric), near
        yield (
            f"sequence rnn {tag}",
            rnn("UNIDIRECTIONAL_SEQUENCE_RNN", dtype, TANH, False, asymmetric),
            near,
        )
        yield f"svdf {tag}", svdf(dtype, 2, RELU, True, asymmetric), near


INT8, INT16 = (-127, 127), (-32767, 32767)


def integers(net, limits, dtype, *shape, scale):
    data = net.rng.integers(limits[0], limits[1] + 1, shape).astype(dtype)
    return net.add(constant(data, *([scale] if scale else [])))


def int8_lstm(v, seed=SEED, hidden_zero=0, single=False, gain=1.0):
    """A full int8 lstm: weights int8, biases int32, norms and peepholes int16.

    gain: a factor of the input's scale; large ones saturate gates
    """
    net, outputs = Net(np.random.default_rng(seed)), v.projection or UNITS
    shape = (BATCH, INPUTS) if single else sequence_shape(v, INPUTS)
    net.x(*shape, dtype="int8", scales=(0.02 * gain,), zeros=(-9,))
    gates = 3 if v.coupled else 4
    for columns in (INPUTS, outputs):
        if v.coupled:
            net.skip()
        for _ in range(gates):
            integers(net, INT8, np.int8, UNITS, columns, scale=float(net.rng.uniform(0.01, 0.03)))
    if v.peepholes:
        if v.coupled:
            net.skip()
        for _ in range(gates - 1):
            integers(net, INT16, np.int16, UNITS, scale=2.0**-14)
    else:
        net.skip(3)
    if v.coupled:
        net.skip()
    for _ in range(gates):
        most = 400_000 if v.norms else 3000
        integers(net, (-most, most), np.int32, UNITS, scale=2.0**-20 if v.norms else 0.0004)
    if v.projection:
        integers(net, INT8, np.int8, outputs, UNITS, scale=0.01)
        integers(net, (-900, 900), np.int32, outputs, scale=0.0001)
    else:
        net.skip(2)
    scale, zero = (0.011, 7) if v.projection else (0.0078, 0)
    net.state(BATCH, outputs, dtype="int8", scales=(scale,), zeros=(zero,))
    net.state(BATCH, UNITS, dtype="int16", scales=(2.0**-11,))
    if v.norms:
        if v.coupled:
            net.skip()
        for _ in range(gates):
            integers(net, INT16, np.int16, UNITS, scale=3e-5)
    parts = [T((1,), "int16", (2.0**-12 * k,)) for k in (1.0, 1.1, 1.2, 1.3)]
    hidden = T((1,), "int8", (0.0078,), (hidden_zero,))
    options = {
        "FusedActivationFunction": TANH,
        "CellClip": v.cell_clip,
        "ProjClip": v.proj_clip,
    }
    y = T((*shape[:-1], outputs), "int8", (scale,), (zero,))
    if single:
        return net.finish("LSTM", [y], "LSTMOptions", [*parts, hidden], **options)
    return net.finish(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [y],
        "UnidirectionalSequenceLSTMOptions",
        [*parts, hidden],
        TimeMajor=v.time_major,
        **options,
    )


def int8_svdf(rank, bias=True, activation=RELU, y_zero=-128):
    net, filters, memory = Net(np.random.default_rng(SEED)), 6, 5
    net.x(BATCH, INPUTS, dtype="int8", scales=(0.05,), zeros=(11,))
    integers(net, INT8, np.int8, filters, INPUTS, scale=0.01)
    integers(net, INT16, np.int16, filters, memory, scale=3e-5)
    if bias:
        integers(net, (-90000, 90000), np.int32, filters // rank, scale=3e-8)
    else:
        net.skip()
    net.state(BATCH, filters * memory, dtype="int16", scales=(0.0003,))
    y = T((BATCH, filters // rank), "int8", (0.02,), (y_zero,))
    return net.finish("SVDF", [y], "SVDFOptions", Rank=rank, FusedActivationFunction=activation)


def int8_models():
    plain = Lstm()
    for name, v in {
        "plain": plain,
        "batch major": replace(plain, time_major=False),
        "coupled": replace(plain, coupled=True),
        "peepholes": replace(plain, peepholes=True),
        "coupled, peepholes": replace(plain, coupled=True, peepholes=True),
        "cell clip": replace(plain, cell_clip=0.5),
        "projection": replace(plain, projection=5),
        "projection, clip": replace(plain, projection=5, proj_clip=0.6),
        "norms": replace(plain, norms=True),
        "all": Lstm("int8", False, True, 5, True, False, True, TANH, 3.0, 1.1),
        "all, coupled": Lstm("int8", True, True, 5, True, False, False, TANH, 3.0, 1.1),
    }.items():
        for seed in (SEED, SEED + 1):
            yield f"int8 lstm {name} {seed}", int8_lstm(v, seed), 0
        yield f"one step of int8 lstm {name}", int8_lstm(v, single=True), 0
    for zero in (-20, 5):
        v = replace(plain, projection=5)
        yield f"int8 lstm projection, hidden {zero}", int8_lstm(v, hidden_zero=zero), 0
        yield f"int8 lstm hidden {zero}", int8_lstm(plain, hidden_zero=zero), 0
    for rank in (1, 2, 3):
        yield f"int8 svdf {rank}", int8_svdf(rank, rank != 2), 0


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
    "two-way lstm, coupled True, aux weights",
    "sequence rnn 1 False",
    "rnn 4",
    "svdf 2",
    "lstm int8 True",
    "svdf int8 False",
    "int8 lstm all 23",
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
def test_random_int8_lstms_have_the_bits_of_litert(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    sizes = {"STEPS": (1, 6), "BATCH": (1, 4), "INPUTS": (1, 20), "UNITS": (2, 24)}
    for name, (low, high) in sizes.items():
        monkeypatch.setitem(globals(), name, int(rng.integers(low, high)))
    v = Lstm(
        "int8",
        coupled=bool(rng.random() < 0.3),
        peepholes=bool(rng.random() < 0.4),
        projection=int(rng.integers(1, UNITS + 1)) if rng.random() < 0.4 else 0,
        norms=bool(rng.random() < 0.4),
        time_major=bool(rng.random() < 0.5),
        cell_clip=float(rng.choice([0.0, 0.7])),
        proj_clip=float(rng.choice([0.0, 0.7])),
    )
    print("seed", seed, v, {name: globals()[name] for name in sizes})
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
