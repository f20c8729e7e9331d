"""Train the demo's classifier and write it: `python tools/train_demo.py` (needs scikit-learn).

A small convolutional network on scikit-learn's handwritten digits (8x8 pixels; Alpaydin and
Kaynak, UCI, CC BY 4.0), trained here with numpy, then quantised to int8 with scales calibrated on
the training images, and written as an ONNX model with quantize/dequantize pairs: float images in,
int8 convolutions, a float head. Beside it go the held-out images, so that the demo runs without
scikit-learn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trireme.support.dtypes import Array

SEED, EPOCHS, BATCH, RATE = 7, 40, 32, 2e-3
FOLDER = Path(__file__).parent / "demo"
HELD_OUT = 360
Weights = dict[str, Array]


def patches(x: Array) -> Array:
    """Return the 3x3 neighbourhoods of x [N,H,W,C], zero beyond the border: [N,H,W,9*C]."""
    n, h, w, c = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = [padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)]
    columns: Array = np.stack(parts, axis=3).reshape(n, h, w, 9 * c)
    return columns


def fold(columns: Array, channels: int) -> Array:
    """Return the transpose of `patches`: gradients of neighbourhoods summed back onto x."""
    n, h, w, _ = columns.shape
    parts = columns.reshape(n, h, w, 9, channels)
    padded = np.zeros((n, h + 2, w + 2, channels), columns.dtype)
    for k in range(9):
        i, j = divmod(k, 3)
        padded[:, i : i + h, j : j + w] += parts[:, :, :, k]
    inner: Array = padded[:, 1:-1, 1:-1]
    return inner


def new_weights(rng: np.random.Generator) -> Weights:
    """Return He-initialised weights; a convolution's are [9*C,O]."""

    def normal(fan_in: int, out: int) -> Array:
        scale = float(np.sqrt(2 / fan_in))
        return np.asarray(rng.standard_normal((fan_in, out)) * scale, np.float32)

    weights = {"w1": normal(9, 16), "w2": normal(144, 32), "w3": normal(512, 10)}
    weights |= {f"b{i}": np.zeros(n, np.float32) for i, n in ((1, 16), (2, 32), (3, 10))}
    return weights


def forward(x: Array, p: Mapping[str, Array]) -> dict[str, Array]:
    """Return every intermediate of the network for images x [N,8,8,1]."""
    c1 = patches(x)
    h1 = np.maximum(c1 @ p["w1"] + p["b1"], 0)
    n = len(x)
    windows = h1.reshape(n, 4, 2, 4, 2, 16).transpose(0, 1, 3, 5, 2, 4).reshape(n, 4, 4, 16, 4)
    pooled = windows.max(-1)
    c2 = patches(pooled)
    h2 = np.maximum(c2 @ p["w2"] + p["b2"], 0)
    flat = h2.transpose(0, 3, 1, 2).reshape(n, 512)
    logits = flat @ p["w3"] + p["b3"]
    return {
        "c1": c1,
        "h1": h1,
        "windows": windows,
        "pooled": pooled,
        "c2": c2,
        "h2": h2,
        "flat": flat,
        "logits": logits,
    }


def gradients(f: Mapping[str, Array], labels: Array, p: Mapping[str, Array]) -> Weights:
    """Return the gradients of the mean cross entropy with respect to the weights."""
    n = len(labels)
    odds = np.exp(f["logits"] - f["logits"].max(1, keepdims=True))
    d = odds / odds.sum(1, keepdims=True)
    d[np.arange(n), labels] -= 1
    d /= n
    g = {"w3": f["flat"].T @ d, "b3": d.sum(0)}
    d = (d @ p["w3"].T).reshape(n, 32, 4, 4).transpose(0, 2, 3, 1) * (f["h2"] > 0)
    g |= {"w2": f["c2"].reshape(-1, 144).T @ d.reshape(-1, 32), "b2": d.sum((0, 1, 2))}
    d = fold(d @ p["w2"].T, 16)
    first = f["windows"].argmax(-1)[..., None] == np.arange(4)
    d = (d[..., None] * first).reshape(n, 4, 4, 16, 2, 2)
    d = d.transpose(0, 1, 4, 2, 5, 3).reshape(n, 8, 8, 16) * (f["h1"] > 0)
    return g | {"w1": f["c1"].reshape(-1, 9).T @ d.reshape(-1, 16), "b1": d.sum((0, 1, 2))}


def train(x: Array, labels: Array, rng: np.random.Generator) -> Weights:
    """Return weights trained with Adam (Kingma and Ba, 2014)."""
    p = new_weights(rng)
    first = {k: np.zeros_like(v) for k, v in p.items()}
    second = {k: np.zeros_like(v) for k, v in p.items()}
    for step, (images, targets) in enumerate(batches(x, labels, rng), 1):
        g = gradients(forward(images, p), targets, p)
        for k in p:
            first[k] += 0.1 * (g[k] - first[k])
            second[k] += 0.001 * (g[k] ** 2 - second[k])
            mean, square = first[k] / (1 - 0.9**step), second[k] / (1 - 0.999**step)
            p[k] = (p[k] - RATE * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)
    return p


def batches(x: Array, labels: Array, rng: np.random.Generator) -> Iterator[tuple[Array, Array]]:
    """Yield shuffled batches, epoch after epoch."""
    for _ in range(EPOCHS):
        order = rng.permutation(len(x))
        for start in range(0, len(x), BATCH):
            picked = order[start : start + BATCH]
            yield x[picked], labels[picked]


class QuantisedModel:
    """Writes the ONNX graph: nodes, constants, and quantize/dequantize pairs around them."""

    def __init__(self, weights: Mapping[str, Array], ranges: Mapping[str, float]) -> None:
        self.weights, self.ranges = weights, ranges
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, array: Array) -> str:
        """Add a constant and return its name."""
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attrs: object) -> str:
        """Add a node and return the name of its output."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attrs))
        return output

    def pair(self, x: str, what: str) -> str:
        """Quantise a value to int8 by its calibrated range, and back."""
        scale = self.constant(f"{x}_scale", np.array(2 * self.ranges[what] / 255, np.float32))
        zero = self.constant(f"{x}_zero", np.array(0, np.int8))
        stored = self.node("QuantizeLinear", [x, scale, zero], f"{x}_q")
        return self.node("DequantizeLinear", [stored, scale, zero], f"{x}_dq")

    def convolution(self, x: str, index: int, channels: int, x_range: str) -> str:
        """Add a 3x3 convolution with per-channel int8 weights, then relu."""
        w = self.weights[f"w{index}"]
        out = w.shape[1]
        kernel = w.reshape(3, 3, channels, out).transpose(3, 2, 0, 1)
        scales = np.abs(kernel).reshape(out, -1).max(1).astype(np.float32) / 127
        stored = np.round(kernel / scales[:, None, None, None]).astype(np.int8)
        x_scale = np.float32(2 * self.ranges[x_range] / 255)
        bias = np.round(self.weights[f"b{index}"] / (scales * x_scale)).astype(np.int32)
        w_name = self._dequantized(f"w{index}", stored, scales)
        b_name = self._dequantized(f"b{index}", bias, (scales * x_scale).astype(np.float32))
        y = self.node("Conv", [x, w_name, b_name], f"conv{index}", pads=[1] * 4)
        return self.node("Relu", [y], f"relu{index}")

    def _dequantized(self, name: str, stored: Array, scales: Array) -> str:
        data = self.constant(f"{name}_int", stored)
        scale = self.constant(f"{name}_scale", scales)
        zero = self.constant(f"{name}_zero", np.zeros(len(scales), stored.dtype))
        return self.node("DequantizeLinear", [data, scale, zero], name, axis=0)

    def build(self) -> onnx.ModelProto:
        """Return the whole model, for batches of HELD_OUT images."""
        x = self.pair("image", "image")
        x = self.pair(self.convolution(x, 1, 1, "image"), "h1")
        x = self.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
        x = self.pair(self.convolution(self.pair(x, "h1"), 2, 16, "h1"), "h2")
        x = self.node("Flatten", [x], "flat")
        head = [self.constant(name, self.weights[name]) for name in ("w3", "b3")]
        x = self.node("Gemm", [x, *head], "logits")
        self.node("Softmax", [x], "digit")
        info = helper.make_tensor_value_info
        image = info("image", TensorProto.FLOAT, [HELD_OUT, 1, 8, 8])
        digit = info("digit", TensorProto.FLOAT, [HELD_OUT, 10])
        graph = helper.make_graph(self.nodes, "digits", [image], [digit], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        onnx.checker.check_model(model, full_check=True)
        return model


def main() -> None:
    """Train, quantise and write the demo's files."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(digits.target))
    x = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order]
    weights = train(x[HELD_OUT:], labels[HELD_OUT:], rng)
    seen = forward(x[HELD_OUT:], weights)
    ranges = {"image": 1.0, "h1": float(seen["h1"].max()), "h2": float(seen["h2"].max())}
    model = QuantisedModel(weights, ranges).build()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "digits.onnx").write_bytes(model.SerializeToString(deterministic=True))
    held_out = digits.images[order[:HELD_OUT]].astype(np.uint8)
    np.savez_compressed(
        FOLDER / "held_out.npz", images=held_out, labels=labels[:HELD_OUT].astype(np.uint8)
    )
    hits = forward(x[:HELD_OUT], weights)["logits"].argmax(1) == labels[:HELD_OUT]
    print(f"seed {SEED}: {hits.mean():.2%} of {HELD_OUT} held-out digits in float32")


if __name__ == "__main__":
    main()
