"""Bodies of infer requests that are wrong, each with what its error says of the field."""

import numpy as np
from raw_http import tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)
PAIR = [tensor("x", X, "FP32"), tensor("y", X, "FP32")]


def given(**changed):
    """The first input, changed, beside a good second one."""
    row = PAIR[0] | changed
    return [{key: value for key, value in row.items() if value is not None}, PAIR[1]]


def raw_row(size, **changed):
    return given(data=None, parameters={"binary_data_size": size}, **changed)


WRONG = {
    "no JSON": (b"{", "the request: it is no JSON"),
    "nothing": (b"", "the request: it is no JSON"),
    "not UTF-8": (b'{"id":"\xff"}', "the request: its JSON is not UTF-8"),
    "deep": (b"[" * 100_000, "the request: its JSON is nested too deeply"),
    "a list": (b"[]", "the request: found a list, expected an object"),
    "a name twice": (b'{"inputs":[],"inputs":[]}', "an object has 'inputs' twice"),
    "a huge number": (b'{"inputs":' + b"9" * 5000 + b"}", "the request: it is no JSON"),
    "no inputs": ({}, "inputs: they are missing"),
    "inputs no list": ({"inputs": {}}, "inputs: found an object, expected a list"),
    "input no object": ({"inputs": [1]}, "inputs[0]: found a number, expected an object"),
    "no name": ({"inputs": [{}]}, "inputs[0].name"),
    "unknown": ({"inputs": given(name="w")}, "inputs: the model has no input 'w'"),
    "twice": ({"inputs": [PAIR[0], PAIR[0]]}, "inputs[1].name: input 'x' is named twice"),
    "missing": ({"inputs": PAIR[:1]}, "inputs: input 'y' is missing"),
    "no datatype": ({"inputs": given(datatype=None)}, "inputs[0] 'x'.datatype"),
    "odd datatype": ({"inputs": given(datatype="FP33")}, "inputs[0] 'x'.datatype: found 'FP33'"),
    "other datatype": (
        {"inputs": given(datatype="INT32", data=[0] * 6)},
        "input 'x': datatype INT32, expected FP32",
    ),
    "no shape": ({"inputs": given(shape=None)}, "inputs[0] 'x'.shape"),
    "negative shape": ({"inputs": given(shape=[-2, 3])}, "inputs[0] 'x'.shape: a size is no whole"),
    "fraction": ({"inputs": given(shape=[2.0, 3])}, "inputs[0] 'x'.shape: a size is no whole"),
    "truth": ({"inputs": given(shape=[True, 6])}, "inputs[0] 'x'.shape: a size is no whole"),
    "huge shape": ({"inputs": given(shape=[2**40, 2**40])}, "more elements than memory can hold"),
    "huge empty": ({"inputs": given(shape=[0, 2**62], data=[])}, "more elements"),
    "rank": ({"inputs": given(shape=[1] * 65)}, "65 dimensions, at most 64"),
    "other shape": ({"inputs": given(shape=[3, 2])}, "input 'x': shape [3, 2], expected [2,3]"),
    "other rank": ({"inputs": given(shape=[6])}, "input 'x': shape [6], expected [2,3]"),
    "few": ({"inputs": given(data=[1.0])}, "inputs[0] 'x'.data: 1 elements, expected 6"),
    "no data": ({"inputs": given(data=None)}, "inputs[0] 'x'.data: it is missing"),
    "data a text": ({"inputs": given(data="AAAA")}, "inputs[0] 'x'.data: found a text"),
    "texts": ({"inputs": given(data=["1"] * 6)}, "inputs[0] 'x'.data: '1' is no FP32"),
    "truths": ({"inputs": given(data=[True] * 6)}, "inputs[0] 'x'.data: True is no FP32"),
    "nothings": ({"inputs": given(data=[None] * 6)}, "inputs[0] 'x'.data: nothing is no FP32"),
    "beyond": ({"inputs": given(data=[1e39] * 6)}, "inputs[0] 'x'.data: a number is outside"),
    "ragged": ({"inputs": given(data=[[1, 2, 3], [4, 5]])}, "a list at depth 1 has not the length"),
    "half nested": ({"inputs": given(data=[[1, 2, 3], 4])}, "it is not nested as its shape"),
    "mixed": ({"inputs": given(data=[1, 2, 3, 4, 5, [6]])}, "a list is no FP32"),
    "outputs": ({"inputs": PAIR, "outputs": [{"name": "w"}]}, "the model has no output 'w'"),
    "output twice": ({"inputs": PAIR, "outputs": [{"name": "z"}] * 2}, "'z' is named twice"),
    "classes": (
        {"inputs": PAIR, "outputs": [{"name": "z", "parameters": {"classification": -1}}]},
        "outputs[0].parameters.classification",
    ),
    "binary": (
        {"inputs": PAIR, "outputs": [{"name": "z", "parameters": {"binary_data": 1}}]},
        "outputs[0].parameters.binary_data",
    ),
    "id": ({"inputs": PAIR, "id": 3}, "id: found a number, expected a text"),
    "parameters": ({"inputs": PAIR, "parameters": []}, "parameters: found a list"),
    "timeout": ({"inputs": PAIR, "parameters": {"timeout": -1}}, "parameters.timeout"),
    "priority": ({"inputs": PAIR, "parameters": {"priority": "1"}}, "parameters.priority"),
    "trace": ({"inputs": PAIR, "parameters": {"trireme_trace": 1}}, "parameters.trireme_trace"),
    "raw missing": ({"inputs": raw_row(24)}, "inputs[0] 'x': its 24 bytes end beyond the body"),
    "raw size": ({"inputs": raw_row(-1)}, "inputs[0] 'x'.parameters.binary_data_size"),
    "raw and JSON": (
        {"inputs": given(parameters={"binary_data_size": 24})},
        "inputs[0] 'x'.data: the tensor is there twice",
    ),
}
