"""Quantise a classifier of handwritten digits, name the culprit, compare by node, run on the npu.

The float model has random filters and a last layer by least squares, so nothing is downloaded.
"""

from importlib.resources import files

import numpy as np

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.quantiser.compare_models import compare_models

TRAINED, SAMPLES = 240, 96


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the demo's images, [360,8,8,1] of 0 to 1, and their digits, [360]."""
    data = np.load(str(files("trireme.tools") / "demo" / "held_out.npz"))
    return (data["images"][..., None] / 16).astype(np.float32), data["labels"]


def network(head: np.ndarray | None = None) -> Graph:
    """Return the network up to its features, [1,512], or with a head, [10,512], to its scores."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("digits")
    x = b.input("image", TensorType((1, 8, 8, 1), "float32"))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NHWC"}
    for name, channels, depth in (("edges", 16, 1), ("shapes", 32, 16)):
        filters = rng.standard_normal((channels, 3, 3, depth)) * np.sqrt(2 / (9 * depth))
        w = b.constant(f"{name}_w", filters.astype(np.float32))
        x = b.add("relu", b.add("conv", x, w, **window), names=[name])
        if name == "edges":
            halves = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}
            x = b.add("max_pool", x, dilations=(1, 1), layout="NHWC", **halves)
    x = b.add("reshape", x, b.constant("flat", np.array([1, 512])), names=["features"])
    if head is not None:
        x = b.add("fully_connected", x, b.constant("head", head), names=["scores"])
    return b.finish(x)


def results(graph: Graph, images: np.ndarray, devices: list[str]) -> np.ndarray:
    """Return the network's output for each image."""
    with trireme.Session(graph, devices=devices) as session:
        rows = (session.run({"image": x[None]}) for x in images)
        return np.concatenate([next(iter(row.values())) for row in rows])


def main() -> None:
    """Make, quantise, explain, compare and run the model."""
    images, labels = digits()
    features = results(network(), images[:TRAINED], ["cpu"])
    wanted = np.eye(10)[labels[:TRAINED]] - 0.1
    ridge = features.T @ features + np.eye(512)
    head = np.linalg.solve(ridge, features.T @ wanted).T.astype(np.float32)
    float_model = network(head)

    samples = images[:SAMPLES, None]
    quantised = trireme.quantize(float_model, samples, explain=True)
    print(quantised.quantization)

    print(compare_models(quantised, float_model, images[TRAINED : TRAINED + 16, None]))

    for name, model, devices in (
        ("float32 on the cpu", float_model, ["cpu"]),
        ("int8 on the cpu", quantised, ["cpu"]),
        ("int8 on the npu", quantised, ["npu", "cpu"]),
    ):
        found = results(model, images[TRAINED:], devices).argmax(1)
        print(f"{name}: {(found == labels[TRAINED:]).mean():.1%} of the digits are right")


if __name__ == "__main__":
    main()
