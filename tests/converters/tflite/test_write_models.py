"""Written TensorFlow Lite files of whole models: random, quantised, and compiled by Vela."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from float_graphs import encoder_block, samples_of
from lab.fuzz.tflite_graphs import grow_tflite
from litert import litert_run, litert_tensors
from zoo import zoo_path

import trireme
from trireme.converters.tflite.write import export
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret

pytest.importorskip("ai_edge_litert")
SEED = 20261125
SIDE = 12
"""The height and width of the images of random networks."""


def assert_written_back(seed):
    grown = grow_tflite(seed)
    data = export(trireme.convert(grown.content))
    for reference in (True, False):
        wanted = litert_run(grown.content, grown.feeds, reference=reference)
        found = litert_run(data, grown.feeds, reference=reference)
        for key, right in wanted.items():
            np.testing.assert_array_equal(found[key], right, err_msg=f"seed {seed}")


def test_random_files_are_written_back_with_their_bits():
    for seed in range(24):
        assert_written_back(seed)


@pytest.mark.slow
def test_many_random_files_are_written_back_with_their_bits():
    for seed in range(24, 400):
        assert_written_back(seed)


class RandomNetwork:
    """A random convolutional network in NCHW, as an ONNX file has it."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.builder = GraphBuilder(f"random_{seed}")

    def constant(self, *shape):
        spread = max(np.prod(shape[1:]), 1) ** 0.5
        data = self.rng.standard_normal(shape) / spread
        return self.builder.constant("w", data.astype(np.float32))

    def conv(self, x, count, kernel, groups=1, stride=1):
        depth = self.builder.type(x).dims[1] // groups
        pads = tuple(int(p) for p in self.rng.integers(0, 2, 4)) if kernel > 1 else (0,) * 4
        choices = ["", "relu", "relu6"]
        return self.builder.add(
            "conv",
            x,
            self.constant(count, depth, kernel, kernel),
            self.constant(count),
            strides=(stride, stride),
            pads=pads,
            dilations=(1, 1),
            groups=groups,
            layout="NCHW",
            activation=choices[self.rng.integers(3)],
        )

    def step(self, x):
        b, (_, channels, height, _) = self.builder, self.builder.type(x).dims
        kind = self.rng.integers(7)
        if kind == 0:
            return self.conv(x, int(self.rng.integers(2, 9)), 3, stride=1 + int(height > 6))
        if kind == 1:
            return self.conv(x, channels, 3, groups=channels)
        if kind == 2:
            return b.add("add", x, self.conv(x, channels, 1))
        if kind == 3:
            return b.add("concat", x, self.conv(x, 3, 1), axis=1)
        if kind == 4:
            return b.add(["sigmoid", "tanh", "hard_swish", "relu"][self.rng.integers(4)], x)
        if kind == 5:
            return b.add("mul", x, b.add("sigmoid", x))
        pool = ["max_pool", "average_pool"][self.rng.integers(2)]
        window = {"kernel": (2, 2), "strides": (1, 1), "dilations": (1, 1), "layout": "NCHW"}
        return b.add(pool, x, pads=(0,) * 4, **window)

    def graph(self):
        b = self.builder
        x = b.input("image", TensorType((1, 3, SIDE, SIDE), "float32"))
        x = self.conv(x, 6, 3)
        for _ in range(self.rng.integers(3, 9)):
            if min(b.type(x).dims[2:]) > 3:
                x = self.step(x)
        axes = b.constant("axes", np.array([2, 3]))
        pooled = b.add("reduce_mean", x, axes, keepdims=0)
        y = b.add("gemm", pooled, self.constant(5, b.type(pooled).dims[1]), trans_b=1)
        return b.finish(b.add("softmax", y, axis=-1, names=["y"]))


def quantised_random_network(seed):
    network = RandomNetwork(seed)
    shape = (1, 3, SIDE, SIDE)
    samples = [{"image": network.rng.standard_normal(shape).astype(np.float32)} for _ in range(4)]
    return trireme.quantize(network.graph(), samples, ranges="min_max"), samples


@pytest.mark.parametrize("seed", range(6))
def test_quantised_networks_have_the_bits_of_every_device(seed):
    made, samples = quantised_random_network(seed)
    (right,) = litert_run(export(made), samples[0]).values()
    for devices in (["cpu"], ["opencl", "cpu"], ["npu", "cpu"]):
        with trireme.Session(made, devices=devices) as session:
            (found,) = session.run(samples[0]).values()
        np.testing.assert_array_equal(found, right, err_msg=f"seed {seed} on {devices}")


@pytest.mark.parametrize("name", ["ad01_fp32", "resnet8_cifar10_f32", "vww_96_float"])
def test_a_float_model_of_the_zoo_quantised_here_has_the_bits_of_every_device(name):
    print("seed", SEED)
    model = trireme.convert(zoo_path(f"{name}.tflite"))
    samples = samples_of(model, 4, SEED)
    made = trireme.quantize(model, samples, ranges="min_max", repairs="none")
    feeds = {key: array[0] for key, array in samples_of(model, 1, SEED + 1).items()}
    (right,) = litert_run(export(made), feeds).values()
    for devices in (["cpu"], ["opencl", "cpu"], ["npu", "cpu"]):
        with trireme.Session(made, devices=devices) as session:
            (found,) = session.run(feeds).values()
        np.testing.assert_array_equal(found, right, err_msg=f"{name} on {devices}")


def one_node(graph, node, known):
    """The outputs of a node from known inputs, all by id."""
    values = {id: graph.values[id] for id in (*node.used, *node.outputs)}
    given = tuple(id for id in dict.fromkeys(node.used) if values[id].data is None)
    alone = replace(graph, inputs=given, outputs=node.outputs, nodes=(node,), values=values)
    return interpret(alone, {id: known[id] for id in given})


@pytest.mark.parametrize("products", ["integers", "float32"])
def test_each_op_of_a_transformer_agrees_from_litert_s_own_inputs(products):
    """Integers have LiteRT's bits. Floats between them are summed in another order there."""
    print("seed", SEED)
    net = encoder_block(SEED)
    samples = samples_of(net, 8, SEED)
    made = trireme.quantize(net, samples, ranges="min_max", repairs="none", products=products)
    data = export(made)
    feeds = {key: array[0] for key, array in samples_of(net, 1, SEED + 1).items()}
    theirs, graph = litert_tensors(data, feeds), trireme.convert(data)
    known, integers = {value.id: feeds[value.name] for value in graph.input_values()}, 0
    for node in graph.nodes:
        for value, found in one_node(graph, node, known).items():
            name, type = graph.values[value].name, graph.type(value)
            right = known[value] = theirs.get(name, found)
            if type.quant is not None:
                integers += node.op != "quantize"
                np.testing.assert_array_equal(found, right, err_msg=node.label)
            else:
                limit = 1e-5 * max(np.abs(right).max(), 1)
                np.testing.assert_allclose(found, right, 0, limit, err_msg=node.label)
    assert (integers >= 4) == (products == "integers")


def vela(path):
    """The numbers of operators on the CPU and on the NPU, by Arm's compiler for Ethos-U."""
    pytest.importorskip("ethosu.vela")
    command = [sys.executable, "-m", "ethosu.vela", str(path), "--output-dir", str(path.parent)]
    command += ["--accelerator-config", "ethos-u55-128"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return [int(re.search(rf"{kind} operators = (\d+)", text)[1]) for kind in ("CPU", "NPU")]


@pytest.mark.parametrize("seed", range(2))
def test_vela_puts_a_quantised_network_on_the_npu(tmp_path, seed):
    """All but swish, which has no operator and is looked up by CAST and GATHER."""
    network = RandomNetwork(seed)
    shape = (1, 3, SIDE, SIDE)
    samples = [{"image": network.rng.standard_normal(shape).astype(np.float32)} for _ in range(4)]
    made = trireme.quantize(network.graph(), samples, ranges="min_max", io="int8")
    path = tmp_path / "m.tflite"
    trireme.export(made, path)
    cpu, npu = vela(path)
    looked_up = sum(node.op == "swish" for node in made.nodes)
    assert cpu == 2 * looked_up and npu > 0


ZOO = ["ad01_int8", "kws_dscnn_int8", "resnet8_cifar10_int8", "vww_96_int8"]


@pytest.mark.parametrize("name", ZOO)
def test_vela_puts_all_of_a_model_of_the_zoo_on_the_npu(tmp_path, name):
    path = tmp_path / f"{name}.tflite"
    trireme.export(trireme.convert(zoo_path(path.name)), path)
    cpu, npu = vela(path)
    assert cpu == 0 and npu > 0
