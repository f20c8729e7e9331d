"""Damaged, hostile and unsupported ONNX files: each a typed error that names what is wrong."""

import pathlib
import random
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_peers import LIGHT

from trireme.converters.onnx import convert
from trireme.ir.interpreter import run_reference
from trireme.support.errors import ConvertError, ModelFileError, TriremeError

SEED = 20261121


def model(nodes, inputs=("x",), outputs=("y",), weights=(), opset=17, shape=(2, 3), **options):
    """A model of float32 inputs of one shape."""

    def info(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        list(nodes), "g", [info(n) for n in inputs], [info(n) for n in outputs], list(weights)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **options)


def node(op, inputs, outputs, **attrs):
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def refused(kind, source, *words, **options) -> str:
    """The message of the error that converting raises; it must hold these words."""
    data = source if isinstance(source, bytes | pathlib.Path) else source.SerializeToString()
    with pytest.raises(kind) as caught:
        convert(data, **options)
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def test_every_unsupported_op_is_listed_at_once():
    nodes = [node("Nope", f"v{i}" if i else "x", f"v{i + 1}", name=f"n{i}") for i in range(5)]
    nodes.append(helper.make_node("Strange", ["v5"], ["y"], domain="my.own"))
    text = refused(ConvertError, model(nodes), "2 ops are not supported")
    assert text.splitlines()[1:] == [
        "  Nope: 5 x (onnx:n0, onnx:n1, onnx:n2 and 2 more)",
        "  my.own.Strange: 1 x (onnx:Strange_5)",
        '  fix: python_ops={"ai.onnx::Nope": function} calls a Python operator instead',
    ]


@pytest.mark.parametrize("data", [b"", b"\x00" * 64, b"TFL3" * 9, b"{}", bytes(range(256))])
def test_what_is_not_onnx(data):
    refused(ModelFileError, data, "not an ONNX model")


def test_a_missing_file(tmp_path):
    refused(ModelFileError, tmp_path / "absent.onnx", "absent.onnx", "cannot be read")
    refused(ModelFileError, tmp_path, "cannot be read")


def test_cycle_missing_input_and_two_makers():
    cycle = [node("Add", "x b", "a", name="first"), node("Relu", "a", "b", name="second")]
    refused(ModelFileError, model([*cycle, node("Relu", "b", "y")]), "cycle", "first", "second")
    refused(ModelFileError, model([node("Add", "x gone", "y")]), "'gone' is never made")
    refused(ModelFileError, model([node("Relu", "x", "z")]), "output 'y' is never made")
    twice = [node("Relu", "x", "y", name="one"), node("Tanh", "x", "y", name="two")]
    refused(ModelFileError, model(twice), "'y'", "one", "two")


def test_nodes_out_of_order_are_sorted():
    graph = convert(model([node("Relu", "a", "y"), node("Tanh", "x", "a")]).SerializeToString())
    assert [n.op for n in graph.nodes] == ["tanh", "relu"]


def test_weights_that_do_not_fit_their_shape():
    weight = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    weight.dims[0] = 1 << 40
    refused(ModelFileError, model([node("Add", "x w", "y")], weights=[weight]), "'w'", "24 bytes")
    weight.dims[0] = -2
    refused(ModelFileError, model([node("Add", "x w", "y")], weights=[weight]), "negative")


def test_constants_that_would_not_fit_into_memory():
    sizes = numpy_helper.from_array(np.array([1 << 20, 1 << 20]), "n")
    graph = convert(model([node("ConstantOfShape", "n", "y")], weights=[sizes]).SerializeToString())
    assert not any(v.is_constant and v.type.nbytes > 1 << 20 for v in graph.values.values())


def test_functions_that_unfold_without_end():
    functions = [
        helper.make_function(
            "f",
            f"F{i}",
            ["a"],
            ["b"],
            [helper.make_node(f"F{i + 1}", ["a"], [f"t{j}"], domain="f") for j in range(20)]
            + [node("Identity", "t0", "b")],
            [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)],
        )
        for i in range(6)
    ]
    functions.append(
        helper.make_function(
            "f", "F6", ["a"], ["b"], [node("Relu", "a", "b")], [helper.make_opsetid("", 17)]
        )
    )
    bomb = model([helper.make_node("F0", ["x"], ["y"], domain="f")], functions=functions)
    start = time.process_time()
    refused(ModelFileError, bomb, "unfolds to 134,736,842 nodes", "f F0: 134,736,841")
    assert time.process_time() - start < 1, "the nodes were made before they were counted"


def test_a_function_that_calls_itself():
    loop = helper.make_function(
        "f",
        "F",
        ["a"],
        ["b"],
        [helper.make_node("F", ["a"], ["b"], domain="f")],
        [helper.make_opsetid("f", 1)],
    )
    bad = model([helper.make_node("F", ["x"], ["y"], domain="f")], functions=[loop])
    refused(ModelFileError, bad, "function F calls itself")


def external(tmp_path, location, **entries):
    """A path of a model whose weight is in a file at `location`."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=str(value))
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    path.write_bytes(model([node("Add", "x w", "y")], weights=[weight]).SerializeToString())
    return path


def test_external_data_in_the_folder(tmp_path):
    path = external(tmp_path, "w.bin", offset=8, length=24)
    (path.parent / "w.bin").write_bytes(b"12345678" + np.arange(6, dtype="<f4").tobytes())
    y = run_reference(convert(path), {"x": np.zeros((2, 3), np.float32)})["y"]
    assert y.tolist() == [[0, 1, 2], [3, 4, 5]]
    refused(ModelFileError, path.read_bytes(), "came as bytes")


def test_external_data_elsewhere_is_refused(tmp_path):
    outside = tmp_path / "secret.bin"
    outside.write_bytes(bytes(24))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "link").symlink_to(outside)
    for location in ("../secret.bin", str(outside), "link", "a/../../secret.bin", "", "a\0b"):
        refused(ModelFileError, external(tmp_path, location), "not inside the model's folder")
    refused(ModelFileError, external(tmp_path, "absent.bin"), "does not exist")


@pytest.mark.parametrize(
    "entries", [{"offset": 20}, {"offset": -4}, {"length": 99}, {"offset": "z"}]
)
def test_external_data_that_is_not_there(tmp_path, entries):
    path = external(tmp_path, "w.bin", **entries)
    (path.parent / "w.bin").write_bytes(bytes(24))
    refused(ModelFileError, path, "w.bin" if "z" in str(entries) else "'w'")


def test_an_opset_too_old():
    refused(ConvertError, model([node("Relu", "x", "y")], opset=5), "opset 5", "fix:")


def test_node_that_does_not_fit_is_named():
    bad = model([node("Concat", "x x", "y", axis=7, name="joint")])
    refused(ConvertError, bad, "onnx:joint", "x float32[2,3]")


def test_mutated_files_raise_typed_errors_or_convert():
    print("seed", SEED)
    rng = random.Random(SEED)
    data = (LIGHT / "light_squeezenet.onnx").read_bytes()
    for _ in range(150):
        bad = bytearray(data[: rng.choice([len(data), rng.randrange(len(data))])])
        for _ in range(rng.randrange(1, 9)):
            if bad:
                bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            convert(bytes(bad))
        except TriremeError as error:
            assert isinstance(error, ConvertError | ModelFileError), type(error)


def spoil(bad, rng: random.Random) -> None:
    """Change one thing of a parsed model that a damaged or hostile file may hold."""
    chosen, odd = rng.choice(bad.graph.node), [0, -1, 7, 1 << 31, -(1 << 62), 1 << 62]
    names = [name for n in bad.graph.node for name in (*n.input, *n.output)]
    kind = rng.randrange(6)
    if kind == 0 and chosen.attribute:
        del chosen.attribute[rng.randrange(len(chosen.attribute))]
    elif kind == 1 and chosen.attribute:
        attribute = rng.choice(chosen.attribute)
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(odd)
        attribute.i = rng.choice(odd)
    elif kind == 2 and chosen.attribute:
        rng.choice(chosen.attribute).type = rng.randrange(15)
    elif kind == 3 and chosen.input:
        chosen.input[rng.randrange(len(chosen.input))] = rng.choice([*names, ""])
    elif kind == 4:
        chosen.op_type = rng.choice(bad.graph.node).op_type
    else:
        tensor = rng.choice(bad.graph.input).type.tensor_type
        tensor.elem_type = rng.choice([1, 7, rng.randrange(28)])
        if tensor.shape.dim:
            rng.choice(tensor.shape.dim).dim_value = rng.choice(odd)


def test_spoilt_models_raise_typed_errors_or_convert():
    print("seed", SEED)
    rng = random.Random(SEED)
    whole = [onnx.load(LIGHT / f"light_{name}.onnx") for name in ("squeezenet", "shufflenet")]
    for _ in range(60):
        bad = onnx.ModelProto()
        bad.CopyFrom(rng.choice(whole))
        for _ in range(rng.randrange(1, 4)):
            spoil(bad, rng)
        try:
            convert(bad.SerializeToString())
        except TriremeError as error:
            assert isinstance(error, ConvertError | ModelFileError), type(error)
