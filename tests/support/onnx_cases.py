"""ONNX's own node tests, run on the interpreter and through a Session."""

import functools
import warnings

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

import trireme.ops  # noqa: F401  (fills the registry)
from trireme.converters.onnx import convert
from trireme.ir.interpreter import interpret
from trireme.runtime.session import Session


@functools.cache
def node_cases() -> tuple:
    """All node tests of the installed onnx; takes seconds, so once a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(collect_testcases())


def ops_in(graph) -> set[str]:
    """The op types of a graph and of the bodies inside it."""
    found = set()
    for node in graph.node:
        found.add(node.op_type)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= ops_in(attribute.g)
    return found


def array(data) -> np.ndarray:
    if isinstance(data, onnx.TensorProto):
        return onnx.numpy_helper.to_array(data)
    return np.asarray(data)


def run_case(case) -> None:
    """Convert and interpret a case; raise AssertionError when an output is not as expected."""
    graph = convert(case.model.SerializeToString())
    names = [value.name for value in case.model.graph.input]
    by_name = {value.name: value.id for value in graph.input_values()}
    for inputs, outputs in case.data_sets:
        feeds = {
            by_name[name]: array(data)
            for name, data in zip(names, inputs, strict=True)
            if name in by_name
        }
        results = interpret(graph, feeds)
        for value, wanted in zip(graph.outputs, outputs, strict=True):
            assert_same(results[value], array(wanted), case)


def run_session_case(case) -> None:
    """Run a case from its bytes on the default devices; raise AssertionError as `run_case` does."""
    names = [value.name for value in case.model.graph.input]
    with Session(case.model.SerializeToString()) as session:
        fed = {value.name for value in session.inputs}
        for inputs, outputs in case.data_sets:
            given = dict(zip(names, inputs, strict=True))
            results = session.run({name: array(given[name]) for name in names if name in fed})
            for value, wanted in zip(session.outputs, outputs, strict=True):
                assert_same(results[value.name], array(wanted), case)


def assert_same(found, wanted, case) -> None:
    if wanted.dtype.kind in "OUST":
        assert (found.astype(str) == wanted.astype(str)).all()
        return
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if found.dtype.kind not in "biufc":
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=case.rtol, atol=case.atol)
