"""Drive ONNX Runtime's CPU provider with its defaults: all graph optimisations, threads that spin.

Idle threads spin for a moment after a run; the benchmark waits until they have stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], dict[str, Array]]


def open_engine(task: dict[str, Any], feeds: dict[str, Array]) -> tuple[Call, dict[str, Any]]:
    """Return a call of InferenceSession.run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task["threads"]
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        task["model"], options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    inputs = [value.name for value in session.get_inputs()]
    given = {n: feeds.get(n, a) for n, a in zip(inputs, feeds.values(), strict=True)}
    given = {name: np.ascontiguousarray(array) for name, array in given.items()}

    def call() -> dict[str, Array]:
        return dict(zip(names, session.run(names, given), strict=True))

    return call, {"version": onnxruntime.__version__}
