"""The report of a quantisation in a .trm file: all of it comes back, and no path is in it."""

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from float_graphs import conv_net, samples_of

import trireme
from trireme.ir.quantization.stored import report_from, report_text
from trireme.model_file import dumps, loads

SEED = 9
NET = conv_net(SEED)
DATA = samples_of(NET, 12, SEED)
PLAIN = {"ranges": "min_max", "repairs": "none"}


@pytest.fixture(scope="module")
def placed():
    return trireme.quantize(
        NET, DATA, **PLAIN, explain=True, budget=30.0, metric="snr", soc="rk3588"
    )


def as_stored(report):
    return replace(report, source="", seconds={})


def test_all_of_a_report_comes_back(placed, tmp_path):
    whole = trireme.quantize(NET, DATA)
    weights = trireme.quantize(NET, scheme="dynamic")
    for made in (placed, whole, weights):
        path = tmp_path / "made.trm"
        trireme.save(made, path)
        for found in (trireme.load(path), trireme.convert(path), loads(dumps(made))):
            assert found.quantization == as_stored(made.quantization)
            assert dumps(found) == path.read_bytes()
    assert found.quantization.weights and weights.quantization.seconds
    assert placed.quantization.culprits and placed.quantization.front


def test_a_plain_graph_has_no_report():
    found = loads(dumps(NET))
    assert not hasattr(found, "quantization")


def test_equal_samples_give_equal_bytes_wherever_they_lie(tmp_path):
    made = [dumps(trireme.quantize(NET, DATA, **PLAIN))]
    for name in ("one/first.npz", "two/second.npz"):
        path = tmp_path / name
        path.parent.mkdir()
        np.savez(path, **DATA)
        quantised = trireme.quantize(NET, path, **PLAIN)
        assert quantised.quantization.source == path.name
        made.append(dumps(quantised))
    assert made[0] == made[1] == made[2]
    assert str(tmp_path).encode() not in made[1] and b"first.npz" not in made[1]


def test_a_file_says_that_samples_were_random():
    made = trireme.quantize(NET, "random", **PLAIN)
    assert loads(dumps(made)).quantization.source == "random numbers of seed 0"


def test_a_file_whose_report_is_none_is_refused(placed, monkeypatch):
    monkeypatch.setattr("trireme.ir.quantization.stored.report_text", lambda report: "{}")
    with pytest.raises(trireme.ModelFileError, match="quantization: is no report: .* no scheme"):
        loads(dumps(placed))


def test_numbers_that_are_not_finite_come_back(placed):
    report = placed.quantization
    odd = [math.inf, -math.inf, 1e-310, 0.1]
    rows = tuple(replace(one, snr_db=odd[k % 4]) for k, one in enumerate(report.tensors))
    made = replace(report, tensors=rows)
    assert report_from(report_text(made)).tensors == rows
    json.loads(report_text(made), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '"x"', "{" * 100_000, '{"scheme":3}', '{"nothing":1}'],
)
def test_a_text_that_is_no_report_is_refused(text):
    with pytest.raises(ValueError):
        report_from(text)


def test_a_damaged_report_is_refused_or_read(placed):
    """Each change of the JSON is read as a report that can be shown, or is a ValueError."""
    rng, text = random.Random(SEED), report_text(placed.quantization)
    odd = [None, 3, 10**400, -1.5, "x", [], {}, True]
    refused = 0
    for _ in range(200):
        data = json.loads(text)
        spot = data
        while isinstance(spot, (dict, list)) and spot:
            held = spot
            key = rng.choice(list(spot)) if isinstance(spot, dict) else rng.randrange(len(spot))
            spot = spot[key]
            if rng.random() < 0.3:
                break
        held[key] = rng.choice(odd)
        try:
            str(report_from(json.dumps(data)))
        except ValueError:
            refused += 1
    assert refused > 50
