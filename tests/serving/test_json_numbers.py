"""Long lists of numbers are read as json.loads reads them, with little memory."""

import json
import random
import tracemalloc

import numpy as np
import pytest

from trireme.serving import http_body
from trireme.serving.errors import ServingError
from trireme.serving.http_body import parse_infer
from trireme.serving.json_numbers import hold_numbers, read_numbers

COUNT = 20_000


def body_of(data, datatype="FP64", count=COUNT):
    row = f'{{"name":"x","datatype":"{datatype}","shape":[{count}],"data":{data}}}'
    return f'{{"inputs":[{row}]}}'.encode()


def read_both(body, monkeypatch):
    """What the fast way and json.loads make of a body: an array, or the text of the error."""
    found = []
    for shortest in (1 << 15, 1 << 60):
        monkeypatch.setattr(http_body, "SHORTEST", shortest)
        try:
            found.append(parse_infer("m", "", body).inputs["x"])
        except ServingError as error:
            found.append(str(error))
    return found


def spelled(rng, value):
    if isinstance(value, int) or not value:  # json.loads takes the sign from -0, but not from -0.0
        return repr(value)
    return rng.choice([repr(value), f"{value:.17g}", f"{value:e}", f"{value:.3E}"])


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT8", "INT64", "UINT64", "UINT8"])
@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_those_of_json(datatype, seed, monkeypatch):
    print("seed", seed)
    rng = random.Random(seed)
    if datatype.startswith("FP"):
        most = 1e38 if datatype == "FP32" else 1e300
        values = [
            rng.choice([rng.gauss(0, 1), rng.uniform(-most, most), 0, -0.0, 5])
            for _ in range(COUNT)
        ]
    else:
        info = np.iinfo(datatype.lower())
        edge = [info.min, info.max, 0, rng.randint(info.min, info.max)] if seed else [0, 1, 99]
        values = [rng.choice(edge) for _ in range(COUNT)]
    space = rng.choice(["", " ", "\n\t", "  "])
    text = "[" + f"{space},{space}".join(spelled(rng, one) for one in values) + f"{space}]"
    fast, slow = read_both(body_of(text, datatype), monkeypatch)
    assert fast.dtype == slow.dtype and fast.tobytes() == slow.tobytes()
    if datatype == "FP64":
        assert fast.tobytes() == np.array(json.loads(text), np.float64).tobytes()


LONG = ",".join(["1"] * (COUNT - 1))
ODD = ["1,", "", "+1", "01", "0x1", ".5", "1.", "1e", "--1", "1 2", "null", "true", '"1"', "[1]"]
ODD += [
    "9" * 19,
    "9" * 400,
    "-9" + "0" * 18,
    "300",
    "1.5",
    "1e39",
    "1e400",
    "NaN",
    "Infinity",
    "/**/1",
]


@pytest.mark.parametrize("datatype", ["FP32", "INT8", "UINT64", "BOOL", "BYTES"])
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_number_is_refused_alike(odd, datatype, monkeypatch):
    for text in (f"[{LONG},{odd}]", f"[{odd},{LONG}]"):
        fast, slow = read_both(body_of(text, datatype), monkeypatch)
        if isinstance(slow, str):
            assert fast == slow
        else:
            assert fast.tobytes() == slow.tobytes()


def test_a_wrong_count_and_a_list_that_does_not_end(monkeypatch):
    fast, slow = read_both(body_of(f"[{LONG},1]", count=3), monkeypatch)
    assert fast == slow and "20000 elements, expected 3" in fast
    fast, slow = read_both(body_of(f"[{LONG},1")[:-3], monkeypatch)
    assert fast == slow and "no JSON" in fast


def test_texts_that_look_like_data_stay_texts():
    inside = '\\"data\\":[' + LONG + "]"
    body = body_of(f"[{LONG},1]")[:-1] + f',"id":"{inside}"}}'.encode()
    request = parse_infer("m", "", body)
    assert request.id == inside.replace("\\", "") and request.inputs["x"].size == COUNT


def test_a_text_is_never_taken_for_a_list():
    text, held = hold_numbers(memoryview(body_of(f"[{LONG},1]")))
    (name,) = held
    assert len(name) == 32 and name.encode() in text and len(text) < 200
    other = body_of(f'"{name}"').ljust(1 << 16)
    with pytest.raises(ServingError, match="found a text, expected a list"):
        parse_infer("m", "", other)


def test_memory():
    """Eight bytes a number and a few copies of the text, not an object each."""
    body = body_of("[" + ",".join(["0.123"] * 500_000) + "]", count=500_000)
    tracemalloc.start()
    array = parse_infer("m", "", body).inputs["x"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert array.size == 500_000 and peak < 4 * len(body)
    assert read_numbers(memoryview(b" 1 , -2,3 "), np.dtype(np.int64)).tolist() == [1, -2, 3]
