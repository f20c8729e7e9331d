"""Profile a model, and write a trace for ui.perfetto.dev."""

import json
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np

import trireme
from trireme.profiling.trace import chrome_trace


def main(path: str = "trace.json") -> None:
    """Profile the demo's model on two devices."""
    model = files("trireme.tools") / "demo" / "digits.onnx"
    image = np.random.default_rng(0).random((360, 1, 8, 8), dtype=np.float32)
    with trireme.Session(str(model), devices=["npu", "cpu"]) as session:
        profile = session.profile({"image": image}, runs=3)
    print(profile)
    Path(path).write_text(json.dumps(chrome_trace(profile)))
    print(f"written: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
