"""Small ONNX files that ask for much: sizes, counts and nesting beyond what a machine has.

As a program: loads and runs each in bounded memory and time, and prints a line for each: its name,
what it ended in ("ran", the name of an error), and the error's first line.
"""

import signal
import sys

import numpy as np
from onnx import TensorProto, helper, numpy_helper

HUGE = 2**40
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
MEMORY_BYTES, SECONDS = 12 << 30, 30


def model(nodes, inputs, outputs=("y",), constants=None, functions=(), dtype=FLOAT):
    """Return the bytes of a model; `inputs` are names with shapes."""
    graph = helper.make_graph(
        nodes,
        "hostile",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    made = helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)
    return made.SerializeToString()


def one(op, inputs, constants=None, dtype=FLOAT, **attrs):
    """Return a model of one node, its constants after its inputs."""
    names = [*inputs, *(constants or {})]
    node = helper.make_node(op, names, ["y"], **attrs)
    return model([node], inputs, constants=constants, dtype=dtype)


def doubling(steps, first):
    """Concat(x, x) of a constant or an input, over and over."""
    nodes = [
        helper.make_node("Concat", [f"c{k}", f"c{k}"], [f"c{k + 1}"], axis=0) for k in range(steps)
    ]
    nodes.append(helper.make_node("Relu", ["x"], ["y"]))
    constants = {"c0": np.ones(2, np.float32)} if first == "constant" else {}
    inputs = {"x": [2]} | ({} if constants else {"c0": [2]})
    return model(nodes, inputs, ["y", f"c{steps}"], constants)


def nested(depth):
    """Functions that each call the one before twice."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = []
    for k in range(depth):
        op, domain = ("Neg", "") if k == 0 else (f"f{k - 1}", "own")
        body = [
            helper.make_node(op, ["a"], ["m"], domain=domain),
            helper.make_node(op, ["m"], ["b"], domain=domain),
        ]
        functions.append(helper.make_function("own", f"f{k}", ["a"], ["b"], body, opsets))
    call = helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain="own")
    return model([call], {"x": [2]}, functions=functions)


def weights(*shape):
    return np.ones(shape, np.float32)


IMAGE = {"x": [1, 1, 4, 4]}
REGIONS = {"x": [1, 1, 4, 4], "r": [1, 4]}
GRAMS = dict(
    min_gram_length=1, mode="TF", ngram_counts=[0], ngram_indexes=[0, 1], pool_int64s=[1, 2]
)
CASES = {
    "relu": lambda: one("Relu", {"x": [HUGE]}),
    "relu rows": lambda: one("Relu", {"x": [HUGE, 2]}),
    "relu rank": lambda: one("Relu", {"x": [1] * 3000}),
    "softmax": lambda: one("Softmax", {"x": [2, HUGE, 3]}, axis=1),
    "conv pads": lambda: one("Conv", IMAGE, {"w": weights(1, 1, 3, 3)}, pads=[HUGE] * 4),
    "conv columns": lambda: one("Conv", IMAGE, {"w": weights(1, 1, 3, 3)}, pads=[0, 0, 0, 2**24]),
    "conv_transpose": lambda: one(
        "ConvTranspose", IMAGE, {"w": weights(1, 1, 3, 3)}, strides=[HUGE, HUGE]
    ),
    "max_pool": lambda: one("MaxPool", IMAGE, kernel_shape=[HUGE] * 2, pads=[HUGE - 1] * 4),
    "lrn": lambda: one("LRN", {"x": [1, 4, 4, 4]}, size=HUGE + 1),
    "folded": lambda: doubling(45, "constant"),
    "doubled": lambda: doubling(45, "input"),
    "functions": lambda: nested(39),
    "deep functions": lambda: nested(45),
    "tile": lambda: one("Tile", {"x": [2]}, {"n": np.array([HUGE])}),
    "expand": lambda: one("Expand", {"x": [1]}, {"n": np.array([HUGE])}),
    "pad": lambda: one("Pad", {"x": [4]}, {"n": np.array([HUGE, HUGE])}),
    "one_hot": lambda: one(
        "OneHot", {"x": [4]}, {"n": np.array(HUGE), "v": np.arange(2.0)}, dtype=INT64
    ),
    "eye_like": lambda: one("EyeLike", {"x": [2**20, 2**20]}),
    "matmul": lambda: one("MatMul", {"x": [2**20, 2], "z": [2, 2**30]}),
    "einsum": lambda: one("Einsum", {"x": [9999, 9999], "z": [9999, 9999]}, equation="ab,cd->abcd"),
    "roi_align": lambda: one(
        "RoiAlign",
        REGIONS,
        {"i": np.array([0])},
        output_height=2,
        output_width=2,
        sampling_ratio=2**30,
    ),
    "tf_idf": lambda: one(
        "TfIdfVectorizer",
        {"x": [6]},
        dtype=INT64,
        max_gram_length=HUGE,
        max_skip_count=HUGE,
        **GRAMS,
    ),
    "regex": lambda: model(
        [
            helper.make_node("RegexFullMatch", ["s"], ["m"], pattern="(a+)+b"),
            helper.make_node("Where", ["m", "x", "x"], ["y"]),
        ],
        {"x": [1]},
        constants={"s": np.array(["a" * 60], object)},
    ),
    "depth_to_space": lambda: one("DepthToSpace", {"x": [1, 4, 4, 4]}, blocksize=2**31),
    "lstm": lambda: one(
        "LSTM", {"x": [HUGE, 1, 2]}, {"w": weights(1, 8, 2), "r": weights(1, 8, 2)}, hidden_size=2
    ),
}
"""Models by name. Each asks for much by a few bytes."""


def main() -> None:
    import resource

    from trireme.runtime.program.options import ExecutionOptions
    from trireme.runtime.session.session import Session
    from trireme.support.errors import TriremeError

    def late(signum, frame):
        raise TimeoutError

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, late)
    for name, make in CASES.items():
        signal.alarm(SECONDS)
        try:
            with Session(make(), execution_options=ExecutionOptions(model_cache=None)) as session:
                session.run({v.name: np.zeros(v.shape, v.dtype) for v in session.inputs})
            found = "ran\t"
        except TriremeError as error:
            found = f"{type(error).__name__}\t{str(error).partition(chr(10))[0]}"
        except Exception as error:
            found = f"untyped {type(error).__name__}\t{error}"
        signal.alarm(0)
        print(f"{name}\t{found}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
