"""A scheme is data: the integers of activations, weights and biases, and what each op takes.

`select` asks a scheme which nodes to take, `encode` for the integers, `emit` for fixed outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from trireme.ir.graph import Graph, Node, Quant
from trireme.ir.op import IntegerForm, OpDef, get_op
from trireme.support.errors import GraphError

ALL_FORMS: frozenset[IntegerForm] = frozenset({"linear", "own", "table", "same"})
PRODUCTS: frozenset[IntegerForm] = frozenset({"linear", "same"})


FLOAT_SUMS = frozenset({"conv", "fully_connected"})
"""The products of integers that may make floats (FloatSumParams)."""


@dataclass(frozen=True)
class ModelKind:
    """A kind of model, which decides the ops that a scheme takes by default.

    signs: ops of which one is enough to make a model of this kind; empty fits any model
    forms: the integer forms (OpDef.integer_form) that become integers; "same" includes moves
    why: the sentence for an op of another form
    float_sums: whether products are tried that make floats, which what follows them reads
    """

    name: str
    signs: frozenset[str]
    forms: frozenset[IntegerForm]
    why: str = ""
    float_sums: bool = False


@dataclass(frozen=True)
class QuantScheme:
    """The integers of a scheme, and what each op takes.

    activations, weights, bias: dtypes of stored integers; int16 is symmetric
    ops: the ops that it has arithmetic for, beside moves; None: all with an integer form
    outputs: ops whose result has a quantisation of its own, whatever the data say
    kinds: the kinds of model; the first that fits counts
    Source: TensorFlow Lite 8-bit quantization specification
    """

    name: str
    activations: str
    weights: str
    bias: str
    outputs: Mapping[str, Quant] = field(default_factory=dict)
    kinds: tuple[ModelKind, ...] = ()
    ops: frozenset[str] | None = None

    @property
    def has_float_sums(self) -> bool:
        """Whether products of its integers may make floats."""
        return self.activations != "int16"

    @property
    def values(self) -> str:
        """The dtype of the values between nodes."""
        return self.activations

    def kind_of(self, graph: Graph) -> ModelKind:
        """Return the kind of model that decides which ops become integers."""
        ops = {node.op for node in graph.nodes}
        return next(kind for kind in self.kinds if not kind.signs or kind.signs & ops)


WeightForm = Literal["blocks", "float16", "dynamic"]


@dataclass(frozen=True)
class WeightScheme:
    """A scheme that needs no samples: weights become smaller, and no range is measured.

    form: "blocks" are codes that share a scale in groups along the depth. "float16" weights are
        made float32 at load. "dynamic" weights are int8 with a scale a channel, and inputs of
        products are rounded to 8 bits in the run
    bits: of a stored weight
    ops: the ops whose weights are taken, and the place of these among the inputs
    group: the weights that share a scale, unless another number is asked for; None: the form has
        no groups
    """

    name: str
    form: WeightForm
    bits: int
    ops: Mapping[str, int]
    group: int | None = None

    @property
    def values(self) -> str:
        """The dtype of the values between nodes."""
        return "float32"


def form_of(op: OpDef) -> IntegerForm:
    """Return the integer form of an op; one that only moves elements keeps its quantisation."""
    return "same" if op.moves and not op.integer_form else op.integer_form


def channel_axis(op: str, rank: int) -> int:
    """Return the axis of a product's weights that has the channels of its output."""
    return rank - 1 if op == "conv_transpose" else 0


def is_product(node: Node) -> bool:
    """Whether a node multiplies its input with weights."""
    return get_op(node.op).integer_form == "linear"


TRANSFORMER = ModelKind(
    "transformer",
    frozenset({"attention", "layer_normalization", "rms_normalization"}),
    PRODUCTS,
    "in a transformer only products become integers: softmax, norms and sums lose too much",
    float_sums=True,
)
CONVOLUTIONAL = ModelKind("convolutional", frozenset(), ALL_FORMS)

INT8 = QuantScheme(
    "int8",
    activations="int8",
    weights="int8",
    bias="int32",
    outputs={
        "softmax": Quant((1 / 256,), (-128,)),
        "sigmoid": Quant((1 / 256,), (-128,)),
        "tanh": Quant((1 / 128,), (0,)),
    },
    kinds=(TRANSFORMER, CONVOLUTIONAL),
)
UINT8 = replace(
    INT8,
    name="uint8",
    activations="uint8",
    outputs={
        "softmax": Quant((1 / 256,), (0,)),
        "sigmoid": Quant((1 / 256,), (0,)),
        "tanh": Quant((1 / 128,), (128,)),
    },
)
"""ONNX's unsigned values with signed weights; the steps are those of int8."""
INT16X8 = QuantScheme(
    "int16x8",
    activations="int16",
    weights="int8",
    bias="int64",
    outputs=dict.fromkeys(("softmax", "sigmoid", "tanh"), Quant((2.0**-15,), (0,))),
    kinds=(replace(TRANSFORMER, float_sums=False), CONVOLUTIONAL),
    ops=frozenset(
        {
            "add",
            "average_pool",
            "concat",
            "conv",
            "conv_transpose",
            "fully_connected",
            "leaky_relu",
            "max",
            "max_pool",
            "min",
            "mul",
            "pad",
            "reduce_mean",
            "relu",
            "relu6",
            "sigmoid",
            "softmax",
            "sub",
            "tanh",
        }
    ),
)
"""TensorFlow Lite's 16x8: int16 values, int8 weights, sums and bias of 64 bits."""
GROUPS = (16, 32, 64, 128, 256)
"""The groups that a scheme of blocks takes."""
_TABLES_AND_PRODUCTS = {"fully_connected": 1, "gather": 0}
WEIGHTS_INT4 = WeightScheme("weights_int4", "blocks", 4, _TABLES_AND_PRODUCTS, group=32)
WEIGHTS_INT8 = WeightScheme("weights_int8", "blocks", 8, _TABLES_AND_PRODUCTS, group=32)
FLOAT16 = WeightScheme(
    "float16",
    "float16",
    16,
    {"conv": 1, "conv_transpose": 1, "fully_connected": 1, "gather": 0, "matmul": 1},
)
DYNAMIC = WeightScheme("dynamic", "dynamic", 8, {"conv": 1, "fully_connected": 1, "gather": 0})
Scheme = QuantScheme | WeightScheme
SCHEMES: Mapping[str, Scheme] = {
    scheme.name: scheme
    for scheme in (INT8, UINT8, INT16X8, DYNAMIC, WEIGHTS_INT8, WEIGHTS_INT4, FLOAT16)
}


def scheme_of_product(graph: Graph, node: Node) -> str | None:
    """Return the scheme whose product a node is; None for other nodes and products of floats."""
    if node.op == "matmul_nbits":
        return f"weights_int{node.attrs['bits']}"
    if not is_product(node):
        return None
    dtype = graph.type(node.used[0]).dtype
    return next((n for n, s in SCHEMES.items() if dtype != "float32" and s.values == dtype), None)


def scheme_named(name: str) -> Scheme:
    """Return a scheme by name; raise GraphError when there is none."""
    if name not in SCHEMES:
        raise GraphError(f"unknown scheme {name!r}", facts=[f"known: {', '.join(SCHEMES)}"])
    return SCHEMES[name]
