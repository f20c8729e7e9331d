"""Every rule of the .trm file, broken by hand: the error names the file's field."""

import struct

import flatbuffers
import numpy as np
import pytest

import trireme.ir.op
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.op import Attr, OpDef
from trireme.model_file import dumps, layout, load, loads
from trireme.schema.generated import trireme_generated as fbs
from trireme.support.dtypes import ANY
from trireme.support.errors import ModelFileError

F32 = TensorType((2, 3), "float32")


@pytest.fixture(autouse=True)
def body_op(monkeypatch):
    """An op with a body, an array and a choice."""
    attrs = {
        "body": Attr("graph", None),
        "table": Attr("array", None),
        "flag": Attr("bool", False),
        "mode": Attr("str", "a", ("a", "b")),
        "size": Attr("int"),
    }
    op = OpDef(
        "test_body",
        "x",
        "",
        lambda x, **_: (x.type,),
        lambda x, **_: x,
        attrs=attrs,
        dtypes=(ANY,),
    )
    monkeypatch.setitem(trireme.ir.op._OPS, op.name, op)


def model() -> bytes:
    """Values 0 x, 1 w int8, 2 texts, 3 flags, 4 relu, 5 tanh; a body in node 2."""
    inner = GraphBuilder("inner")
    body = inner.finish(inner.add("relu", inner.input("i", F32)))
    b = GraphBuilder("outer")
    b.symbols["n"] = (1, 4)
    x = b.input("x", TensorType(("n", 3), "float32"))
    w = b.constant("w", np.arange(6, dtype=np.int8).reshape(2, 3), Quant((1, 2), (0, 0), 0))
    texts = b.constant("texts", np.array(["a", "b"], object))
    flags = b.constant("flags", np.array([True, False]))
    y = b.add("tanh", b.add("relu", x))
    table = np.ones(3, np.float32)
    z = b.add("test_body", y, body=body, table=table, size=2, after=(0,))
    return dumps(b.finish(z, w, texts, flags))


def reframed(graph: bytes, weights: bytes) -> bytes:
    header = layout.Header.of(graph, len(weights))
    gap = header.weights_offset - layout.HEADER_SIZE - len(graph)
    return header.encode() + graph + bytes(gap) + weights


def edited(edit) -> bytes:
    """The model after an edit of its tables, under a header that fits."""
    data = model()
    header = layout.read_header(data[:64], len(data))
    file = fbs.FileT.InitFromPackedBuf(data[64 : 64 + header.graph_size])
    edit(file)
    builder = flatbuffers.Builder(1024)
    builder.Finish(file.Pack(builder), layout.IDENTIFIER)
    return reframed(bytes(builder.Output()), data[header.weights_offset :])


def put(path: str, value):
    """An edit that sets a field: "graphs.1.values.0.name"."""

    def edit(file) -> None:
        *steps, last = path.split(".")
        owner = file
        for step in steps:
            owner = owner[int(step)] if step.isdigit() else getattr(owner, step)
        assert hasattr(owner, last), path
        setattr(owner, last, value)

    return edit


G = "graphs.1"
ATTR = f"{G}.nodes.2.attrs"  # body, flag, mode, size, table
BROKEN = {
    "no graph": (put("graphs", []), r"graphs: is empty"),
    "missing graphs": (put("graphs", None), r"graphs: is missing"),
    "missing name": (put(f"{G}.values.1.name", None), r"s\[1\]\.values\[1\]\.name: is missing"),
    "missing type": (put(f"{G}.values.1.tensorType", None), r"\[1\]\.tensor_type: is missing"),
    "unknown op": (put(f"{G}.nodes.0.op", "evil"), r"graphs\[1\]\.nodes\[0\]: unknown op 'evil'"),
    "unknown dtype": (put(f"{G}.values.1.tensorType.dtype", "int7"), r"values\[1\]: unknown dtype"),
    "rank": (put(f"{G}.values.1.tensorType.shape", [1] * 33), r"33 dimensions, at most 32"),
    "too large": (put(f"{G}.values.0.tensorType.shape", [2**40, 2**40]), r"takes \d+ bytes"),
    "hidden by zero": (put(f"{G}.values.0.tensorType.shape", [0, 2**62]), r"takes \d+ bytes"),
    "symbol index": (put(f"{G}.values.0.tensorType.shape", [-3, 3]), r"names symbol 1 of 1"),
    "rank and dimension": (put(f"{G}.values.0.tensorType.shape", [-(2**63), 3]), "stands alone"),
    "symbol dim": (put(f"{G}.values.1.tensorType.shape", [-2, 3]), r"has no size"),
    "symbol name": (put(f"{G}.symbols.0.name", "?"), r"graphs\[1\]\.symbols\[0\]: name"),
    "symbol bounds": (put(f"{G}.symbols.0.most", 0), r"symbols\[0\]: bounds 1 to 0"),
    "symbol least": (put(f"{G}.symbols.0.least", -1), r"symbols\[0\]: bounds -1"),
    "value id": (put(f"{G}.values.0.id", -7), r"values\[0\]: id -7 is negative"),
    "value twice": (put(f"{G}.values.1.id", 0), r"values: an id is used twice"),
    "buffer index": (put(f"{G}.values.1.buffer", 99), r"values\[1\]: buffer 99 of 4"),
    "other buffer": (put(f"{G}.values.1.buffer", 2), r"buffer 2 has 2 bytes, .* takes 6"),
    "strings as bytes": (put(f"{G}.values.1.buffer", 1), r"does not hold int8"),
    "bytes as strings": (put(f"{G}.values.2.buffer", 0), r"does not hold string"),
    "fewer strings": (put("buffers.1.strings", ["a"]), r"has 1 strings, string\[2\] takes 2"),
    "bool": (put(f"{G}.values.1.tensorType", fbs.TensorTypeT("bool", [6])), r"neither 0 nor 1"),
    "orphan": (put(f"{G}.values.0.id", 77), r"no value %0"),
    "no data": (put(f"{G}.values.1.buffer", None), r"values\[1\]: %1 'w' is never made"),
    "zero point": (put(f"{G}.values.1.tensorType.quant.zeroPoints", [128, 0]), r"zero point 128"),
    "scale nan": (put(f"{G}.values.1.tensorType.quant.scales", [float("nan"), 1.0]), r"'w'.*scale"),
    "scale zero": (put(f"{G}.values.1.tensorType.quant.scales", [0.0, 1.0]), r"'w'.*scale"),
    "scales": (put(f"{G}.values.1.tensorType.quant.scales", [1.0]), r"1 scales and 2 zero points"),
    "quant axis": (put(f"{G}.values.1.tensorType.quant.axis", 5), r"quantisation axis 5"),
    "quant float": (
        put(f"{G}.values.0.tensorType.quant", fbs.QuantT([1.0], [0])),
        r"cannot be quantised",
    ),
    "offset": (put("buffers.0.offset", 63), r"buffers\[0\]: offset 63 is not a multiple"),
    "outside": (put("buffers.0.offset", 2**63), r"buffers\[0\]: bytes 9223372036854775808"),
    "size": (put("buffers.0.size", 2**64 - 1), r"buffers\[0\]: bytes 0 to"),
    "overlap": (put("buffers.2.offset", 0), r"buffers\[2\]: bytes 0 to 2"),
    "both": (put("buffers.1.size", 4), r"buffers\[1\]: has both strings and bytes"),
    "input id": (put(f"{G}.nodes.0.inputs", [55]), r"nodes\[0\]: there is no value %55"),
    "input -2": (put(f"{G}.nodes.0.inputs", [-2]), r"nodes\[0\]: there is no value %-2"),
    "left out": (put(f"{G}.nodes.0.inputs", [-1]), r"relu .*input x is missing"),
    "inputs": (put(f"{G}.nodes.0.inputs", [0, 0]), r"2 inputs, expected \(x\)"),
    "output id": (put(f"{G}.nodes.0.outputs", [55]), r"nodes\[0\]: there is no value %55"),
    "outputs": (put(f"{G}.nodes.0.outputs", [4, 5]), r"2 outputs asked for"),
    "two producers": (put(f"{G}.nodes.1.outputs", [4]), r"never made|already made"),
    "graph input": (put(f"{G}.inputs", [0, 91]), r"\[1\]\.inputs\[1\]: there is no value %91"),
    "graph output": (put(f"{G}.outputs", [-1]), r"outputs\[0\]: there is no value %-1"),
    "constant input": (put(f"{G}.inputs", [0, 1]), r"both an input and a constant"),
    "input twice": (put(f"{G}.inputs", [0, 0]), r"an input is listed twice"),
    "type": (put(f"{G}.values.4.tensorType.dtype", "int32"), r"output %4 is int32.*float32"),
    "order": (
        lambda file: file.graphs[1].nodes.reverse(),
        r"is used before it is made|does not come",
    ),
    "node id": (put(f"{G}.nodes.1.id", 0), r"a node with this id came before"),
    "after": (put(f"{G}.nodes.2.after", [2]), r"waits for node #2"),
    "unknown attribute": (put(f"{ATTR}.1.name", "x"), r"attrs\[1\]: .* has no attribute 'x'"),
    "attribute twice": (put(f"{ATTR}.1.name", "body"), r"attrs\[1\]: 'body' is given twice"),
    "attribute missing": (lambda file: file.graphs[1].nodes[2].attrs.pop(3), r"'size' is required"),
    "kind": (put(f"{ATTR}.3.kind", 2), r"attrs\[3\]: 'size' is of kind float, expected int"),
    "kind 99": (put(f"{ATTR}.3.kind", 99), r"'size' is of kind none, expected int"),
    "none": (put(f"{ATTR}.3.kind", 0), r"'size' is of kind none, expected int"),
    "no number": (put(f"{ATTR}.3.number", None), r"attrs\[3\]: number is missing"),
    "no bool": (put(f"{ATTR}.1.number", 2), r"attrs\[1\]: number 2 is neither 0 nor 1"),
    "choice": (put(f"{ATTR}.2.text", "c"), r"mode='c' is not one of 'a', 'b'"),
    "no array type": (put(f"{ATTR}.4.tensorType", None), r"tensor_type is missing"),
    "array type": (put(f"{ATTR}.4.tensorType.shape", [-2]), r"names symbol 0 of 0"),
    "array size": (put(f"{ATTR}.4.tensorType.shape", [4]), r"has 12 bytes, .* takes 16"),
    "body itself": (put(f"{ATTR}.0.graph", 1), r"graph 1 does not come before"),
    "body outside": (put(f"{ATTR}.0.graph", 9), r"graph 9 does not come before"),
    "body unused": (put(f"{ATTR}.0.kind", 0), r"graphs\[0\]: is used by no node"),
    "body twice": (
        lambda file: file.graphs[1].nodes.append(file.graphs[1].nodes[2]),
        r"is used elsewhere",
    ),
}


def test_the_model_itself_is_fine():
    assert len(loads(edited(lambda file: None)).nodes) == 3


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_names_its_field(name, tmp_path):
    edit, message = BROKEN[name]
    data = edited(edit)
    with pytest.raises(ModelFileError, match=message):
        loads(data)
    path = tmp_path / "m.trm"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"^\S+m\.trm: "):
        load(path)


def test_headers():
    good = model()
    for start, form, value, message in (
        (0, "<B", 0, "not a .trm file"),
        (8, "<I", 2, r"header\.version: 2, expected 1"),
        (12, "<I", 0, r"header\.graph_crc32"),
        (16, "<Q", 2**62, r"header\.graph_size"),
        (16, "<Q", 7, r"header\.graph_size"),
        (24, "<Q", 64, r"header\.weights_offset"),
        (32, "<Q", 2**63, r"truncated"),
        (32, "<Q", 0, r"followed by something else"),
        (60, "<B", 1, r"header\.reserved"),
    ):
        bad = bytearray(good)
        struct.pack_into(form, bad, start, value)
        with pytest.raises(ModelFileError, match=message):
            loads(bytes(bad))
    for size in (0, 1, 8, 63, 64, 100, len(good) - 1):
        with pytest.raises(ModelFileError):
            loads(good[:size])
    with pytest.raises(ModelFileError, match="followed"):
        loads(good + b"x")


def test_tables_that_share_bytes_cannot_swell():
    """A hundred thousand offsets to one node of a thousand: 400 KB that would be gigabytes."""
    b = flatbuffers.Builder(1 << 20)
    name = b.CreateString("relu")

    def vector(items):
        b.StartVector(4, len(items), 4)
        for item in reversed(items):
            b.PrependUOffsetTRelative(item)
        return b.EndVector()

    fbs.AttrStart(b)
    fbs.AttrAddName(b, name)
    attrs = vector([fbs.AttrEnd(b)] * 1000)
    fbs.NodeStart(b)
    fbs.NodeAddOp(b, name)
    fbs.NodeAddAttrs(b, attrs)
    nodes = vector([fbs.NodeEnd(b)] * 100_000)
    fbs.GraphStart(b)
    fbs.GraphAddName(b, name)
    fbs.GraphAddNodes(b, nodes)
    graphs = vector([fbs.GraphEnd(b)])
    fbs.FileStart(b)
    fbs.FileAddGraphs(b, graphs)
    b.Finish(fbs.FileEnd(b), layout.IDENTIFIER)
    with pytest.raises(ModelFileError, match=r"nodes\[\d+\]\.attrs.*overlap"):
        loads(reframed(bytes(b.Output()), b""))


def test_text_that_is_not_utf8():
    data = model()
    size = struct.unpack_from("<Q", data, 16)[0]
    graph = data[64 : 64 + size].replace(b"outer", b"\xff\xfe\xfd\xfc\xfb")
    with pytest.raises(ModelFileError, match=r"graphs\[1\]\.name: not UTF-8"):
        loads(reframed(graph, data[layout.align(64 + size) :]))


def test_bodies_nest_only_so_deep():
    def nested(depth):
        b = GraphBuilder(f"level{depth}")
        x = b.input("x", F32)
        body = {"body": nested(depth - 1)} if depth else {}
        return b.finish(b.add("test_body", x, size=0, **body))

    assert loads(dumps(nested(layout.MAX_NESTING))).nodes[0].attrs["body"] is not None
    with pytest.raises(ModelFileError, match="nest deeper"):
        dumps(nested(layout.MAX_NESTING + 1))
