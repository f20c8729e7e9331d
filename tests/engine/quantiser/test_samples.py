"""Sample inputs: every source gives the same ranges, and bad data have a sentence each."""

import re
import tracemalloc

import numpy as np
import pytest
from float_graphs import conv_net, samples_of

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.quantiser.samples import open_samples

NET = conv_net(3)
DATA = samples_of(NET, 9, 3)["x"]


def text_of(data):
    return str(trireme.quantize(NET, data, ranges="min_max"))


def test_every_source_gives_the_same_graph(tmp_path):
    want = text_of({"x": DATA})
    np.savez(tmp_path / "all.npz", x=DATA)
    np.savez_compressed(tmp_path / "packed.npz", x=DATA[:, 0])
    np.save(tmp_path / "columns.npy", np.asfortranarray(DATA))
    np.save(tmp_path / "swapped.npy", DATA.astype(">f4"))
    folder = tmp_path / "parts"
    folder.mkdir()
    for k, part in enumerate(np.split(DATA, 3)):
        np.savez(folder / f"{k}.npz", x=part)
    sources = {
        "array": DATA,
        "rows": DATA[:, 0],
        "feeds": [{"x": x} for x in DATA],
        "tuples": [(x,) for x in DATA],
        "generator": ({"x": x} for x in DATA),
        "function": lambda: iter(DATA),
        "float64": DATA.astype(np.float64),
        "npz": tmp_path / "all.npz",
        "packed": tmp_path / "packed.npz",
        "columns": tmp_path / "columns.npy",
        "swapped": tmp_path / "swapped.npy",
        "folder": str(folder),
    }
    for name, source in sources.items():
        assert text_of(source) == want, name


def test_a_file_is_read_sample_by_sample(tmp_path):
    """A file of many samples takes the memory of one."""
    np.savez(tmp_path / "many.npz", x=np.tile(DATA, (400, 1, 1, 1, 1)))
    feeds = open_samples(tmp_path / "many.npz", list(NET.input_values()), 0)
    assert feeds.total == 400 * len(DATA)
    tracemalloc.start()
    count = sum(1 for _ in feeds.feeds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == feeds.total
    assert peak < (tmp_path / "many.npz").stat().st_size / 10


def test_damaged_files_have_a_sentence(tmp_path):
    np.save(tmp_path / "whole.npy", DATA)
    np.savez(tmp_path / "whole.npz", x=DATA)
    for name, at in (("whole.npy", 900), ("whole.npz", 900), ("whole.npy", 20)):
        path = tmp_path / f"cut_{at}_{name}"
        path.write_bytes((tmp_path / name).read_bytes()[:-at] if at > 100 else b"?" * at)
        with pytest.raises(trireme.RunError, match="cannot be read as samples"):
            text_of(path)
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(trireme.RunError, match="it has no array in numpy's format"):
        text_of(tmp_path / "text.npz")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(trireme.RunError, match="it holds Python objects"):
        text_of(tmp_path / "objects.npy")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "needs sample inputs.*\n.*data="),
        ({"z": DATA}, "missing: x; not an input: z"),
        ({"x": DATA[:, :, :5]}, r"samples of input 'x' are float32\[9,1,5,12,3\]"),
        ([{"x": DATA[0]}, {"x": np.full_like(DATA[0], np.nan)}], "sample 1 of input 'x' holds NaN"),
        ([{"x": np.full_like(DATA[0], np.inf)}], "holds an infinity"),
        ([{"x": DATA[0].astype(np.int64)}], r"input 'x' is int64\[1,12,12,3\]"),
        ([], "the data hold no sample"),
        ({"x": DATA[:0]}, "the data hold no sample"),
        ("nowhere.npz", "nowhere.npz cannot be read as samples: No such file or directory$"),
        (7, "data is int, expected sample inputs"),
    ],
    ids=["none", "names", "shape", "nan", "infinity", "dtype", "empty", "no rows", "file", "kind"],
)
def test_bad_data_have_a_sentence(data, sentence):
    with pytest.raises(trireme.RunError) as caught:
        trireme.quantize(NET, data)
    assert re.search(sentence, str(caught.value)), str(caught.value)


def test_random_data_are_named():
    made = trireme.quantize(NET, "random", seed=4)
    assert made.quantization.source == "random numbers of seed 4"
    assert "random data" in made.name and "random numbers" in str(made.quantization)
    assert text_of("random") == text_of("random")


def test_few_samples_and_constant_values_are_warned_of():
    made = trireme.quantize(NET, {"x": np.zeros((2, 1, 12, 12, 3), np.float32)})
    warnings = "\n".join(made.quantization.warnings)
    assert "2 samples are few" in warnings and "'x' is 0 everywhere" in warnings
    with trireme.Session(made) as session:
        assert np.isfinite(session.run({"x": DATA[0]})["y"]).all()


def net_of(op, *more, x=None, **attrs):
    """One product, and then one node."""
    b = GraphBuilder("g")
    value = b.input("x", x or TensorType((2, 4), "float32"))
    w = b.constant("w", np.ones((4, 4), np.float32))
    y = b.add("fully_connected", value, w)
    return b.finish(b.add(op, y, *(b.constant("c", c) for c in more), **attrs))


def looped():
    b = GraphBuilder("body")
    x = b.input("v", TensorType((2, 4), "float32"))
    body = b.finish(b.add("relu", x))
    b = GraphBuilder("branches")
    x = b.input("x", TensorType((2, 4), "float32"))
    y = b.add("fully_connected", x, b.constant("w", np.ones((4, 4), np.float32)))
    c = b.add("greater", b.add("reduce_max", x, keepdims=0), b.constant("0", np.float32(0)))
    then, other = body, body
    return b.finish(b.add("if", c, y, then_branch=then, else_branch=other))


def quantised():
    b = GraphBuilder("q")
    kind = TensorType((2, 4), "int8", Quant((0.1,), (0,)))
    return b.finish(b.add("dequantize", b.input("x", kind)))


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (
            lambda: net_of("relu", x=TensorType(("n", 4), "float32")),
            "open shape.*\n.*--shape x=1,4",
        ),
        (quantised, "the model is quantised already"),
        (looped, "has a body, whose values have no ranges"),
        (lambda: net_of("non_zero"), "whose shape only a run can tell"),
    ],
    ids=["open", "quantised", "body", "data-dependent"],
)
def test_models_that_cannot_be_quantised_have_a_sentence(graph, sentence):
    with pytest.raises(trireme.GraphError) as caught:
        trireme.quantize(graph(), {"x": np.ones((9, 2, 4), np.float32)})
    assert re.search(sentence, str(caught.value)), str(caught.value)


def test_a_model_without_products_has_a_sentence():
    b = GraphBuilder("g")
    graph = b.finish(b.add("relu", b.input("x", TensorType((2, 4), "float32"))))
    with pytest.raises(trireme.GraphError, match="no node of 'g' can become integers"):
        trireme.quantize(graph, np.ones((9, 2, 4), np.float32))


def test_values_that_overflow_have_a_sentence():
    graph = net_of("exp")
    with pytest.raises(trireme.RunError, match="infinite or NaN, so it has no range"):
        trireme.quantize(graph, np.full((9, 2, 4), 100, np.float32))


def test_unknown_words_have_a_sentence():
    for option, word in (("scheme", "int7"), ("ranges", "narrow")):
        with pytest.raises(trireme.GraphError, match=f"unknown {option} '{word}'"):
            trireme.quantize(NET, DATA, **{option: word})
