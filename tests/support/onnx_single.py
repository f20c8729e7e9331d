"""Models of one ONNX node, run here and by ONNX Runtime on the same inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

from trireme.converters.onnx import convert
from trireme.ir.interpreter import run_reference
from trireme.passes.pipeline import optimise


@dataclass(frozen=True)
class Single:
    """A node with its inputs in order; an input is an array, or None where it is left out.

    constants: the positions of inputs that are weights of the model
    outputs: the number of outputs, or for each whether it is there ("1001")
    limit: the largest difference allowed, relative to the largest value of the output
    """

    op: str
    inputs: tuple[np.ndarray | None, ...]
    attrs: Mapping[str, object] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()
    outputs: str = "1"
    limit: float = 1e-5
    domain: str = "com.microsoft"
    steps: int = 0
    """The largest difference allowed between integers."""

    @property
    def feeds(self):
        """The inputs of the model by name."""
        present = enumerate(self.inputs)
        return {f"i{n}": a for n, a in present if a is not None and n not in self.constants}

    def model(self) -> bytes:
        """The model's file."""
        names = [f"i{n}" if a is not None else "" for n, a in enumerate(self.inputs)]
        made = [f"o{n}" if c == "1" else "" for n, c in enumerate(self.outputs)]
        node = helper.make_node(self.op, names, made, domain=self.domain, **self.attrs)
        types = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in self.feeds.items()}
        inputs = [
            helper.make_tensor_value_info(n, types[n], a.shape) for n, a in self.feeds.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in made if name]
        weights = [numpy_helper.from_array(self.inputs[n], f"i{n}") for n in sorted(self.constants)]
        graph = helper.make_graph([node], "g", inputs, outputs, weights)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def answers_of(data: bytes, feeds, level="ORT_DISABLE_ALL"):
    """Return ONNX Runtime's outputs by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def assert_single(case: Single) -> None:
    """Compare the converted node, and the optimised graph, with ONNX Runtime.

    A folded op may be one step off: it multiplies by one number where ONNX Runtime scales twice.
    """
    data = case.model()
    wanted = answers_of(data, case.feeds)
    graph = convert(data)
    for form, steps in ((graph, case.steps), (optimise(graph), max(case.steps, 1))):
        found = run_reference(form, case.feeds)
        assert list(found) == list(wanted)
        for name, right in wanted.items():
            assert_same(name, found[name], right, case.limit, steps)


def assert_same(name, found, right, limit, steps=0) -> None:
    """Compare one output: dtype, shape, integers by steps, floats relative to the largest."""
    assert found.dtype == right.dtype and found.shape == right.shape, (name, found.shape)
    if not right.size:
        return
    apart = np.abs(found.astype(np.float64) - right.astype(np.float64))
    if right.dtype.kind in "iu":
        assert apart.max() <= steps, f"{name}: {apart.max():.0f} steps apart"
        return
    assert not np.isnan(right).any(), f"{name}: ONNX Runtime has NaN"
    largest = max(np.abs(right).max(), 1e-30)
    assert apart.max() / largest <= limit, f"{name}: {apart.max() / largest:.2e} apart"
