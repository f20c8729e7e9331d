"""Wrong arguments of every public function end in a TriremeError that is a sentence."""

import inspect
import pathlib

import numpy as np
import pytest
from commands import save_small

import trireme
from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.runtime.eager import eager
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session import replay
from trireme.support.errors import GraphError, PlacementError, RunError, TriremeError

X = np.ones((1, 6, 6, 3), np.float32)
Z = np.empty((1, 6, 6, 4), np.float32)
WRONG = {
    "object": object(),
    "float": 2.5,
    "negative": -1,
    "text": "nonsense",
    "digits": "2",
    "bytes": b"\0",
    "none": None,
    "list": [object()],
    "mapping": {0: object()},
    "set": {3},
    "array": np.zeros((2, 3), ">f8"),
    "zero byte": "a\0b",
    "long": "a" * 5000,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small(tmp_path_factory.mktemp("model") / "small.trm")


@pytest.fixture(scope="module")
def session(model):
    with trireme.Session(model, threads=1, calibration=Calibration()) as made:
        yield made


@pytest.fixture(scope="module")
def costs():
    device = open_device("cpu", threads=1)
    yield CostModel({"cpu": device}, Calibration())
    device.close()


def public(session, model, costs, folder):
    """Every public function that takes more than names, with arguments that are right."""
    graph = trireme.load(model)
    quiet = {
        "calibration": Calibration(),
        "threads": 1,
        "execution_options": ExecutionOptions(model_cache=None),
    }
    build = GraphBuilder("built")
    x = build.input("x", TensorType((2, 3), "float32"))
    return {
        "Session": (trireme.Session, {"model": graph, **quiet}),
        "ExecutionOptions": (ExecutionOptions, {}),
        "PlacementOptions": (PlacementOptions, {}),
        "Replicas": (trireme.Replicas, {"model": graph, "count": 1}),
        "convert": (trireme.convert, {"source": model}),
        "load": (trireme.load, {"path": model}),
        "save": (trireme.save, {"graph": graph, "path": folder / "saved.trm"}),
        "place": (place, {"graph": session.graph, "costs": costs}),
        "explain": (trireme.explain, {"placement": session.placement}),
        "run": (session.run, {"feeds": {"x": X}, "out": {"z": Z}}),
        "run_nodes": (session.run_nodes, {"feeds": {"x": X}, "watch": print}),
        "run_traced": (session.run_traced, {"feeds": {"x": X}}),
        "run_in_order": (session.run_in_order, {"feeds": {"x": X}, "order": [0]}),
        "profile": (session.profile, {"feeds": {"x": X}, "runs": 1, "warmup": 0}),
        "stream": (lambda **given: list(session.stream(**given)), {"feeds": [{"x": X}]}),
        "kernels": (session.kernels, {}),
        "record": (replay.record, {"session": session, "feeds": {"x": X}}),
        "eager": (on_one, {"op": "relu", "device": "host"}),
        "tensor": (eager.tensor, {"data": [1.0]}),
        "input": (build.input, {"name": "x", "type": TensorType((2,), "float32")}),
        "constant": (build.constant, {"name": "c", "data": np.zeros(2, np.float32)}),
        "add_node": (build.add_node, {"op": "relu", "inputs": [x], "attrs": {}}),
        "open cpu": (open_quietly("cpu"), {"threads": 1}),
        "open npu": (open_quietly("npu"), {}),
        "open host": (open_quietly("host"), {}),
    }


def on_one(op, device="cpu", outputs=None, quants=()):
    return eager.run(op, [1.0], device=device, outputs=outputs, quants=quants)


def open_quietly(name):
    return lambda **given: open_device(name, **given).close()


PARAMETERS = {
    "stream": ["feeds", "depth"],
    "open cpu": ["threads", "isa", "cache_dir", "cores"],
    "open npu": ["spec", "nonsense"],
    "open host": ["states", "operators", "nonsense"],
}
NAMES = [
    "Session",
    "ExecutionOptions",
    "PlacementOptions",
    "Replicas",
    "convert",
    "load",
    "save",
    "place",
    "explain",
    "run",
    "run_nodes",
    "run_traced",
    "run_in_order",
    "profile",
    "stream",
    "kernels",
    "record",
    "eager",
    "tensor",
    "input",
    "constant",
    "add_node",
    "open cpu",
    "open npu",
    "open host",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_is_a_sentence(name, session, model, costs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    functions = public(session, model, costs, tmp_path)
    assert sorted(functions) == sorted(NAMES)
    function, right = functions[name]
    function(**right)
    known = PARAMETERS.get(name) or [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    wrong = []
    for parameter in known:
        for what, value in WRONG.items():
            try:
                made = function(**{**right, parameter: value})
                if isinstance(made, trireme.Session | trireme.Replicas):
                    made.close()
            except TriremeError as error:
                if not error.summary[:1].strip():
                    wrong.append(f"{parameter} {what}: no sentence: {error}")
            except Exception as error:
                wrong.append(f"{parameter} {what}: {error!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "option, value, sentence",
    [
        ("threads", "2", "threads is '2', expected a whole number or None"),
        ("threads", True, "threads is True, expected a whole number or None"),
        ("devices", "cpu", "devices is 'cpu', expected a list of texts or Devices"),
        ("batch", 2.0, "batch is 2.0, expected a whole number or None"),
        ("shapes", {"x": 3}, "shapes is {'x': 3}, expected a mapping of texts to lists of whole"),
        ("progress", 3, "progress is 3, expected a function"),
        ("execution_options", {}, "execution_options is {}, expected an ExecutionOptions"),
        ("placement_options", "cpu", "placement_options is 'cpu', expected a PlacementOptions"),
    ],
)
def test_sentences_of_wrong_options(option, value, sentence, model):
    with pytest.raises(RunError) as caught:
        trireme.Session(model, **{option: value})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        ("mmap", 1, "mmap is 1, expected True or False"),
        ("passes", "layout", "passes is 'layout', expected a list of texts or None"),
        ("execution", "sunken", "execution='sunken'\n  known: sunk, interactive"),
        ("subgraphs", None, "subgraphs is None, expected 'merged' or 'split'"),
    ],
)
def test_sentences_of_wrong_execution_options(field, value, sentence):
    with pytest.raises(RunError) as caught:
        ExecutionOptions(**{field: value})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        ("pins", "y=cpu", "pins is 'y=cpu', expected a mapping of anything to texts"),
        ("multi_device", "some", "multi_device='some'\n  known: significant, any"),
        ("objective", 3, "objective is 3, expected 'makespan' or"),
    ],
)
def test_sentences_of_wrong_placement_options(field, value, sentence):
    with pytest.raises(PlacementError) as caught:
        PlacementOptions(**{field: value})
    assert sentence in str(caught.value)


def test_numbers_of_numpy_are_numbers(model):
    trireme.Session(
        model, threads=np.int64(1), batch=np.int32(1), calibration=Calibration()
    ).close()


def test_a_pin_names_a_node_by_its_id(model):
    for pins in ({0: "cpu"}, {np.int64(0).item(): "cpu"}, {"#0": "cpu"}, {"z": "cpu"}):
        with trireme.Session(
            model, placement_options=PlacementOptions(pins=pins), calibration=Calibration()
        ) as session:
            assert session.graph.nodes[0].pin == "cpu"
    with pytest.raises(trireme.PlacementError, match="pin 99=cpu: no node is called '#99'"):
        trireme.Session(
            model,
            placement_options=PlacementOptions(pins={99: "cpu"}),
            calibration=Calibration(),
        )


def test_options_of_devices_are_known_ones():
    with pytest.raises(trireme.DeviceError, match="cpu: unknown option thread") as caught:
        open_device("cpu", thread=2)
    assert caught.value.facts[0].startswith("known: threads, isa, cache_dir")
    with pytest.raises(trireme.DeviceError, match="cpu: threads is '2', expected a whole number"):
        open_device("cpu", threads="2")


def test_inputs_that_are_no_arrays_by_name(session):
    for feeds, sentence in {
        "none": (None, "the inputs are a NoneType, expected arrays by name"),
        "a list": ([X], "the inputs are a list, expected arrays by name"),
        "a none": ({"x": None}, r"input 'x' is NoneType, expected float32\[1,6,6,3\]"),
        "ragged": ({"x": [[1], [1, 2]]}, "input 'x' is no array"),
        "objects": ({"x": X.astype(object)}, "input 'x' is an array of Python objects"),
    }.values():
        with pytest.raises(RunError, match=sentence):
            session.run(feeds)


def test_outputs_that_cannot_be_written(session):
    fixed = np.empty_like(Z)
    fixed.flags.writeable = False
    for out, sentence in (
        ({"z": fixed}, r"out\['z'\] is read-only"),
        ({"z": [1.0]}, r"out\['z'\] is a list"),
        ({"z": None}, r"out\['z'\] is None"),
        ([Z], "out is a list"),
    ):
        with pytest.raises(RunError, match=sentence):
            session.run({"x": X}, out)


@pytest.mark.parametrize("size", [6, 96])
def test_inputs_of_the_other_byte_order_are_converted(size):
    """Small ones are copied, large ones used in place; both are numbers, whatever their bytes."""
    b = GraphBuilder("order")
    x = b.input("x", TensorType((size, size), "float32"))
    graph = b.finish(b.add("relu", x, names=["y"]))
    array = np.random.default_rng(7).standard_normal((size, size)).astype(np.float32)
    with trireme.Session(graph, calibration=Calibration()) as made:
        (want,) = made.run({"x": array}).values()
        (found,) = made.run({"x": array.astype(">f4")}).values()
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(eager.relu(array.astype(">f4")).numpy(), want)


def test_a_builder_takes_ids_and_types():
    b = GraphBuilder("wrong")
    x = b.input("x", TensorType((2,), "float32"))
    for make, sentence in (
        (lambda: b.input("y", TensorType((-1,), "float32")), "dimension -1"),
        (lambda: b.input("y", TensorType(3, "float32")), "the shape is 3"),
        (lambda: b.input("y", TensorType((3,), "float31")), "unknown dtype 'float31'"),
        (lambda: b.input("y", 3), "the type is 3"),
        (lambda: b.constant("c", np.zeros(2, np.int8), 3), "the quantisation is 3"),
        (lambda: b.add("relu", 99), "no value of this graph has the id 99"),
        (lambda: b.add("relu", x, quants=[3]), "the quantisation is 3"),
        (lambda: b.add_node("relu", [x], None), "attributes are None"),
        (lambda: b.add_node("relu", [x], {}, outputs="2"), "relu: '2' outputs"),
        (lambda: b.add("relu", x, names="abc"), "relu: names is 'abc', expected a list of texts"),
        (lambda: b.add_node("relu", x, {}), "relu: inputs is 0, expected a list of"),
    ):
        with pytest.raises(GraphError, match=sentence):
            make()
    assert Quant((1.0,), (0,)).scale == 1.0


def test_names_of_files_that_cannot_be(tmp_path):
    for use in (trireme.convert, trireme.Session):
        with pytest.raises(trireme.ModelFileError, match="cannot be read: File name too long"):
            use("a" * 5000 + ".onnx")
        for name in ("a\0b.onnx", pathlib.Path("a\0b.trm")):
            with pytest.raises(TriremeError, match="has a zero byte and so names no file"):
                use(name)
