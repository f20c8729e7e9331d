"""TFLite files of recurrent operators and SVDF: of floats, and of floats with weights in int8."""

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
from tflite_builder import Op, T, constant, model

SEED = 23

NONE, RELU, RELU6, TANH = 0, 1, 3, 4

STEPS, BATCH, INPUTS, UNITS = 4, 2, 6, 8


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
class Sizes:
    """The sizes of a layer."""

    steps: int = STEPS
    batch: int = BATCH
    inputs: int = INPUTS
    units: int = UNITS


@dataclass(frozen=True)
class Lstm:
    """The variant of an lstm. sizes: those that an int8 one has; all others have the usual ones."""

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
    sizes: Sizes = Sizes()
    projection_bias: bool = True


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
        if v.projection_bias:
            net.vector(outputs)
        else:
            net.skip()
    else:
        net.skip(2)


def sequence_shape(v, size):
    steps, batch = v.sizes.steps, v.sizes.batch
    return (steps, batch, size) if v.time_major else (batch, steps, size)


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
        "projection without bias": replace(plain, projection=5, projection_bias=False),
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
