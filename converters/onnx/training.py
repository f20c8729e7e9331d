"""The optimisers of ai.onnx.preview.training, made of arithmetic ops. Source: ONNX's pseudo code.

Each takes a learning rate R, an update count T, then all tensors X, all gradients G and all of each
kind of accumulated values. Its results are the new X, then the new accumulated values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.converters.onnx.scope import NodeUse
from trireme.converters.onnx.table import OpEntry

TRAINING = "ai.onnx.preview.training"
Update = Callable[["_Arithmetic", Sequence[int]], Sequence[int]]


class _Arithmetic:
    """Ops on the values of one tensor; numbers become constants of its dtype."""

    def __init__(self, use: NodeUse, like: int) -> None:
        self.use = use
        self._dtype = use.scope.builder.type(like).dtype

    def value(self, given: int | float) -> int:
        """Return a float as a constant; an int is a value already."""
        return self.use.constant(given, self._dtype) if isinstance(given, float) else given

    def __call__(self, op: str, *operands: int | float) -> int:
        return self.use.add(op, *(self.value(one) for one in operands))

    def attr(self, name: str, default: float = 0.0) -> float:
        """Return an attribute."""
        return float(self.use.attrs.get(name, default))

    def rate(self) -> int:
        """Return R in the tensor's dtype."""
        return self.use.add("cast", self.use.need(0), to=self._dtype)

    def count(self) -> int:
        """Return T in the tensor's dtype."""
        return self.use.add("cast", self.use.need(1), to=self._dtype)

    def if_updated(self, then: int | float, otherwise: int | float) -> int:
        """Return a choice by whether T is above 0."""
        return self.use.add(
            "where", self("greater", self.count(), 0.0), self.value(then), self.value(otherwise)
        )

    def regularised(self, x: int, gradient: int) -> int:
        """Return norm_coefficient X + G."""
        return self("add", self("mul", self.attr("norm_coefficient"), x), gradient)


def _adagrad(on: _Arithmetic, values: Sequence[int]) -> Sequence[int]:
    x, gradient, squares = values
    decay = on("mul", on.count(), on.attr("decay_factor"))
    rate = on("div", on.rate(), on("add", decay, 1.0))
    gradient = on.regularised(x, gradient)
    squares = on("add", squares, on("mul", gradient, gradient))
    size = on("add", on("sqrt", squares), on.attr("epsilon", 1e-6))
    return on("sub", x, on("div", on("mul", rate, gradient), size)), squares


def _averaged(on: _Arithmetic, share: float, before: int, now: int) -> int:
    return on("add", on("mul", share, before), on("mul", 1.0 - share, now))


def _adam(on: _Arithmetic, values: Sequence[int]) -> Sequence[int]:
    x, gradient, mean, squares = values
    alpha, beta = on.attr("alpha", 0.9), on.attr("beta", 0.999)
    gradient = on.regularised(x, gradient)
    mean = _averaged(on, alpha, mean, gradient)
    squares = _averaged(on, beta, squares, on("mul", gradient, gradient))
    left = [on("sub", 1.0, on("pow", on.value(share), on.count())) for share in (alpha, beta)]
    adjusted = on("div", on("mul", on.rate(), on("sqrt", left[1])), left[0])
    rate = on.if_updated(adjusted, on.rate())
    size = on("add", on("sqrt", squares), on.attr("epsilon", 1e-6))
    x = on("sub", x, on("div", on("mul", rate, mean), size))
    return on("mul", 1.0 - on.attr("norm_coefficient_post"), x), mean, squares


def _momentum(on: _Arithmetic, values: Sequence[int]) -> Sequence[int]:
    x, gradient, momentum = values
    alpha = on.attr("alpha")
    gradient = on.regularised(x, gradient)
    scaled = on("mul", on.if_updated(on.attr("beta"), 1.0), gradient)
    momentum = on("add", on("mul", alpha, momentum), scaled)
    step = momentum
    if on.use.attrs.get("mode") == "nesterov":
        step = on("add", gradient, on("mul", alpha, momentum))
    return on("sub", x, on("mul", on.rate(), step)), momentum


def _each(update: Update, kinds: int) -> Callable[[NodeUse], Sequence[int]]:
    """Return the rule of an optimiser of tensors with so many kinds of values, X among them."""

    def rule(use: NodeUse) -> Sequence[int]:
        given = [use.need(i) for i in range(2, len(use.inputs))]
        if not given or len(given) % kinds:
            raise use.error(f"{len(given)} tensors, expected {kinds} for each that is updated")
        tensors = len(given) // kinds
        updated = [update(_Arithmetic(use, given[i]), given[i::tensors]) for i in range(tensors)]
        return [value for kind in zip(*updated, strict=True) for value in kind]

    return rule


TRAINING_TABLE: dict[str, OpEntry] = {
    "Adagrad": OpEntry("sub", _each(_adagrad, 3)),
    "Adam": OpEntry("mul", _each(_adam, 4)),
    "Momentum": OpEntry("sub", _each(_momentum, 3)),
}
