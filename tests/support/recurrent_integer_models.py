"""TFLite files of int8 LSTMs and SVDF, with the integers that LiteRT takes for each part."""

from dataclasses import replace

import numpy as np
from recurrent_models import BATCH, INPUTS, RELU, SEED, TANH, Lstm, Net, sequence_shape
from tflite_builder import T, constant

INT8, INT16 = (-127, 127), (-32767, 32767)


def integers(net, limits, dtype, *shape, scale):
    data = net.rng.integers(limits[0], limits[1] + 1, shape).astype(dtype)
    return net.add(constant(data, *([scale] if scale else [])))


def int8_lstm(v, seed=SEED, hidden_zero=0, single=False, gain=1.0):
    """A full int8 lstm: weights int8, biases int32, norms and peepholes int16.

    gain: a factor of the input's scale; large ones saturate gates
    """
    batch, inputs, units = v.sizes.batch, v.sizes.inputs, v.sizes.units
    net, outputs = Net(np.random.default_rng(seed)), v.projection or units
    shape = (batch, inputs) if single else sequence_shape(v, inputs)
    net.x(*shape, dtype="int8", scales=(0.02 * gain,), zeros=(-9,))
    gates = 3 if v.coupled else 4
    for columns in (inputs, outputs):
        if v.coupled:
            net.skip()
        for _ in range(gates):
            integers(net, INT8, np.int8, units, columns, scale=float(net.rng.uniform(0.01, 0.03)))
    if v.peepholes:
        if v.coupled:
            net.skip()
        for _ in range(gates - 1):
            integers(net, INT16, np.int16, units, scale=2.0**-14)
    else:
        net.skip(3)
    if v.coupled:
        net.skip()
    for _ in range(gates):
        most = 400_000 if v.norms else 3000
        integers(net, (-most, most), np.int32, units, scale=2.0**-20 if v.norms else 0.0004)
    if v.projection:
        integers(net, INT8, np.int8, outputs, units, scale=0.01)
        if v.projection_bias:
            integers(net, (-900, 900), np.int32, outputs, scale=0.0001)
        else:
            net.skip()
    else:
        net.skip(2)
    scale, zero = (0.011, 7) if v.projection else (0.0078, 0)
    net.state(batch, outputs, dtype="int8", scales=(scale,), zeros=(zero,))
    net.state(batch, units, dtype="int16", scales=(2.0**-11,))
    if v.norms:
        if v.coupled:
            net.skip()
        for _ in range(gates):
            integers(net, INT16, np.int16, units, scale=3e-5)
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
        "projection without bias": replace(plain, projection=5, projection_bias=False),
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
