"""Run a stream: while one device works on a run, another is at the next one."""

from importlib.resources import files

import numpy as np

import trireme


def main() -> None:
    """Feed the demo's model four times."""
    model = files("trireme.tools") / "demo" / "digits.onnx"
    rng = np.random.default_rng(0)
    feeds = [{"image": rng.random((360, 1, 8, 8), dtype=np.float32)} for _ in range(4)]
    with trireme.Session(
        str(model),
        devices=["npu", "cpu"],
        placement_options=trireme.PlacementOptions(objective="throughput"),
    ) as session:
        for outputs in session.stream(feeds):
            print({name: array.argmax(1)[:8].tolist() for name, array in outputs.items()})


if __name__ == "__main__":
    main()
