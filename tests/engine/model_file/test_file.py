"""The .trm file: what is saved is what is loaded, mapped and not copied, and written atomically."""

import dataclasses
import errno
import os
import pathlib
import resource
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest

import trireme.ir.op
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Quant, TensorType
from trireme.ir.interpreter import run_reference
from trireme.ir.op import Attr, OpDef
from trireme.model_file import dumps, is_model_file, layout, load, loads, save, tables
from trireme.schema.generated import trireme_generated as fbs
from trireme.support import atomic
from trireme.support.dtypes import ANY, NAMES, numpy_dtype
from trireme.support.errors import GraphError, ModelFileError
from trireme.support.mapped import aligned
from trireme.tools import generate_schema

F32 = TensorType((2, 3), "float32")
KINDS = ("int", "float", "str", "bool", "ints", "floats", "strs", "array", "graph")


@pytest.fixture
def any_attrs(monkeypatch):
    """An op with an attribute of every kind, each with default None, and one effect."""
    op = OpDef(
        "test_attrs",
        "xs*",
        "",
        lambda *xs, **attrs: (F32,),
        lambda *xs, **attrs: xs[0],
        attrs={kind: Attr(kind, None, finite=False) for kind in KINDS},
        effect="any",
        dtypes=(ANY,),
    )
    monkeypatch.setitem(trireme.ir.op._OPS, op.name, op)


def small(name="small", scale=1.0) -> Graph:
    b = GraphBuilder(name)
    x = b.input("x", TensorType((2, 3), "float32"))
    w = b.constant("w", np.arange(6, dtype=np.float32).reshape(2, 3) * np.float32(scale))
    return b.finish(b.add("relu", b.add("tanh", x, source="test:tanh", pin="cpu")), w)


def same(a: Graph, b: Graph) -> None:
    """Every field of two graphs is equal, constants bit for bit, bodies too."""
    for field in ("name", "inputs", "outputs", "symbols"):
        assert getattr(a, field) == getattr(b, field), field
    assert sorted(a.values) == sorted(b.values)
    for key, value in a.values.items():
        other = b.values[key]
        assert (value.name, value.type) == (other.name, other.type)
        same_item(value.data, other.data)
    for node, other in zip(a.nodes, b.nodes, strict=True):
        for field in dataclasses.fields(node):
            if field.name != "attrs":
                assert getattr(node, field.name) == getattr(other, field.name)
        assert sorted(node.attrs) == sorted(other.attrs)
        for key, item in node.attrs.items():
            same_item(item, other.attrs[key])


def same_item(a, b) -> None:
    assert type(a) is type(b)
    if isinstance(a, Graph):
        same(a, b)
    elif isinstance(a, np.ndarray) and a.dtype != object:
        assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())
    elif isinstance(a, np.ndarray):
        assert (a.shape, a.tolist()) == (b.shape, b.tolist())
    else:
        assert repr(a) == repr(b)  # tells -0.0 from 0.0 and holds for NaN


def round_trip(graph: Graph) -> Graph:
    data = dumps(graph)
    loaded = loads(data, verify_weights=True)
    same(graph, loaded)
    assert dumps(loaded) == data == dumps(graph)
    return loaded


def test_a_small_graph_comes_back(tmp_path):
    graph, path = small(), tmp_path / "m.trm"
    save(graph, path)
    assert path.read_bytes() == dumps(graph)
    assert is_model_file(path.read_bytes()[:16])
    x = np.linspace(-9, 9, 6, dtype=np.float32).reshape(2, 3)
    expected = run_reference(graph, {"x": x})
    for loaded in (load(path), load(str(path), mmap=False), loads(path.read_bytes())):
        same(graph, loaded)
        results = run_reference(loaded, {"x": x})
        assert all(np.array_equal(results[k], expected[k]) for k in expected)
        assert str(loaded) == str(graph)


def test_every_kind_of_attribute_comes_back(any_attrs):
    b = GraphBuilder("kinds")
    x = b.input("x", F32)
    values = [
        {},
        {"int": -(2**63), "float": -0.0, "str": "", "bool": False, "ints": (), "floats": ()},
        {"int": 2**63 - 1, "float": float("nan"), "str": "ünï\0✓", "bool": True},
        {"ints": (2**63 - 1, -1), "floats": (float("-inf"), 0.1), "strs": ("", "a", "é")},
        {"strs": (), "array": np.array(5, np.int64), "graph": small("body")},
        {"array": np.zeros((2, 0, 3), np.float16)},
        {"array": np.array([["a", "ß"], ["", "d"]], object)},
    ]
    for attrs in values:
        x = b.add("test_attrs", x, **attrs)
    loaded = round_trip(b.finish(x))
    assert loaded.nodes[-1].after == (len(values) - 2,)


def test_every_dtype_comes_back():
    rng = np.random.default_rng(7)
    b = GraphBuilder("dtypes")
    for name in NAMES:
        if name == "string":
            data = np.array([["a", ""], ["ünï", "b\0c"]], object)
        else:
            data = rng.integers(0, 2, (3, 5)).astype(numpy_dtype(name))
        b.constant(name, data)
    for shape in ((), (0,), (4, 0, 2)):
        b.constant("shape", np.zeros(shape, np.float32))
        b.constant("texts", np.zeros(shape, object).astype(str).astype(object))
    loaded = round_trip(b.finish(*b.values))
    assert {value.type.dtype for value in loaded.values.values()} == set(NAMES)


def test_symbols_quantisation_and_absent_inputs_come_back():
    b = GraphBuilder("symbols")
    b.symbols["batch"] = (1, 8)
    quant = Quant((0.5,), (-3,))
    x = b.input("x", TensorType(("batch", "rows", 4), "int8", quant))
    y = b.add("relu", x, quants=[quant])
    per_axis = Quant((0.1, 0.2, 0.3), (0, 1, -128), 1)
    w = b.constant("w", np.ones((2, 3), np.int8), per_axis)
    loaded = round_trip(b.finish(y, w, b.input("u", TensorType(("?", 2), "float32"))))
    assert loaded.symbols == {"batch": (1, 8), "rows": (0, None)}


def test_ids_need_not_be_dense():
    graph = small()
    values = {10 * i: dataclasses.replace(v, id=10 * i) for i, v in graph.values.items()}
    nodes = tuple(
        dataclasses.replace(
            node,
            id=node.id + 5,
            inputs=tuple(10 * i for i in node.inputs),
            outputs=tuple(10 * i for i in node.outputs),
        )
        for node in graph.nodes
    )
    outputs = tuple(10 * i for i in graph.outputs)
    loaded = round_trip(Graph("sparse", (0,), outputs, nodes, values))
    assert list(loaded.values) == list(values)


def test_values_that_nothing_uses_are_left_out():
    b = GraphBuilder("dead")
    x = b.input("x", F32)
    b.constant("dead", np.zeros(100_000, np.float32))
    data = dumps(b.finish(b.add("relu", x)))
    assert len(data) < 1000 and len(loads(data).values) == 2


def test_weights_are_aligned_shared_and_mapped(tmp_path):
    b = GraphBuilder("weights")
    a = np.random.default_rng(1).standard_normal((64, 1000)).astype(np.float32)
    ids = [
        b.constant("a", a),
        b.constant("twin", a.copy()),
        b.constant("odd", np.ones(3, np.int8)),
        b.constant("bytes", a.reshape(-1).view(np.uint32)),
        b.constant("turned", a.T),
    ]
    path = tmp_path / "m.trm"
    save(b.finish(*ids), path)
    assert path.stat().st_size < 2.1 * a.nbytes
    loaded = load(path)
    arrays = [loaded.values[i].data for i in ids]
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    assert arrays[0].ctypes.data == arrays[1].ctypes.data == arrays[3].ctypes.data
    assert not any(array.flags.writeable or array.flags.owndata for array in arrays)
    with pytest.raises(ValueError):
        arrays[0].flags.writeable = True
    assert np.array_equal(arrays[4], a.T)
    assert f"{path}" in pathlib.Path("/proc/self/maps").read_text()


def test_a_loaded_graph_outlives_its_file_and_can_be_saved_over_it(tmp_path):
    path = tmp_path / "m.trm"
    save(small(scale=3), path)
    loaded = load(path)
    save(loaded, path)
    save(small(scale=4), path)
    path.unlink()
    same(loaded, small(scale=3))
    weights = next(value.data for value in loaded.values.values() if value.name == "w")
    assert weights.tolist() == [[0, 3, 6], [9, 12, 15]]


def test_more_than_2_gib_of_weights(tmp_path):
    """The offsets are 64-bit; the file is sparse, so that it takes neither disk nor time."""
    size = (1 << 31) + 64
    encoded = dumps(large_graph(64))
    header = layout.read_header(encoded[:64], len(encoded))
    table = fbs.FileT.InitFromPackedBuf(encoded[64 : 64 + header.graph_size])
    first, last = table.buffers
    first.size, last.offset = size, size
    big = next(v for v in table.graphs[0].values if v.name == b"big")
    big.tensorType.shape = [size]
    path = tmp_path / "big.trm"
    frame(path, table, size + 64)
    with path.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(b"\x07" * 64)
    loaded = load(path)
    assert loaded.values[0].type.nbytes == size
    assert loaded.values[1].data.tolist() == [7] * 64


def large_graph(size: int) -> Graph:
    b = GraphBuilder("big")
    big = b.constant("big", np.zeros(size, np.int8))
    return b.finish(big, b.constant("last", np.ones(64, np.int8)))


def frame(path, table, weights_size: int) -> None:
    """Write a file of a FileT with weights that are a hole."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(table.Pack(builder), layout.IDENTIFIER)
    graph = bytes(builder.Output())
    header = layout.Header.of(graph, weights_size)
    path.write_bytes(header.encode() + graph)
    os.truncate(path, header.file_size)


def test_the_schema_table_is_the_schema():
    """The reader's tables name the fields of the generated code, in slot order."""
    for name, fields in tables.TABLES.items():
        made = getattr(fbs, f"{name}T")()
        names = [field.name.replace("_t", "T").replace("_p", "P") for field in fields]
        assert list(vars(made)) == names, name
        cls = getattr(fbs, name)
        for field in fields:
            if field.form is tables.FieldForm.SCALAR and name != "Attr":
                default = getattr(made, field.name)
                assert default == field.default, (name, field.name)
        assert cls is not None


def test_the_generated_code_is_current():
    flatc = generate_schema.find_flatc()
    if flatc is None:
        pytest.skip("flatc is not installed")
    assert generate_schema.stale(flatc) == []


def test_the_generated_reader_sees_the_same():
    """An independent decoder, the generated code, agrees with the file."""
    data = dumps(small())
    file = fbs.File.GetRootAs(data, 64)
    graph = file.Graphs(0)
    assert graph.Name() == b"small" and graph.NodesLength() == 2
    assert graph.Nodes(0).Op() == b"tanh" and graph.Nodes(0).Pin() == b"cpu"
    offset, size = file.Buffers(0).Offset(), file.Buffers(0).Size()
    header = layout.read_header(data[:64], len(data))
    weights = data[header.weights_offset + offset :][:size]
    assert np.frombuffer(weights, np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    assert file.Buffers(0).Crc32() == zlib.crc32(weights)


def test_what_has_no_form_in_a_file_is_refused(any_attrs):
    b = GraphBuilder("bad")
    x = b.input("x", F32)
    with pytest.raises(ModelFileError, match="no form in a file"):
        dumps(b.finish(b.add("test_attrs", x, int=2**63)))
    c = GraphBuilder("objects")
    with pytest.raises(GraphError, match="Python object of type int, expected texts"):
        c.constant("c", np.array([1, None], object))


@pytest.mark.parametrize("when", ["open", "fsync", "replace"])
def test_a_failed_save_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, when):
    path = tmp_path / "m.trm"
    save(small(), path)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, when, fail)
    with pytest.raises(ModelFileError, match=r"m\.trm: cannot be written: No space left"):
        save(small(scale=2), path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.trm"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """A real short write: the file size limit stands for the full disk."""
    path = tmp_path / "m.trm"
    save(small(), path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = large_graph(1 << 20)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(ModelFileError, match="cannot be written: File too large"):
            save(big, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.trm"]


def test_saving_keeps_the_mode_and_follows_links(tmp_path):
    path, link = tmp_path / "m.trm", tmp_path / "link.trm"
    save(small(), path)
    path.chmod(0o640)
    link.symlink_to(path)
    save(small(scale=2), link)
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    same(load(path), small(scale=2))


@pytest.mark.parametrize("read", [load, lambda path: load(path, mmap=False)])
def test_paths_that_are_no_model(tmp_path, read):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "empty.trm").touch()
    (tmp_path / "text.trm").write_text("hello " * 100)
    for name, text in {
        "none.trm": "No such file",
        ".": "not a regular file",
        "fifo": "not a regular file",
        "empty.trm": "not a .trm file",
        "text.trm": "not a .trm file",
        "a\0b": "has a zero byte",
    }.items():
        with pytest.raises(ModelFileError, match=text):
            read(tmp_path / name)
    with pytest.raises(ModelFileError, match="not a regular file"):
        save(small(), fifo)
    with pytest.raises(ModelFileError, match="cannot be written"):
        save(small(), tmp_path / "no" / "folder.trm")


def test_a_damaged_weight_is_found_when_asked_for(tmp_path):
    path = tmp_path / "m.trm"
    data = bytearray(dumps(small()))
    data[-3] ^= 1
    path.write_bytes(data)
    load(path)
    with pytest.raises(ModelFileError, match=r"m\.trm: buffers\[0\]\.crc32"):
        load(path, verify_weights=True)


def test_the_bytes_do_not_depend_on_the_process():
    code = (
        "import sys, zlib; sys.path.insert(0, sys.argv[1])\n"
        "import test_file as t; print(zlib.crc32(t.dumps(t.small())))"
    )
    here = str(pathlib.Path(__file__).parent)
    runs = {
        subprocess.run(
            [sys.executable, "-c", code, here],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert runs == {f"{zlib.crc32(dumps(small()))}\n"}


@pytest.mark.timed
def test_loading_is_quick(tmp_path):
    """100 nodes in 30 ms."""
    b = GraphBuilder("chain")
    x = b.input("x", F32)
    for _ in range(50):
        x = b.add("relu", b.add("tanh", x))
    path = tmp_path / "m.trm"
    save(b.finish(x), path)
    load(path)
    best = min(timed(lambda: load(path)) for _ in range(3))
    assert best < 0.03, f"{best * 1e3:.1f} ms"


def timed(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def test_graphs_with_errors_are_graph_errors_before_they_are_files():
    b = GraphBuilder("g")
    with pytest.raises(GraphError):
        b.add("no_such_op", b.input("x", F32))


def test_constants_are_views_of_aligned_memory_that_is_read_only():
    data = dumps(small())
    raw = aligned(len(data))
    raw[:] = np.frombuffer(data, np.uint8)
    copied = loads(raw.data)
    raw.flags.writeable = False
    seen = loads(raw.data)
    shifted = aligned(len(data) + 1)[1:]
    shifted[:] = raw
    shifted.flags.writeable = False
    moved = loads(shifted.data)
    for made, shares in ((copied, False), (seen, True), (moved, False)):
        arrays = [value.data for value in made.values.values() if value.data is not None]
        assert arrays and all(np.shares_memory(one, raw) == shares for one in arrays if one.size)
        assert not any(one.flags.writeable for one in arrays)
