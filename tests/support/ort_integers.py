"""How large signed weights may be for ONNX Runtime to be right about integer products here.

Without VNNI it adds pairs of products of uint8 and int8 in 16 bits, which saturate: 255 * 127 * 2
does not fit, 255 * 64 * 2 does. Its documents advise weights of seven bits there (`reduce_range`).
"""

import functools

import numpy as np
import onnxruntime
from onnx import TensorProto, helper


@functools.cache
def adds_exactly() -> bool:
    """Whether its products of the largest bytes are exact on this CPU."""
    types = {"a": TensorProto.UINT8, "b": TensorProto.INT8, "y": TensorProto.INT32}
    a, b, y = (helper.make_tensor_value_info(name, kind, None) for name, kind in types.items())
    graph = helper.make_graph([helper.make_node("MatMulInteger", "ab", "y")], "g", [a, b], [y])
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {"a": np.full((4, 64), 255, np.uint8), "b": np.full((64, 16), 127, np.int8)}
    (found,) = session.run(None, feeds)
    return bool((found == 64 * 255 * 127).all())


def signed_bits() -> int:
    """The bits of signed weights with which its products are exact."""
    return 8 if adds_exactly() else 7


def whole(rng: np.random.Generator, dtype: type, *shape: int) -> np.ndarray:
    """Integers drawn from all of a dtype; of int8, from those that are exact as weights."""
    info = np.iinfo(dtype)
    low, high = info.min, info.max + 1
    if dtype is np.int8:
        low, high = -(2 ** (signed_bits() - 1)), 2 ** (signed_bits() - 1)
    return rng.integers(low, high, shape).astype(dtype)
