"""Files that ask for more than a machine has end in an answer or in a typed error, soon."""

import subprocess
import sys
from pathlib import Path

import hostile_models
import pytest

from trireme.model_file.convert import convert
from trireme.passes.constants import constant_bytes, most_bytes
from trireme.passes.pipeline import optimise
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError


@pytest.fixture(scope="module")
def ends():
    """What each case ended in, tried in one process of bounded memory."""
    pytest.importorskip("resource")
    command = [sys.executable, str(Path(hostile_models.__file__))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = dict(line.split("\t", 1) for line in ran.stdout.splitlines())
    return found | {"": f"exit status {ran.returncode}: {ran.stderr[-2000:]}"}


@pytest.mark.parametrize("name", hostile_models.CASES)
def test_a_hostile_size_ends_in_an_answer_or_a_typed_error(ends, name):
    found = ends.get(name, f"no answer, {ends['']}")
    assert found.startswith("ran\t") or found.partition("\t")[0].endswith("Error"), found
    assert not found.startswith("untyped"), found


def test_folding_has_a_total():
    graph = convert(hostile_models.doubling(45, "constant"))
    assert constant_bytes(optimise(graph)) <= most_bytes(graph)


def test_threads_have_a_limit():
    with pytest.raises(DeviceError, match="5000 threads, expected 1 to 1024"):
        Session(hostile_models.one("Relu", {"x": [2]}), threads=5000)
