"""Write activations, as an option of an operator or as operators after it."""

from __future__ import annotations

from collections.abc import Callable

import tflite

from trireme.converters.tflite.write.use import NodeWriter

_F = tflite.ActivationFunctionType
FUSED = {"": _F.NONE, "relu": _F.RELU, "relu6": _F.RELU6, "relu_n1_to_1": _F.RELU_N1_TO_1}
"""The activations that operators take as an option."""


def fused(use: NodeWriter, code: str, inputs: list[int], kind: str, **options: object) -> None:
    """Add an operator with the node's activation: as its option, or as operators after it."""
    activation = use.attrs.get("activation") or ""
    if activation in FUSED:
        use.done(code, inputs, kind, FusedActivationFunction=FUSED[activation], **options)
        return
    activate(use, use.add(code, inputs, None, kind, **options), activation)


def activate(use: NodeWriter, x: int, activation: str) -> None:
    """Write an activation of a float tensor as the node's output."""
    if use.is_quantised and activation:
        raise use.error(f"activation {activation} is not fused into quantised values")
    ACTIVATIONS[activation](use, x)


def swish(use: NodeWriter, x: int) -> None:
    """Write x sigmoid(alpha x)."""
    alpha = use.attrs.get("alpha", 1.0)
    inner = x if alpha == 1 else _times(use, x, alpha)
    use.done("MUL", [x, use.add("LOGISTIC", [inner])], "MulOptions")


def _times(use: NodeWriter, x: int, factor: float) -> int:
    return use.add("MUL", [x, use.scalar(factor)], None, "MulOptions")


def _plus(use: NodeWriter, x: int, term: float) -> int:
    return use.add("ADD", [x, use.scalar(term)], None, "AddOptions")


def _clamped_line(alpha: float, beta: float) -> Callable[[NodeWriter, int], None]:
    def write(use: NodeWriter, x: int) -> None:
        line = _plus(use, _times(use, x, alpha), beta)
        above = use.add("MAXIMUM", [line, use.scalar(0)], None, "MaximumMinimumOptions")
        use.done("MINIMUM", [above, use.scalar(1)], "MaximumMinimumOptions")

    return write


def hard_sigmoid(use: NodeWriter, x: int) -> None:
    """Write min(max(alpha x + beta, 0), 1)."""
    _clamped_line(use.attrs["alpha"], use.attrs["beta"])(use, x)


def reciprocal(use: NodeWriter, x: int) -> None:
    """Write 1 / x."""
    use.done("DIV", [use.scalar(1), x], "DivOptions")


def softsign(use: NodeWriter, x: int) -> None:
    """Write x / (1 + |x|)."""
    use.done("DIV", [x, _plus(use, use.add("ABS", [x]), 1)], "DivOptions")


def _softplus(use: NodeWriter, x: int) -> tuple[int, int]:
    """Return max(x, 0) and log(1 + exp(-|x|))."""
    decay = use.add("EXP", [use.add("NEG", [use.add("ABS", [x])])])
    return use.add("RELU", [x]), use.add("LOG", [_plus(use, decay, 1)])


def softplus(use: NodeWriter, x: int) -> None:
    """Write log(1 + exp(x)) so that no exponential overflows."""
    use.done("ADD", list(_softplus(use, x)), "AddOptions")


def mish(use: NodeWriter, x: int) -> None:
    """Write x tanh(softplus(x))."""
    soft = use.add("ADD", list(_softplus(use, x)), None, "AddOptions")
    use.done("MUL", [x, use.add("TANH", [soft])], "MulOptions")


def celu(use: NodeWriter, x: int) -> None:
    """Write alpha elu(x / alpha)."""
    alpha = use.attrs["alpha"]
    use.done("MUL", [use.add("ELU", [_times(use, x, 1 / alpha)]), use.scalar(alpha)], "MulOptions")


def selu(use: NodeWriter, x: int) -> None:
    """Write gamma (max(x, 0) + alpha elu(min(x, 0)))."""
    low = use.add("MINIMUM", [x, use.scalar(0)], None, "MaximumMinimumOptions")
    low = _times(use, use.add("ELU", [low]), use.attrs["alpha"])
    whole = use.add("ADD", [use.add("RELU", [x]), low], None, "AddOptions")
    use.done("MUL", [whole, use.scalar(use.attrs["gamma"])], "MulOptions")


ACTIVATIONS: dict[str, Callable[[NodeWriter, int], None]] = {
    "": lambda use, x: use.same(x),
    "relu": lambda use, x: use.done("RELU", [x]),
    "relu6": lambda use, x: use.done("RELU6", [x]),
    "relu_n1_to_1": lambda use, x: use.done("RELU_N1_TO_1", [x]),
    "tanh": lambda use, x: use.done("TANH", [x]),
    "sigmoid": lambda use, x: use.done("LOGISTIC", [x]),
    "hard_sigmoid": _clamped_line(1 / 6, 0.5),
    "hard_swish": lambda use, x: use.done("HARD_SWISH", [x], "HardSwishOptions"),
    "swish": swish,
    "gelu": lambda use, x: use.done("GELU", [x], "GeluOptions", Approximate=False),
    "gelu_tanh": lambda use, x: use.done("GELU", [x], "GeluOptions", Approximate=True),
}
"""How an activation after an operator is written."""
