"""Long lists of numbers are read as json.loads reads them, with little memory."""

import json
import random
import time
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


def nested(rng, shape, space=""):
    if not shape:
        return str(rng.choice([rng.randint(-9, 9), round(rng.uniform(-1, 1), 6)]))
    return f"[{f'{space},'.join(nested(rng, shape[1:], space) for _ in range(shape[0]))}{space}]"


@pytest.mark.parametrize("shape", [(COUNT, 1), (1, COUNT), (100, 20, 10), (2, 5, 40, 50)])
def test_nested_lists_are_those_of_json(shape, monkeypatch):
    rng = random.Random(7)
    text = nested(rng, shape, rng.choice(["", "\n"]))
    monkeypatch.setattr(http_body, "SHORTEST", 1 << 60)
    body = body_of(text, "FP32", json.dumps(shape)[1:-1])
    slow = parse_infer("m", "", body).inputs["x"]
    monkeypatch.setattr(http_body, "SHORTEST", 1 << 15)
    monkeypatch.setattr(http_body, "MOST_VALUES", 100)  # json.loads may not have read it
    fast = parse_infer("m", "", body).inputs["x"]
    assert fast.shape == slow.shape == shape and fast.tobytes() == slow.tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_a_wrong_nesting_is_what_json_says_it_is(seed, monkeypatch):
    """Brackets and commas that are put in, taken out or moved at random."""
    print("seed", seed)
    rng = random.Random(seed)
    shape = rng.choice([(40, 5), (10, 4, 5), (200, 1)])
    text = list(nested(rng, shape))
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(1, len(text) - 1)
        marks = [i for i, one in enumerate(text[1:-1], 1) if one in "[],"]
        kind = rng.randrange(3)
        if kind == 0:
            text.insert(at, rng.choice("[],"))
        elif kind == 1:
            del text[rng.choice(marks)]
        else:
            text.insert(at, text.pop(rng.choice(marks)))
    numbers = read_numbers(memoryview("".join(text[1:-1]).encode()), np.dtype(np.float64), shape)
    try:
        right = np.array(json.loads("".join(text)), np.float64)
    except ValueError:
        right = None
    if right is None or right.shape != shape:
        assert numbers is None
    else:
        assert numbers.tolist() == right.reshape(-1).tolist()


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs":[' + b"[]," * 3_000_000 + b"[]]}",
        b'{"inputs":[' + (b"[" * 400 + b"]" * 400 + b",") * 15_000 + b"[]]}",
        b'{"inputs":[' + b'{"a":1},' * 1_000_000 + b"{}]}",
        b'{"inputs":' + b"[" * 10_000_000,
        b"{" + b",".join(b'"%d":0' % one for one in range(100_000)) + b',"9":0}',
    ],
)
def test_json_that_json_loads_would_take_seconds_for(text):
    """json.loads and a search for names that occur twice hold every thread up meanwhile."""
    began = time.thread_time()
    with pytest.raises(ServingError) as caught:
        parse_infer("m", "", text)
    assert caught.value.kind in ("too_large", "invalid")
    assert time.thread_time() - began < 1  # 2 to 6 s before; 0.03 to 0.1 s now
