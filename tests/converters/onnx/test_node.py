"""ONNX's node tests: at least so many pass converted and interpreted, and the rest is known.

The cases take seconds to make, so all tests of them are in this file, which one worker runs.

What the references pass, a Session passes, from bytes on the default devices, but for the cases
that support/onnx_session_cases.toml lists by reason. A listed case must fail with the words of its
reason, so the list shrinks as reasons go.
"""

import fnmatch
import tomllib

import pytest
from onnx_cases import node_cases, ops_in, run_case, run_session_case
from sweep import sweep
from zoo import CHECKOUT

from trireme.converters.onnx import convert
from trireme.passes.pipeline import optimise

BATCHES = 12
LEAST_PASSING = 1832

WITHOUT_OPS = {
    "random numbers": "Bernoulli RandomUniformLike",
}
"""Ops that trireme lacks, by reason; cases that hold one fail."""
KNOWN = {
    "test_affine_grid_2d*_expanded": "the branches of an If differ in rank",
    "test_affine_grid_3d_align_corners_expanded": "the branches of an If differ in rank",
    "test_attention_?d_causal_bf16*": "one unit in the last place apart: rounded once here",
    "test_attention_4d_causal_fp16*": "the same",
    "test_attention_4d_*padded_kv_bf16*": "the same",
    "test_attention_4d_attn_mask_causal_bf16*": "the same",
    "test_dft_inverse*": "nearly 0 here, 2e-7 there, the limit is 1e-7",
    "test_if_opt": "a branch makes a sequence",
    "test_if_seq": "a branch makes a sequence",
    "test_loop1[36]_seq*": "a loop makes a sequence",
    "test_optional_has_element_empty_optional_input": "an optional input is fed",
    "test_resize_downsample_scales_*_align_corners": "sizes are rounded, as in ONNX Runtime",
    "test_scan_sum": "Scan of opset 8",
    "test_sequence_insert_at_front": "the position is fed",
    "test_sequence_map_*_expanded": "a loop makes a sequence",
    "test_split_to_sequence_[12]": "the split is fed",
    "test_training_dropout*": "training",
}
"""Other cases that fail, by name, with the reason."""
MAY_FAIL = {op for ops in WITHOUT_OPS.values() for op in ops.split()}


def may_fail(case) -> bool:
    if any(fnmatch.fnmatch(case.name, pattern) for pattern in KNOWN):
        return True
    return bool(ops_in(case.model.graph) & MAY_FAIL)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_node_cases(batch):
    wrong = []
    for case in node_cases()[batch::BATCHES]:
        if may_fail(case):
            continue
        try:
            run_case(case)
        except Exception as error:
            wrong.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)} cases fail\n" + "\n".join(wrong)


def test_enough_cases_must_pass():
    assert sum(not may_fail(case) for case in node_cases()) >= LEAST_PASSING


@pytest.mark.parametrize("batch", sweep(range(4), always=[0]))
def test_node_cases_optimised(batch, monkeypatch):
    """Every sixth of the cases that pass as they are, through every pass."""
    cases = [case for case in node_cases()[batch::24] if passes(case)]
    assert len(cases) > 50
    monkeypatch.setattr("onnx_cases.convert", lambda model: optimise(convert(model)))
    for case in cases:
        print(case.name)
        run_case(case)


def passes(case) -> bool:
    try:
        run_case(case)
    except Exception:
        return False
    return True


SESSION_BATCHES = 60
LISTED = tomllib.loads((CHECKOUT / "tests" / "support" / "onnx_session_cases.toml").read_text())
WORDS = {
    f"test_{name}": group["error"] for group in LISTED.values() for name in group["cases"].split()
}
"""What the error of a listed case says, by its name."""
MOST_LISTED = {"rounding": 3}


def trouble_with(case) -> str:
    """Return what is wrong with a case, "" where nothing is."""
    words = WORDS.get(case.name)
    try:
        run_session_case(case)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return "" if words is not None and words in said else said
    return "" if words is None else f"passes, and is listed as a case that says {words!r}"


@pytest.mark.parametrize("batch", sweep(range(SESSION_BATCHES), always=[0]))
def test_node_cases_through_a_session(batch, no_calibration):
    cases = [case for case in node_cases()[batch::SESSION_BATCHES] if not may_fail(case)]
    wrong = [f"{case.name}: {said}" for case in cases if (said := trouble_with(case))]
    assert not wrong, f"{len(wrong)} of {len(cases)} cases are wrong\n" + "\n".join(wrong)


def test_the_list_names_cases_that_there_are_and_does_not_grow():
    known = {case.name for case in node_cases() if not may_fail(case)}
    assert WORDS.keys() <= known
    counts = {name: len(group["cases"].split()) for name, group in LISTED.items()}
    assert counts == MOST_LISTED
