"""Two-stage dispatch: device and layout, then dtype; misses name the nearest entries."""

import json

import numpy as np
import pytest
from forced import open_all

from trireme.backend.kernel_table import (
    ANY,
    PLAIN,
    QUANTISED,
    STORED_8,
    STORED_16,
    Form,
    KernelTable,
    form_of,
    layout_of,
)
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.op import all_ops, get_op, has_op
from trireme.runtime.eager import eager
from trireme.support.errors import PlacementError, TriremeError
from trireme.tools.cli import main
from trireme.tools.supported_ops import sample_graph

Q8 = Quant((0.5,), (0,))


def node_of(op, dtype="float32", quant=None, **attrs):
    b = GraphBuilder(op)
    x = b.input("x", TensorType((1, 4, 4, 4), dtype, quant))
    graph = b.finish(*b.add_node(op, [x], attrs, quants=[quant]))
    return graph, graph.nodes[0]


def filled():
    table = KernelTable("toy")
    table.add("max_pool", "pool", ["float32"], "NHWC")
    table.add("max_pool", "pool8", STORED_8, "NHWC")
    table.add(("relu", "tanh"), "map", ["float32"])
    table.add("relu", "stored map", [QUANTISED])
    table.add("transpose", "move")
    table.add("identity", "plain", [PLAIN])
    table.add("identity", "float", ["float32"])
    return table


WINDOW = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


@pytest.mark.parametrize(
    "op, dtype, quant, attrs, found",
    [
        ("max_pool", "float32", None, WINDOW | {"layout": "NHWC"}, "pool"),
        ("max_pool", "int8", Q8, WINDOW | {"layout": "NHWC"}, "pool8"),
        ("max_pool", "float32", None, WINDOW | {"layout": "NCHW"}, None),
        ("max_pool", "float16", None, WINDOW | {"layout": "NHWC"}, None),
        ("relu", "float32", None, {}, "map"),
        ("relu", "int8", Q8, {}, "stored map"),
        ("relu", "int8", None, {}, None),
        ("tanh", "int8", Q8, {}, None),
        ("transpose", "int64", None, {"perm": (0, 2, 1, 3)}, "move"),
        ("transpose", "uint8", Q8, {"perm": (0, 2, 1, 3)}, "move"),
        ("identity", "float32", None, {}, "float"),
        ("identity", "int32", None, {}, "plain"),
        ("identity", "int8", Q8, {}, None),
    ],
)
def test_the_layout_chooses_first_and_then_the_form(op, dtype, quant, attrs, found):
    assert filled().find(*node_of(op, dtype, quant, **attrs)) == found


@pytest.mark.parametrize(
    "op, dtype, attrs, sentence",
    [
        (
            "max_pool",
            "float32",
            WINDOW | {"layout": "NCHW"},
            "no kernel for max_pool NCHW float32; nearest: max_pool NHWC float32, max_pool NHWC "
            "quantised int8, max_pool NHWC quantised uint8",
        ),
        (
            "max_pool",
            "float16",
            WINDOW | {"layout": "NHWC"},
            "no kernel for max_pool NHWC float16; nearest: max_pool NHWC float32, max_pool NHWC "
            "quantised int8, max_pool NHWC quantised uint8",
        ),
        ("tanh", "float16", {}, "no kernel for tanh float16; nearest: tanh float32"),
        ("atanh", "float32", {}, "no kernel for atanh float32; nearest: tanh float32"),
        ("det", "float32", {}, "no kernel for det float32; toy has no det"),
    ],
)
def test_a_miss_names_the_nearest_entries(op, dtype, attrs, sentence):
    assert filled().miss(*node_of(op, dtype, **attrs)) == sentence


def test_an_entry_that_is_added_later_is_the_nearest_then():
    table, wanted = filled(), node_of("tanh", "float16")
    assert table.miss(*wanted).endswith("nearest: tanh float32")
    table.add("tanh", "map", ["bfloat16"])
    assert table.miss(*wanted).endswith("nearest: tanh float32, tanh bfloat16")


@pytest.fixture(scope="module")
def opened():
    devices, _ = open_all()
    yield devices
    for device in devices.values():
        device.close()


def samples():
    for op in all_ops():
        if op.name == "copy":
            continue
        for sample in op.samples(np.random.default_rng(0)):
            for half in (False, True):
                try:
                    yield sample_graph(op, sample, half)
                except TriremeError:
                    continue


def test_a_node_without_an_entry_is_never_said_to_run_on_a_kernel(opened):
    """The table is where devices look: what it misses they refuse, or note as the reference.

    Nodes of float16 are the exception: the cpu's kernels of float32 run those without an entry.
    """
    missed = dict.fromkeys(opened, 0)
    for graph in samples():
        (node,) = graph.nodes
        for name, device in opened.items():
            if get_op(node.op).alias or device.kernel_table.find(graph, node) is not None:
                continue
            missed[name] += 1
            native = device.unsupported_reason(graph, node) is None
            is_half = any(value.dtype == "float16" for value in graph.values.values())
            note = device.kernel_note(graph, node) or (name == "cpu" and is_half)
            assert not native or note, (name, graph)
    assert all(missed.values())


def test_every_line_is_of_an_op_and_says_its_layout_where_the_op_has_one(opened):
    for device in opened.values():
        for entry in device.kernel_table.entries():
            assert has_op(entry.op) and entry.device == device.spec.name
            if entry.op in ("conv", "max_pool", "average_pool", "lrn"):
                assert entry.layout == "NHWC", entry
        assert device.kernel_table.ops()


def test_eager_refuses_with_the_nearest_entries(opened):
    if "opencl" not in opened:
        pytest.skip("opencl is absent")
    x = np.zeros((1, 4, 6, 6), np.float32)
    with pytest.raises(PlacementError, match="max_pool NCHW float32; nearest: max_pool NHWC float"):
        eager.run("max_pool", x, **WINDOW, layout="NCHW", device=opened["opencl"])


def test_form_and_layout():
    graph, node = node_of("max_pool", "int8", Q8, layout="NHWC", **WINDOW)
    assert (layout_of(node), form_of(graph, node)) == ("NHWC", Form("int8", True))
    graph, node = node_of("relu")
    assert (layout_of(node), form_of(graph, node)) == (ANY, Form("float32", False))
    b = GraphBuilder("where")
    x = b.input("x", TensorType((3,), "float16"))
    graph = b.finish(b.add("where", b.input("c", TensorType((3,), "bool")), x, x))
    assert form_of(graph, graph.nodes[0]) == Form("float16", False)


def test_the_command_prints_the_tables(capsys):
    assert main(["supported-ops", "--table", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["kernels"]
    conv = next(row for row in rows if (row["device"], row["op"]) == ("cpu", "conv"))
    assert conv["layout"] == "NHWC" and set(conv["forms"]) == {
        "float32",
        *map(str, (*STORED_8, *STORED_16)),
    }
    assert main(["supported-ops", "--table"]) == 0
    assert "quantised int8" in capsys.readouterr().out


def test_a_quantised_miss_names_quantised_entries_first():
    said = filled().miss(*node_of("max_pool", "int8", Q8, **WINDOW | {"layout": "NCHW"}))
    nearest = "quantised int8, max_pool NHWC quantised uint8, max_pool NHWC float32"
    assert said == f"no kernel for max_pool NCHW quantised int8; nearest: max_pool NHWC {nearest}"
