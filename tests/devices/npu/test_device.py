"""The NPU behind the device contract: refusals, submission, traces, estimates, descriptions."""

import pickle
import threading
from importlib.resources import files

import numpy as np
import pytest
from npu import Int8Builder, Run, feeds_of, supported_part
from sweep import sweep
from zoo import zoo_path

from trireme.backend.device import HOST, Buffer, host_alloc
from trireme.backend.refusal import rule_of
from trireme.backend.registry import open_device
from trireme.devices.npu.compiler.constraints import (
    CONSTRAINTS,
    sentence,
    sentences,
    supported_ops,
)
from trireme.devices.npu.spec import load_spec, parse_spec, spec_names
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.op import has_op
from trireme.support.errors import CompileError, DeviceError, RunError

SEED = 5
Q = Quant((0.05,), (3,))


@pytest.fixture(scope="module")
def device():
    opened = open_device("npu")
    yield opened
    opened.close()


def net(seed=SEED):
    b = Int8Builder(np.random.default_rng(seed))
    y = b.conv(b.feed(1, 15, 13, 8), 24, activation="relu")
    y = b.conv(y, 24, groups=24)
    b.middle = y
    y = b.op("sigmoid", y)
    return b, b.finish(b.op("reduce_mean", y, b.constant("a", np.array([1, 2])), keepdims=0))


def reason(device, shape, op, dtype="int8", quant=Q, inputs=(), out_quant=Q, **attrs):
    b = GraphBuilder("g")
    x = b.input("x", TensorType(shape, dtype, quant if dtype == "int8" else None))
    more = [b.constant("c", data, q) for data, q in inputs]
    out = out_quant if dtype == "int8" else None
    b.add_node(op, [x, *more], attrs, quants=[out])
    graph = b.finish(len(b.values) - 1)
    return device.unsupported_reason(graph, graph.nodes[0])


WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
REFUSED = {
    "the op must be one of the NPU's (here cum_sum)": lambda d: reason(
        d, (3,), "cum_sum", "float32", inputs=[(np.array(0), None)]
    ),
    "shapes must be known before the run (here int8[N,3]": lambda d: reason(d, ("N", 3), "relu"),
    "tensors must have elements": lambda d: reason(d, (0, 3), "relu"),
    "tensors must be of a dtype that the NPU has (here float32[3], it has float16, int8, uint8; "
    "open it with float32='float16'": lambda d: reason(d, (3,), "relu", "float32"),
    "int8 and uint8 tensors must be quantised": lambda d: reason(
        d, (3,), "relu", quant=None, out_quant=None
    ),
    "images must be channels-last (NHWC) "
    "(here NCHW; nearest: max_pool NHWC quantised int8, ": lambda d: reason(
        d, (1, 3, 8, 8), "max_pool", kernel=(2, 2), layout="NCHW", **WINDOW
    ),
    "(here no kernel for floor float16; "
    "nearest: floor quantised int8, floor quantised uint8)": lambda d: reason(
        d, (3,), "floor", "float16"
    ),
    "(here no kernel for div quantised int8; nearest: div float16, div float32)": lambda d: reason(
        d, (3,), "div", inputs=[(np.ones(3, np.int8), Q)]
    ),
    "windows have one or two spatial axes (here 3 axes)": lambda d: reason(
        d,
        (1, 4, 4, 4, 2),
        "max_pool",
        kernel=(1, 1, 1),
        strides=(1,) * 3,
        pads=(0,) * 6,
        dilations=(1,) * 3,
    ),
    "kernel sides must be within the machine's limit (here 65x1, the limit": lambda d: reason(
        d, (1, 70, 4, 2), "max_pool", kernel=(65, 1), **WINDOW
    ),
    "strides must be within the machine's limit (here (9, 1), the limit": lambda d: reason(
        d, (1, 70, 4, 2), "max_pool", kernel=(1, 1), **{**WINDOW, "strides": (9, 1)}
    ),
    "dilations must be within the machine's limit": lambda d: reason(
        d, (1, 99, 4, 2), "max_pool", kernel=(2, 1), **{**WINDOW, "dilations": (65, 1)}
    ),
    "(here mode 'cubic' (nearest and linear are supported))": lambda d: reason(
        d,
        (1, 4, 4, 2),
        "resize",
        inputs=[
            (np.zeros(0, np.float32), None),
            (np.zeros(0, np.float32), None),
            (np.array([1, 8, 8, 2]), None),
        ],
        mode="cubic",
    ),
    "(here axes [0, 2] are not neighbours)": lambda d: reason(
        d, (2, 3, 4), "reduce_mean", inputs=[(np.array([0, 2]), None)]
    ),
}


@pytest.mark.parametrize(("alpha", "words"), [(1.0, ""), (0.5, "alpha = 0.5 needs a constant b")])
def test_a_gemm_with_an_alpha_needs_constant_weights(alpha, words):
    b = GraphBuilder("gemm")
    inputs = [b.input(n, TensorType(dims, "float16")) for n, dims in (("a", (2, 4)), ("b", (4, 3)))]
    graph = b.finish(b.add("gemm", *inputs, alpha=alpha))
    device = open_device("npu")
    assert words in (device.unsupported_reason(graph, graph.nodes[0]) or "")
    assert bool(words) == (device.unsupported_reason(graph, graph.nodes[0]) is not None)
    device.close()


@pytest.mark.parametrize("words", REFUSED)
def test_refusals_are_sentences(device, words):
    found = REFUSED[words](device)
    assert found is not None
    assert words in found


def test_effects_and_control_flow_are_refused(device):
    b = GraphBuilder("g")
    b.input("x", TensorType((3,), "int8", Q))
    b.add_node("relu", [0], {}, quants=[Q])
    b.add_node("relu", [1], {}, quants=[Q], after=(0,))
    graph = b.finish(2)
    assert "ops with effects stay on the host" in device.unsupported_reason(graph, graph.nodes[1])


def test_every_device_says_that_control_flow_is_for_the_host(devices):
    """Rather than that it has no such op."""
    body = GraphBuilder("body")
    body = body.finish(body.add("relu", body.input("inner", TensorType((3,), "float32"))))
    b = GraphBuilder("outer")
    condition = b.input("condition", TensorType((), "bool"))
    x = b.input("x", TensorType((3,), "float32"))
    b.add("if", condition, x, then_branch=body, else_branch=body)
    b.add("assign", x, state="count")
    for device in devices.values():
        branch, effect = (device.unsupported_reason(b, node) for node in b.nodes)
        assert "control flow" in branch, device.spec.name
        assert "effect" in effect or "the host keeps it" in effect, device.spec.name


def test_what_fits_no_tile_is_refused():
    small = open_device("npu", sram_bytes=1024)
    found = reason(small, (1, 64, 64, 4), "reduce_mean", inputs=[(np.array([1, 2]), None)])
    assert found.startswith("the smallest tile of every step must fit SRAM (here ")
    small.close()


def test_moving_weights_of_a_conv_are_refused(device):
    b = Int8Builder(np.random.default_rng(SEED))
    x, w = b.feed(1, 4, 4, 3), b.feed(5, 1, 1, 3, quant=Quant((0.1,), (0,)))
    graph = b.finish(b.op("conv", x, w, **WINDOW))
    found = device.unsupported_reason(graph, graph.nodes[0])
    assert found == "the weight and bias of a conv must be constants (here weight)"


def test_constraints_are_printable():
    listed = sentences()
    assert len(listed) == len(CONSTRAINTS)
    for said, (constraint, ops) in zip(listed, CONSTRAINTS, strict=True):
        assert said.startswith(sentence(constraint))
        assert all(op in said for op in ops)
        assert "\n" not in said
    assert all(has_op(op) for op in supported_ops())


def test_compile_names_the_node_and_the_reason(device):
    b = GraphBuilder("g")
    b.input("x", TensorType((3,), "float32"))
    graph = b.finish(b.add("relu", 0, source="onnx:Relu_3"))
    with pytest.raises(CompileError, match=r"npu cannot run relu #0 \(onnx:Relu_3\): tensors"):
        device.compile([graph])


def test_one_submit_and_spans_that_add_up(device):
    b, graph = net()
    run = Run(device, graph, b.feeds)
    (out,) = graph.outputs
    np.testing.assert_array_equal(run.outputs[out], interpret(graph, b.feeds)[out])
    spans = run.spans
    assert [span.nodes for span in spans] == [(n.id,) for n in graph.nodes]
    assert all(span.clock == "virtual" for span in spans)
    assert spans[0].start_s == 0.0
    assert all(a.end_s == b.start_s for a, b in zip(spans, spans[1:], strict=False))
    assert sum(span.cycles for span in spans) == run.executable.timeline.cycles
    assert spans[-1].end_s == pytest.approx(
        run.executable.timeline.cycles / device.machine.clock_hz
    )
    for span in spans:
        assert 0 <= span.detail["mac_utilisation"] <= 1
        assert 0 < span.detail["sram_peak_bytes"] <= run.executable.sram_peak_bytes
    assert run.executable.sram_peak_bytes <= device.machine.sram.bytes
    assert spans[0].detail["dma_bytes"] >= 15 * 13 * 8
    assert "matrix" in run.executable.kernels[graph.nodes[0].id]


def test_each_node_has_the_peak_of_what_lives_while_it_runs(device):
    """A wide image shrinks at once; what comes after it needs a fraction of the task's peak."""
    b = Int8Builder(np.random.default_rng(SEED))
    x = b.conv(b.feed(1, 64, 64, 16), 16)
    x = b.conv(x, 16, kernel=8, stride=8, same=False)
    graph = b.finish(b.conv(b.conv(x, 16), 16))
    run = Run(device, graph, b.feeds)
    peaks = [span.detail["sram_peak_bytes"] for span in run.spans]
    wide, small = 64 * 64 * 16, 8 * 8 * 16
    assert peaks[0] >= wide and peaks[1] >= wide + small
    assert all(2 * small <= peak < wide / 2 for peak in peaks[2:]), peaks
    assert max(peaks) <= run.executable.sram_peak_bytes


def test_launch_does_not_wait(device):
    b, graph = net()
    run = Run(device, graph, b.feeds)
    gate = threading.Event()
    device.chip.submit(gate.wait)
    event = run.call.launch()
    assert not event.is_over
    gate.set()
    event.wait()
    assert list(event.spans()) == []


def test_launches_from_threads(device):
    """Four sessions on threads of their own share one machine."""
    wrong = []

    def work(seed):
        b, graph = net(seed)
        run = Run(device, graph, b.feeds)
        (out,) = graph.outputs
        for _ in range(5):
            data = {v: b.random(graph.type(v).dims) for v in graph.inputs}
            if not np.array_equal(run.launch(data)[out], interpret(graph, data)[out]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("sram_bytes", [4096, 1 << 20])
def test_every_intermediate_can_be_asked_for(sram_bytes):
    traced = open_device("npu", trace=True, sram_bytes=sram_bytes)
    b, graph = net()
    run = Run(traced, graph, b.feeds)
    want = {}
    interpret(graph, b.feeds, lambda node, made: want.update(zip(node.outputs, made, strict=True)))
    for value, array in want.items():
        np.testing.assert_array_equal(run.call.intermediate(value), array, f"value {value}")
    with pytest.raises(RunError, match="no trace of value %999"):
        run.call.intermediate(999)
    traced.close()


def test_without_trace_there_are_no_intermediates(device):
    b, graph = net()
    with pytest.raises(RunError, match="trace=True"):
        Run(device, graph, b.feeds).call.intermediate(b.middle)


def test_memory_is_private_and_limited(device):
    b, graph = net()
    (executable,) = device.compile([graph])
    mine = device.alloc(executable.graph.type(graph.inputs[0]).nbytes)
    with pytest.raises(RunError, match="in host, expected"):
        executable.bind([mine, host_alloc(24)], None)
    with pytest.raises(RunError, match="1 arguments, expected 2"):
        executable.bind([mine], None)
    with pytest.raises(DeviceError, match="bytes to or from a buffer of 4"):
        device.write(device.alloc(4), np.zeros(5, np.uint8))
    with pytest.raises(DeviceError, match="in host"):
        device.read(Buffer(HOST, np.zeros(4, np.uint8), 0, 4), np.zeros(4, np.uint8))
    with pytest.raises(DeviceError, match="do not fit its memory"):
        device.alloc(device.machine.dram.bytes + 1)


def test_buffers_at_offsets(device):
    b, graph = net()
    (executable,) = device.compile([graph])
    (value,), (out,) = graph.inputs, graph.outputs
    size = graph.type(value).nbytes
    arena = device.alloc(4096)
    x, y = arena.at(192, size), arena.at(2048, 24)
    call = executable.bind([x, y], None)
    device.write(x, b.feeds[value])
    call.launch().wait()
    got = np.empty((1, 24), np.int8)
    device.read(y, got)
    np.testing.assert_array_equal(got, interpret(graph, b.feeds)[out])


def test_a_closed_device_says_so():
    opened = open_device("npu")
    b, graph = net()
    run = Run(opened, graph, b.feeds)
    opened.close()
    with pytest.raises(DeviceError, match="closed"):
        run.call.launch()


VELA_CYCLES = {
    "ad01_int8": 201184,
    "kws_dscnn_int8": 58340,
    "resnet8_cifar10_int8": 141933,
    "mobilenet_v2_1.0_224_quant": 5480230,
    "tf2_mobilenet_v2_1.0_224_ptq": 5909811,
    "ssd_mobilenet_v1_quant": 6918597,
}
"""Vela 5.2.0, Ethos-U55-256. vww_96 is left out: Vela packs its weights twice as tightly."""


@pytest.mark.parametrize(
    "name",
    sweep(VELA_CYCLES, always=[n for n in VELA_CYCLES if not n.startswith(("ssd", "mobilenet"))]),
)
def test_zoo_on_ethos_bit_exact_and_within_fifteen_percent_of_vela(name):
    from trireme.converters.tflite.walk import convert

    graph = convert(zoo_path(f"{name}.tflite"))
    ethos = open_device("npu", spec="ethos_u55_256")
    region = supported_part(ethos, graph)
    assert len(region.nodes) >= len(graph.nodes) - 4
    feeds = feeds_of(region, np.random.default_rng(SEED))
    run = Run(ethos, region, feeds)
    assert run.executable.timeline.cycles == pytest.approx(VELA_CYCLES[name], rel=0.15)
    want = interpret(region, feeds)
    for value in region.outputs:
        np.testing.assert_array_equal(run.outputs[value], want[value], f"seed {SEED}")
    ethos.close()


@pytest.mark.parametrize("name", ["kws_dscnn_int8", "mobilenet_v2_1.0_224_quant"])
def test_estimates_agree_with_the_sunk_region(name):
    from trireme.converters.tflite.walk import convert

    graph = convert(zoo_path(f"{name}.tflite"))
    mobile = open_device("npu")
    region = supported_part(mobile, graph)
    (executable,) = mobile.compile([region])
    predicted = sum(mobile.estimate_s(region, node) for node in region.nodes)
    simulated = executable.timeline.cycles / mobile.machine.clock_hz
    assert predicted == pytest.approx(simulated, rel=0.2)


def test_descriptions_that_come_along():
    assert set(spec_names()) >= {"mobile", "ethos_u55_256", "systolic_32x32"}
    for name in spec_names():
        assert load_spec(name).name == name
    assert load_spec("default").name == "mobile"
    assert load_spec("ethos_u55_256").macs == 256


DAMAGE = {
    "matrix.rows = 'many' is not a whole number": ("rows = 64", "rows = 'many'"),
    "field clock_hz is missing": ("clock_hz = 1.0e9", ""),
    "unknown field matrix.colour": ("rows = 64", "rows = 64\ncolour = 3"),
    "matrix.dataflow = 'spiral'": ('dataflow = "dot"', 'dataflow = "spiral"'),
    "sram.bytes = 0 must be more than 0": ("bytes = 2097152", "bytes = 0"),
    "alignment = 48 is not a power of two": ("alignment = 64", "alignment = 48"),
    "matrix.rate.float16 is missing or 0": (", float16 = 0.5", ""),
    "is not TOML": ("[matrix]", "[matrix"),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_a_wrong_description_names_the_field(words):
    text = files("trireme.devices").joinpath("npu", "specs", "mobile.toml").read_text()
    with pytest.raises(DeviceError, match=r"NPU description mine.toml") as error:
        parse_spec(text.replace(*DAMAGE[words], 1), "mine.toml")
    assert words in str(error.value)


def test_options_are_checked(tmp_path):
    with pytest.raises(DeviceError, match="unknown NPU 'warp'"):
        open_device("npu", spec="warp")
    with pytest.raises(DeviceError, match="cannot be read"):
        open_device("npu", spec=tmp_path / "absent.toml")
    with pytest.raises(DeviceError, match="unknown float32 'double'"):
        open_device("npu", float32="double")
    with pytest.raises(DeviceError, match="has no float16"):
        open_device("npu", spec="ethos_u55_256", float32="float16")
    with pytest.raises(DeviceError, match="sram_bytes=3"):
        open_device("npu", sram_bytes=3)


def test_a_description_may_say_that_a_launch_takes_no_time():
    text = files("trireme.devices").joinpath("npu", "specs", "mobile.toml").read_text()
    free = text.replace("launch_s = 20e-6", "launch_s = 0.0")
    assert free != text and parse_spec(free, "mine.toml").host.launch_s == 0.0


def test_a_refusal_knows_its_rule(device):
    b = GraphBuilder("g")
    graph = b.finish(b.add("det", b.input("x", TensorType((4, 4), "float32"))))
    found = device.unsupported_reason(graph, graph.nodes[0])
    assert found == "the op must be one of the NPU's (here det)"
    assert rule_of(found) == "the op must be one of the NPU's"
    again = pickle.loads(pickle.dumps(found))
    assert (again, rule_of(again)) == (found, rule_of(found))
    assert rule_of("a sentence (here some)") == "a sentence (here some)"
