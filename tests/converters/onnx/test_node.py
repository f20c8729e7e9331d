"""ONNX's node tests: all pass but those that support/onnx_known.py lists by reason.

The cases take seconds to make, so all tests of them are in this file, which one worker runs. Each
runs on the references, and from bytes through a Session on the default devices. A listed case must
fail with the words of its reason, so the list shrinks as reasons go.
"""

import pytest
from onnx_cases import node_cases, run_case, run_session_case
from onnx_known import KNOWN, MOST_KNOWN, known
from sweep import sweep

from trireme.converters.onnx import convert
from trireme.passes.pipeline import optimise

BATCHES = 12


RUN = {"references": run_case, "sessions": run_session_case}


def trouble_with(case, way) -> str:
    """Return what is wrong with a case, "" where nothing is."""
    line = known(case.name, way)
    try:
        RUN[way](case)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return "" if line is not None and line.error in said else said
    return "" if line is None else f"passes, and is listed: {line.reason}"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_node_cases(batch):
    cases = node_cases()[batch::BATCHES]
    wrong = [f"{c.name}: {said}" for c in cases if (said := trouble_with(c, "references"))]
    assert not wrong, f"{len(wrong)} cases are wrong\n" + "\n".join(wrong)


def test_the_list_names_cases_that_there_are_and_does_not_grow():
    names = [case.name for case in node_cases()]
    for line in KNOWN:
        assert any(map(line.holds, names)), line
    assert sum(known(name, "sessions") is not None for name in names) == MOST_KNOWN


@pytest.mark.parametrize("batch", sweep(range(4), always=[0]))
def test_node_cases_optimised(batch, monkeypatch):
    """Every sixth of the cases that pass as they are, through every pass."""
    cases = [case for case in node_cases()[batch::24] if known(case.name, "references") is None]
    assert len(cases) > 50
    monkeypatch.setattr("onnx_cases.convert", lambda *a, **o: optimise(convert(*a, **o)))
    for case in cases:
        print(case.name)
        run_case(case)


SESSION_BATCHES = 60


@pytest.mark.parametrize("batch", sweep(range(SESSION_BATCHES), always=[0]))
def test_node_cases_through_a_session(batch, no_calibration):
    cases = node_cases()[batch::SESSION_BATCHES]
    said = {case.name: trouble_with(case, "sessions") for case in cases}
    wrong = [f"{name}: {trouble}" for name, trouble in said.items() if trouble]
    assert not wrong, f"{len(wrong)} of {len(cases)} cases are wrong\n" + "\n".join(wrong)
