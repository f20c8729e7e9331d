"""Every elementwise ATen op with a rule, called on the values at which formulas break.

Importing this module needs torch. The calls come from the converter's table and torch's schemas: a
tensor argument is every pair of edge values of a dtype, a number is one of a few. One module makes
all calls of a dtype, so that one export serves them.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from trireme.converters.torch.activations import ACTIVATIONS
from trireme.converters.torch.elementwise import ELEMENTWISE
from trireme.converters.torch.use import dtype_name

FLOATS = ("float32", "float64", "float16", "bfloat16")
DTYPES = (*FLOATS, "int8", "uint8", "int16", "int32", "int64", "bool")
NUMBERS = {"b": (True, False), "i": (3, -2), "f": (0.1, -2.0)}
"""Scalars, by the kind of the tensors."""
OPTIONS = {
    "approximate": ("none", "tanh"),
    "decimals": (0, 2, -1),
    "dtype": [getattr(torch, name) for name in DTYPES],
    "quant_max": (7,),
    "quant_min": (-8,),
    "rounding_mode": (None, "floor", "trunc"),
    "scale": (0.25,),
    "zero_point": (3,),
}
"""The values of arguments by name."""
DIVISIONS = ("div", "fmod", "remainder")
NOT_CALLED = {
    "fake_quantize_per_channel_affine_cachemask": "a scale per channel: test_ops",
    "prelu": "a slope per channel: test_ops",
    "rrelu_with_noise_functional": "torch draws its noise",
}


def edges(dtype: str) -> torch.Tensor:
    """Zeros, ones, halves, multiples, and the ends of a dtype."""
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.tensor([False, True])
    if dtype not in FLOATS:
        ends = torch.iinfo(kind)
        signed = [-1, -2, -7, ends.min] if ends.min < 0 else [ends.max // 2 + 1]
        return torch.tensor([0, 1, 2, 3, 5, 7, ends.max, ends.max - 1, *signed], dtype=kind)
    ends = torch.finfo(kind)
    above = [0.0, 0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 20.5, 90.0, 1e4]
    above += [1e-7, ends.tiny, ends.smallest_normal / 4, ends.max, float("inf")]
    return torch.tensor([*above, *(-x for x in above), float("nan")], dtype=torch.float64).to(kind)


A, B, MASK, DIVISOR, INSIDE = range(5)
"""The inputs of a module, by position."""


def inputs_of(dtype: str) -> tuple[torch.Tensor, ...]:
    """Every pair of edge values, a mask, and what torch defines division and casts of."""
    given = edges(dtype)
    a, b = (x.reshape(-1).contiguous() for x in torch.meshgrid(given, given, indexing="ij"))
    mask, divisor = torch.arange(a.numel()) % 3 == 0, b.clone()
    if dtype in FLOATS:
        return a, b, mask, divisor, a.nan_to_num().clamp(0, 100)
    if dtype != "bool":  # a divisor of 0, and the least number by -1, are errors
        divisor[(b == 0) | (b == -1) & (a == torch.iinfo(a.dtype).min)] = 3
    return a, b, mask, divisor, a


@dataclass
class OpCall:
    """A call of an overload; tensors are positions among the module's inputs."""

    name: str
    overload: str
    tensors: dict[str, int]
    numbers: dict[str, object] = field(default_factory=dict)

    def __call__(self, inputs):
        op = getattr(getattr(torch.ops.aten, self.name), self.overload)
        made = op(**{name: inputs[at] for name, at in self.tensors.items()}, **self.numbers)
        return made[0] if isinstance(made, tuple) else made

    def __str__(self):
        numbers = ", ".join(f"{name}={value}" for name, value in self.numbers.items())
        return f"{self.name}.{self.overload}({numbers})"


@dataclass(frozen=True)
class Known:
    """Elements that differ from torch's, and why.

    may_differ: (found, wanted), as float64 -> where they may
    """

    reason: str
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    may_differ: Callable[[np.ndarray, np.ndarray], np.ndarray]


KNOWN = (
    Known(
        "of 0 and -0 either is the greater one; torch's own loops differ",
        ("clamp", "fmax", "fmin", "maximum", "minimum"),
        FLOATS,
        lambda found, wanted: (found == 0) & (wanted == 0),
    ),
    Known(
        "torch's vector loop gives NaN where the quotient overflows; here the remainder is exact",
        ("fmod", "remainder"),
        FLOATS,
        lambda found, wanted: np.isnan(wanted) & np.isfinite(found),
    ),
    Known(
        "torch casts NaN to an integer, which is another one on each processor",
        ("fake_quantize_per_tensor_affine_cachemask",),
        FLOATS,
        lambda found, wanted: np.isnan(found),
    ),
    Known(
        "torch's product overflows on the way, of infinity to NaN",
        ("gelu", "hardswish"),
        FLOATS,
        lambda found, wanted: (found > 1e4) & ~np.isfinite(wanted),
    ),
    Known(
        "1 + erf cancels in torch; here a result near 0 has no sign",
        ("gelu",),
        FLOATS,
        lambda found, wanted: np.abs(found - wanted) < 1e-6,
    ),
    Known(
        "an attribute is a float32 number",
        ("selu",),
        ("float64",),
        lambda found, wanted: np.abs(found - wanted) < 1e-7 * np.abs(wanted),
    ),
    Known(
        "max(0, x) + min(0, ..) of -0 is 0, as in ONNX",
        ("celu",),
        ("float64",),
        lambda found, wanted: (found == 0) & (wanted == 0),
    ),
    Known(
        "torch's erf of bfloat16 is 0 near 0",
        ("erf",),
        ("bfloat16",),
        lambda found, wanted: (wanted == 0) & (np.abs(found) < 2e-7),
    ),
)
"""What differs from torch. A line that no element needs fails the test, so the list shrinks."""
NOT_IN_FILES = {
    "fake_quantize_per_tensor_affine_cachemask": "torch cannot decompose a saved program with it"
}
OTHER_DTYPES = {"pow": "torch.export says int64 of a power of bools, and a run gives bool"}
"""Ops whose exported dtype is not that of a run."""


class Calls(torch.nn.Module):
    """All calls, on the same inputs."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def forward(self, *inputs):
        return tuple(call(inputs) for call in self.calls)


def calls_of(dtype: str, inputs) -> list[OpCall]:
    """The calls that torch itself can make with inputs of a dtype."""
    found = []
    for key in (*ELEMENTWISE, *ACTIVATIONS):
        name, *overloads = key.split()
        if name in NOT_CALLED:
            continue
        for overload in overloads or ["default"]:
            found += [call for call in _variants(name, overload, dtype) if _runs(call, inputs)]
    return found


def _runs(call: OpCall, inputs) -> bool:
    try:
        call(inputs)
    except (RuntimeError, TypeError):
        return False
    return True


def _variants(name: str, overload: str, dtype: str):
    """Yield the calls of an overload: the numbers and options that it takes."""
    schema = getattr(getattr(torch.ops.aten, name), overload)._schema
    tensors, choices = {}, {}
    for argument in schema.arguments:
        key, kind = argument.name, str(argument.type).replace("Optional[", "").rstrip("]")
        if kind == "Tensor":
            tensors[key] = _position(name, key, dtype)
        elif key in OPTIONS:
            choices[key] = OPTIONS[key]
        elif kind == "number" and argument.default_value is None:
            choices[key] = NUMBERS["f" if dtype in FLOATS else dtype[0].replace("u", "i")]
    for numbers in itertools.product(*choices.values()):
        call = OpCall(name, overload, dict(tensors), dict(zip(choices, numbers, strict=True)))
        if name == "_to_copy" and dtype in FLOATS and dtype_name(numbers[0]) not in FLOATS:
            call.tensors["self"] = INSIDE
        yield call


def _position(name: str, argument: str, dtype: str) -> int:
    if argument == "condition":
        return MASK
    if argument in ("self", "min"):
        return A
    return DIVISOR if name in DIVISIONS else B
