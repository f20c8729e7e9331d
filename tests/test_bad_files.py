"""Damaged .trm, .tflite and .onnx files give a graph that keeps the rules, or a TriremeError.

Two thousand cases in all, in child processes with limited address space and time: no crash, no
hang, no unbounded memory, no other exception. A case is told by its format, seed and number.
"""

import importlib.util
import pathlib
import re
import subprocess
import sys

import mutation_seeds
import mutations
import pytest

SEED = 1
COUNTS = {"trm": 900, "tflite": 600, "onnx": 500}


@pytest.mark.parametrize("format", COUNTS)
def test_damaged_files(format):
    if format == "onnx" and importlib.util.find_spec("trireme.converters.onnx") is None:
        pytest.skip("there is no ONNX converter")
    seeds, count = mutation_seeds.SEEDS[format](), COUNTS[format]
    child = subprocess.run(
        [sys.executable, str(pathlib.Path(mutations.__file__)), format, str(SEED), str(count)],
        input=mutations.packed(seeds), capture_output=True, timeout=240,
    )  # fmt: skip
    output = child.stdout.decode()
    last = re.findall(r"^case (\d+)$", output, re.M)[-1:]
    assert child.returncode == 0, f"{format} {SEED} {last}: {child.stderr.decode()[-3000:]}"
    assert last == [str(count - 1)]
    assert "PROBLEM" not in output, f"{format} {SEED}: " + output[output.index("PROBLEM") :][:9000]


def test_the_cases_reach_both_ends():
    """The fuzz is worth its time only if some damage is found late and some does no harm."""
    seeds, read = mutation_seeds.trm_seeds(), mutations.reader("trm")
    ends = {"loaded": 0, "late": 0, "header": 0}
    for _, data in mutations.damaged_cases("trm", seeds, SEED, 150):
        try:
            read(data)
            ends["loaded"] += 1
        except mutations_error() as error:
            ends["header" if "header" in str(error) else "late"] += 1
    assert min(ends.values()) > 5, ends


def mutations_error() -> type[Exception]:
    from trireme.errors import ModelFileError

    return ModelFileError
