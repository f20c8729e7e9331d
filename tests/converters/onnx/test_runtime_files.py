"""Files that ONNX Runtime's optimisers and quantisers write agree with ONNX Runtime."""

import logging
import sys
import types
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_single import answers_of, assert_same
from ort_integers import adds_exactly
from ort_models import HEADS, HIDDEN, SEED, bert, conv_net, inputs_of
from sweep import sweep

from trireme import Session
from trireme.converters.onnx import convert
from trireme.support.errors import ConvertError

FLOAT, ROUNDED = 1e-5, 0.02
"""Limits, relative to the largest value: of floats, and where values are rounded to 8 bits."""
NETS = {"conv": conv_net, "bert": bert}


@pytest.fixture(scope="module", params=NETS)
def net(request, tmp_path_factory):
    """A network as a path, its model and inputs."""
    print("seed", SEED)
    model = NETS[request.param]()
    path = tmp_path_factory.mktemp(request.param) / "model.onnx"
    onnx.save(model, path)
    return path, inputs_of(model, np.random.default_rng(SEED))


def saved(path, level):
    """The path of the model as a session of ONNX Runtime saves it."""
    options, out = onnxruntime.SessionOptions(), path.with_name(f"{path.stem}_{level}.onnx")
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath, options.log_severity_level = str(out), 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return out


def ops(path):
    """The ops of com.microsoft in a file, counted."""
    found = (n for n in onnx.load(path).graph.node if n.domain.startswith("com.microsoft"))
    return Counter(node.op_type for node in found)


def agrees(path, feeds, limit=FLOAT):
    """Compare a session on the cpu with ONNX Runtime on the same file, as it is."""
    wanted = answers_of(path.read_bytes(), feeds)
    with Session(path, devices=["cpu"], threads=1) as session:
        found = session.run(feeds)
    for name, right in wanted.items():
        assert_same(name, found[name], right, limit)


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"])
def test_a_file_that_a_session_saved(net, level):
    path, feeds = net
    out = saved(path, level)
    assert bool(ops(out)) == (level == "ORT_ENABLE_EXTENDED")
    agrees(out, feeds)


def test_a_file_saved_for_one_kind_of_cpu_is_refused_with_the_level_to_save_at(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(conv_net(), path)
    out = saved(path, "ORT_ENABLE_ALL")
    domains = {node.domain for node in onnx.load(out).graph.node}
    if "com.microsoft.nchwc" not in domains:
        pytest.skip("ONNX Runtime blocks no channels on this CPU")
    with pytest.raises(ConvertError, match="ops are not supported") as caught:
        convert(out)
    assert "ORT_ENABLE_EXTENDED" in caught.value.fix


MADE = ["bert_mini", "mobilenet_v2", "resnet18", "vit_tiny"]


@pytest.mark.slow
@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"])
@pytest.mark.parametrize("name", MADE)
def test_a_large_file_that_a_session_saved(made_models, tmp_path, name, level):
    model, path = onnx.load(made_models / f"{name}.onnx"), tmp_path / f"{name}.onnx"
    onnx.save(model, path)
    agrees(saved(path, level), inputs_of(model, np.random.default_rng(SEED)), 1e-4)


@pytest.fixture
def optimise_model(monkeypatch):
    """The transformer optimiser; it asks torch's version for CUDA, which a stand-in answers."""
    pytest.importorskip("sympy", reason="the transformer optimiser infers shapes with it")
    if "torch" not in sys.modules:
        stand_in, version = types.ModuleType("torch"), types.ModuleType("torch.version")
        stand_in.version, version.cuda = version, None
        monkeypatch.setitem(sys.modules, "torch", stand_in)
    monkeypatch.setattr(logging.getLogger("onnxruntime.transformers"), "disabled", True)
    from onnxruntime.transformers import optimizer

    return optimizer.optimize_model


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1, 2, 99])
def test_the_transformer_optimiser_on_a_large_file(made_models, optimise_model, tmp_path, level):
    path, out = made_models / "bert_mini.onnx", tmp_path / "optimised.onnx"
    made = optimise_model(
        str(path), model_type="bert", num_heads=4, hidden_size=256, opt_level=level
    )
    made.save_model_to_file(str(out))
    agrees(out, inputs_of(onnx.load(path), np.random.default_rng(SEED)), 1e-4)


@pytest.mark.parametrize("level", [0, 1, 2, 99])
def test_the_transformer_optimiser(optimise_model, tmp_path, level):
    print("seed", SEED)
    model = bert()
    path, out = tmp_path / "model.onnx", tmp_path / "optimised.onnx"
    onnx.save(model, path)
    made = optimise_model(
        str(path), model_type="bert", num_heads=HEADS, hidden_size=HIDDEN, opt_level=level
    )
    made.save_model_to_file(str(out))
    found = ops(out)
    assert found["SkipLayerNormalization"] >= 4 and (level or found["Attention"] == 2), found
    agrees(out, inputs_of(model, np.random.default_rng(SEED)))


DYNAMIC = [(dtype, then) for dtype in ("QInt8", "QUInt8") for then in ("", "ORT_ENABLE_EXTENDED")]


@pytest.mark.parametrize(("dtype", "then"), sweep(DYNAMIC, [DYNAMIC[0], DYNAMIC[3]]))
def test_quantize_dynamic(net, dtype, then):
    quantization = pytest.importorskip("onnxruntime.quantization")
    path, feeds = net
    out = path.with_name(f"dynamic_{dtype}.onnx")
    kind, few = getattr(quantization.QuantType, dtype), dtype == "QInt8" and not adds_exactly()
    quantization.quantize_dynamic(path, out, weight_type=kind, reduce_range=few)
    out = saved(out, then) if then else out
    if then and "mask" in feeds:
        assert ops(out)["DynamicQuantizeMatMul"] and ops(out)["MatMulIntegerToFloat"]
    agrees(out, feeds, ROUNDED)


class Samples:
    """The inputs that the static quantiser asks for."""

    def __init__(self, feeds):
        self.rest = [feeds]

    def get_next(self):
        return self.rest.pop() if self.rest else None


STATIC = [
    (form, then)
    for form in ("QDQ", "QOperator")
    for then in ("", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
]


@pytest.mark.parametrize(("form", "then"), sweep(STATIC, [STATIC[1], STATIC[5]]))
def test_quantize_static(net, form, then):
    quantization = pytest.importorskip("onnxruntime.quantization")
    path, feeds = net
    out = path.with_name(f"static_{form}.onnx")
    quantization.quantize_static(
        path, out, Samples(feeds), quant_format=getattr(quantization.QuantFormat, form)
    )
    out = saved(out, then) if then else out
    if any(node.domain == "com.microsoft.nchwc" for node in onnx.load(out).graph.node):
        with pytest.raises(ConvertError, match="nchwc"):  # float pools between integers
            convert(out)
        return
    agrees(out, feeds, 0.05)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize(("block", "symmetric"), [(16, False), (32, True), (128, False)])
def test_the_4_bit_quantiser(tmp_path, block, symmetric, level):
    module = pytest.importorskip(
        "onnxruntime.quantization.matmul_nbits_quantizer", reason="onnx_ir is not installed"
    )
    print("seed", SEED)
    model = bert()
    feeds = inputs_of(model, np.random.default_rng(SEED))
    quantiser = module.MatMulNBitsQuantizer(
        model, block_size=block, is_symmetric=symmetric, accuracy_level=level
    )
    quantiser.process()
    out = tmp_path / "nbits.onnx"
    quantiser.model.save_model_to_file(str(out))
    assert ops(out)["MatMulNBits"] == 12
    agrees(out, feeds, ROUNDED if level else FLOAT)
