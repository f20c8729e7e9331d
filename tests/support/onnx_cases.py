"""ONNX's own node tests, run on the interpreter and through a Session."""

import functools
import warnings

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

import trireme.ops  # noqa: F401  (fills the registry)
from trireme.converters.onnx import convert
from trireme.ir.interpreter import interpret
from trireme.runtime.session.session import Session


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


def arrays(values, data) -> dict[str, np.ndarray]:
    """The arrays of a case's inputs or outputs by name; of a sequence each element's."""
    found = {}
    for value, given in zip(values, data, strict=True):
        if isinstance(given, list):
            found |= {f"{value.name}[{i}]": np.asarray(one) for i, one in enumerate(given)}
        else:
            found[value.name] = array(given)
    return found


def element_shapes(case) -> dict[str, tuple[int, ...]]:
    """The shapes of the elements of sequences, which say how many there are."""
    first = arrays(case.model.graph.input, case.data_sets[0][0])
    return {name: one.shape for name, one in first.items() if name.endswith("]")}


def run_case(case) -> None:
    """Convert and interpret a case; raise AssertionError when an output is not as expected."""
    graph = convert(case.model.SerializeToString(), shapes=element_shapes(case))
    by_name = {value.name: value.id for value in graph.input_values()}
    for inputs, outputs in case.data_sets:
        given = arrays(case.model.graph.input, inputs)
        feeds = {by_name[name]: one for name, one in given.items() if name in by_name}
        results = interpret(graph, feeds)
        wanted = arrays(case.model.graph.output, outputs)
        for value, right in zip(graph.outputs, wanted.values(), strict=True):
            assert_same(results[value], right, case)


def run_session_case(case) -> None:
    """Run a case from its bytes on the default devices; raise AssertionError as `run_case` does."""
    model = case.model.SerializeToString()
    with Session(model, shapes=element_shapes(case) or None) as session:
        fed = {value.name for value in session.inputs}
        for inputs, outputs in case.data_sets:
            given = arrays(case.model.graph.input, inputs)
            results = session.run({name: one for name, one in given.items() if name in fed})
            wanted = arrays(case.model.graph.output, outputs)
            assert [value.name for value in session.outputs] == list(wanted)
            for name, right in wanted.items():
                assert_same(results[name], right, case)


def assert_same(found, wanted, case) -> None:
    if wanted.dtype.kind in "OUST":
        assert (found.astype(str) == wanted.astype(str)).all()
        return
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if found.dtype.kind not in "biufc":
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=case.rtol, atol=case.atol)
