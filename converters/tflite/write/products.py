"""Write products of matrices: FULLY_CONNECTED with constant weights, else BATCH_MATMUL."""

from __future__ import annotations

import numpy as np

from trireme.converters.tflite.write.activations import fused
from trireme.converters.tflite.write.use import NO_TENSOR, NodeWriter, WriteRule
from trireme.converters.tflite.write.windows import bias_of, is_hybrid, product_types
from trireme.ir.graph import TensorType


def fully_connected(use: NodeWriter) -> None:
    """Write x times the transpose of w; a residual is added before the activation."""
    product_types(use)
    options = {"KeepNumDims": True} if len(use.type(0).shape) != 2 else {}
    if is_hybrid(use):
        options["AsymmetricQuantizeInputs"] = use.node.id not in use.tensors.symmetric
    inputs = [use.x(0), use.x(1), bias_of(use)]
    if use.value(3) is None:
        fused(use, "FULLY_CONNECTED", inputs, "FullyConnectedOptions", **options)
    else:
        product = use.add("FULLY_CONNECTED", inputs, None, "FullyConnectedOptions", **options)
        fused(use, "ADD", [product, use.x(3)], "AddOptions")


def matmul(use: NodeWriter) -> None:
    """Write BATCH_MATMUL; a vector is a matrix of one row or column."""
    a, b = use.type(0), use.type(1)
    use.check_dtype(0, "float32 qint8")
    use.check_dtype(1, "float32 qint8")
    if min(len(a.shape), len(b.shape)) >= 2:
        use.done("BATCH_MATMUL", [use.x(0), use.x(1)], "BatchMatMulOptions")
        return
    if not a.is_static or not b.is_static:
        raise use.error("a vector of open length is not written")
    left, right = use.x(0), use.x(1)
    left_shape = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right_shape = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    left = left if len(a.shape) > 1 else use.reshaped(left, left_shape)
    right = right if len(b.shape) > 1 else use.reshaped(right, right_shape)
    batch = np.broadcast_shapes(left_shape[:-2], right_shape[:-2])  # type: ignore[arg-type]
    y = use.output()
    whole = TensorType((*batch, left_shape[-2], right_shape[-1]), y.dtype, y.quant)
    made = use.add("BATCH_MATMUL", [left, right], whole, "BatchMatMulOptions")
    use.done("RESHAPE", [made, use.sizes(y.shape)], "ReshapeOptions")


def gemm(use: NodeWriter) -> None:
    """Write alpha A B + beta C."""
    use.check_dtype(0, "float32")
    attrs, w = use.attrs, use.data(1)
    x = use.transposed(use.x(0), (1, 0)) if attrs["trans_a"] else use.x(0)
    if w is not None:
        rows = w if attrs["trans_b"] else w.T
        data = np.asarray(rows * np.float32(attrs["alpha"]), np.float32)
        inputs = [x, use.array(data, None, use.given(1).first_name), NO_TENSOR]
        code, kind, options = "FULLY_CONNECTED", "FullyConnectedOptions", {}
    else:
        inputs, code, kind = [x, use.x(1)], "BATCH_MATMUL", "BatchMatMulOptions"
        options = {"AdjY": bool(attrs["trans_b"])}
    if use.value(2) is None and (w is not None or attrs["alpha"] == 1):
        use.done(code, inputs, kind, **options)
        return
    product = use.add(code, inputs, None, kind, **options)
    if w is None and attrs["alpha"] != 1:
        product = use.add("MUL", [product, use.scalar(attrs["alpha"])], None, "MulOptions")
    if use.value(2) is None:
        use.same(product)
        return
    c = use.x(2)
    if attrs["beta"] != 1:
        c = use.add("MUL", [c, use.scalar(attrs["beta"])], use.type(2), "MulOptions")
    use.done("ADD", [product, c], "AddOptions")


PRODUCTS: dict[str, WriteRule] = {
    "fully_connected": fully_connected,
    "gemm": gemm,
    "matmul": matmul,
}
"""The rules of products of matrices."""
