"""Damaged .trm, .tflite and .onnx files give a graph that keeps the rules, or a TriremeError.

Four thousand cases in all, in child processes of limited address space and time: no crash, no
hang, no unbounded memory, no other exception. A case is told by its format, seed and number.
"""

import importlib.util

import pytest
from lab.stress import mutations, seeds, tflite_seeds

from trireme.model_file import loads

pytest.importorskip("resource")
from lab.stress import bounded, damaged_files  # noqa: E402

SEED = 1
CASES = {
    "trm": ("trm", seeds.SEEDS["trm"], 900),
    "tflite": ("tflite", seeds.SEEDS["tflite"], 600),
    "onnx": ("onnx", seeds.SEEDS["onnx"], 500),
    "each field of a .tflite": ("tflite", lambda: [tflite_seeds.small_tflite()], 2000),
}
"""Format, seeds and count."""


@pytest.mark.parametrize("name", CASES)
def test_damaged_files(name):
    format, sound, count = CASES[name]
    if format == "onnx" and importlib.util.find_spec("trireme.converters.onnx") is None:
        pytest.skip("there is no ONNX converter")
    print("seed", SEED)
    command = ["-m", damaged_files.__name__, format, str(SEED), str(count), "0"]
    ends = bounded.outcomes(command, mutations.packed(sound()))
    assert len(ends) == count
    assert not {n: f"{end.kind} {end.text}" for n, end in ends.items() if end.is_bad}
    refused = sum(end.kind != "read" for end in ends.values())
    assert count // 4 < refused < count


def test_the_cases_reach_both_ends():
    """The fuzz is worth its time only if some damage is found late and some does no harm."""
    sound, read = seeds.trm_seeds(), loads
    ends = {"loaded": 0, "late": 0, "header": 0}
    for _, data in mutations.damaged_cases("trm", sound, SEED, 150):
        try:
            read(data)
            ends["loaded"] += 1
        except mutations_error() as error:
            ends["header" if "header" in str(error) else "late"] += 1
    assert min(ends.values()) > 5, ends


def mutations_error() -> type[Exception]:
    from trireme.support.errors import ModelFileError

    return ModelFileError
