"""Schemes of weights: codes in groups, native kernels, the error, and other quantisers beside."""

import itertools

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi._pybind_state import quantize_matmul_4bits, quantize_matmul_8bits

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.quantiser.blocks import rounded_blocks

SEED = 7
VOCABULARY, HIDDEN = 96, 64


def decoder(tied=True):
    """A table of rows, a residual block of two products, and a head of the same table."""
    rng = np.random.default_rng(SEED)

    def draw(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    b = GraphBuilder("decoder")
    ids = b.input("ids", TensorType((1, "seq"), "int64"))
    table = b.constant("table", draw(VOCABULARY, HIDDEN))
    x = b.add("gather", table, ids, axis=0, names=["embedding"])
    wide = b.add("fully_connected", x, b.constant("up", draw(4 * HIDDEN, HIDDEN)), names=["up_y"])
    back = b.constant("down", draw(HIDDEN, 4 * HIDDEN))
    bias = b.constant("bias", rng.standard_normal(HIDDEN).astype(np.float32))
    deep = b.add("fully_connected", b.add("gelu", wide), back, bias, names=["down_y"])
    total = b.add("add", x, deep)
    head = table if tied else b.constant("head", draw(VOCABULARY, HIDDEN))
    return b.finish(b.add("fully_connected", total, head, names=["logits"]))


@pytest.fixture(scope="module")
def net():
    return decoder()


def feeds_of(length, seed=SEED):
    return {"ids": np.random.default_rng(seed).integers(0, VOCABULARY, (1, length))}


def db(real, made):
    return 10 * np.log10(np.sum(real**2.0) / np.sum((real - made) ** 2.0))


def theirs(w, bits, group, symmetric):
    """The weights as ONNX Runtime's MatMulNBits quantiser rounds them."""
    columns, depth = w.shape
    blocks = depth // group
    codes = np.zeros((columns, blocks, group * bits // 8), np.uint8)
    scales, zeros = np.zeros(columns * blocks, np.float32), np.zeros(columns * blocks, np.uint8)
    if bits == 4:
        zeros = np.zeros(columns * -(-blocks // 2), np.uint8)
    quantise = {4: quantize_matmul_4bits, 8: quantize_matmul_8bits}[bits]
    quantise(codes, np.ascontiguousarray(w.T), scales, zeros, group, columns, depth, symmetric)

    def taken_apart(packed):
        return packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1)

    numbers = taken_apart(codes).reshape(columns, blocks, group).astype(np.float32)
    points = taken_apart(zeros).reshape(columns, -1)[:, :blocks, None].astype(np.float32)
    middle = np.float32(1 << (bits - 1))
    made = (numbers - (middle if symmetric else points)) * scales.reshape(columns, blocks, 1)
    return made.reshape(w.shape)


DRAWS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape),
    "skew": lambda rng, shape: rng.gumbel(size=shape),
    "of one sign": lambda rng, shape: rng.uniform(1, 2, shape),
}
CASES = list(itertools.product(DRAWS, (4, 8), (32, 128)))


@pytest.mark.parametrize(("draw", "bits", "group"), CASES)
def test_weights_have_no_less_signal_than_onnx_runtimes(draw, bits, group):
    w = DRAWS[draw](np.random.default_rng(SEED), (64, 256)).astype(np.float32)
    found = rounded_blocks(w, bits, group)
    numbers = found.codes.astype(np.float32) - found.zero_points()[..., None]
    made = (numbers * found.scales[..., None]).reshape(w.shape)
    assert db(w, made) == pytest.approx(10 * np.log10(found.signal / found.noise), abs=1e-3)
    best = max(db(w, theirs(w, bits, group, symmetric)) for symmetric in (True, False))
    assert db(w, made) >= best, f"seed {SEED}"


def test_rows_of_zeros_and_of_one_number_are_exact():
    w = np.zeros((3, 40), np.float32)
    w[1], w[2, 7] = 0.25, -3
    found = rounded_blocks(w, 4, 32)
    assert found.noise == pytest.approx(0, abs=1e-12) and np.isfinite(found.scales).all()


@pytest.mark.parametrize(("scheme", "least_db"), [("weights_int4", 15), ("weights_int8", 35)])
@pytest.mark.parametrize("group", [32, 64])
def test_a_decoder_runs_on_native_kernels(net, scheme, least_db, group):
    """Open lengths are served by one program, which has no node on the reference."""
    made = trireme.quantize(net, scheme=scheme, group=group)
    assert [n.op for n in made.nodes].count("matmul_nbits") == 3
    with trireme.Session(made, shapes={"ids": (1, "seq<=32")}, devices=["cpu"]) as session:
        for length in (1, 5, 32):
            feeds = feeds_of(length)
            (found,) = session.run(feeds).values()
            (real,) = run_reference(net, feeds).values()
            assert db(real, found) > least_db, f"seed {SEED}, {length}"
            (exact,) = run_reference(made, feeds).values()
            np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
        assert "polymorphic" in str(session.stages[0])
        kernels = str(session.profile(feeds_of(5), runs=1))
    assert "matmul_nbits" in kernels and "reference" not in kernels and "numpy" not in kernels


def test_the_report_and_the_file(net, tmp_path):
    made = trireme.quantize(net, scheme="weights_int4")
    rows = {one.name: one for one in made.quantization.weights}
    assert set(rows) == {"embedding", "up_y", "down_y", "logits"} and not made.quantization.floats
    up = rows["up_y"]
    zeros = HIDDEN * 4 * 2 if "zero points" in up.form else 0
    assert up.nbytes == HIDDEN * HIDDEN * 4 // 2 + HIDDEN * 4 * 2 * 4 + zeros
    assert up.float_nbytes == HIDDEN * HIDDEN * 4 * 4 and 18 < up.snr_db < 26
    trireme.save(net, tmp_path / "f.trm")
    trireme.save(made, tmp_path / "q.trm")
    sizes = [(tmp_path / name).stat().st_size for name in ("f.trm", "q.trm")]
    assert sizes[1] < 0.3 * sizes[0]
    assert str(trireme.load(tmp_path / "q.trm")) == str(made)
    again = trireme.quantize(net, scheme="weights_int4")
    trireme.save(again, tmp_path / "again.trm")
    assert (tmp_path / "again.trm").read_bytes() == (tmp_path / "q.trm").read_bytes()


def test_samples_measure_the_error(net):
    data = [feeds_of(8, seed) for seed in range(4)]
    made = trireme.quantize(net, data, scheme="weights_int4", shapes={"ids": (1, 8)})
    assert made.type(made.outputs[0]).shape == (1, "seq", VOCABULARY)
    (output,) = made.quantization.outputs
    signal = noise = 0.0
    for feeds in data:
        real, found = (run_reference(g, feeds)["logits"] for g in (net, made))
        signal, noise = signal + np.sum(real**2.0), noise + np.sum((real - found) ** 2.0)
    assert output.snr_db == pytest.approx(10 * np.log10(signal / noise), abs=0.01)
    assert "output logits" in str(made.quantization)


@pytest.mark.parametrize("scheme", ["weights_int4", "weights_int8"])
def test_onnx_runtime_runs_the_exported_file(net, tmp_path, scheme):
    made = trireme.quantize(net, scheme=scheme)
    path = tmp_path / "q.onnx"
    trireme.export(made, path)
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = feeds_of(6)
    want = run_reference(made, feeds)["logits"]
    np.testing.assert_allclose(theirs.run(None, feeds)[0], want, rtol=2e-3, atol=2e-3)
    again = trireme.convert(path)
    assert [n.op for n in again.nodes].count("matmul_nbits") == 3
    np.testing.assert_allclose(run_reference(again, feeds)["logits"], want, rtol=1e-5, atol=1e-5)


def test_kept_and_unfit_weights_have_a_reason(net):
    made = trireme.quantize(net, scheme="weights_int4", group=128, keep_float=["op:gather"])
    reasons = {one.name: one.reason for one in made.quantization.floats}
    assert reasons["embedding"] == "it was asked to stay float"
    assert reasons["up_y"] == "its depth of 64 is less than a group of 128"
    assert [one.name for one in made.quantization.weights] == ["down_y"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"group": 48}, "group is 48"),
        ({"scheme": "int8", "data": "random"}, "int8 has no groups"),
        ({"ranges": "min_max"}, "measures no ranges, so ranges has no meaning"),
        ({"repairs": ["smooth_quant"]}, "measures no ranges, so repairs has no meaning"),
        ({"keep_float": ["nobody"]}, "no node is called 'nobody'"),
        ({"keep_float": ["op:gather", "op:fully_connected"]}, "has weights that weights_int4"),
    ],
)
def test_wrong_options_have_a_sentence(net, options, sentence):
    with pytest.raises(trireme.GraphError, match=sentence):
        trireme.quantize(net, **{"scheme": "weights_int4", "group": 32} | options)
