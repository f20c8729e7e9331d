"""Choose what products of integers make, floats or integers, and how ranges are taken.

Integers are what every device takes. Floats keep the precision of the sums, and softmax, norms and
residuals after them read floats anyway. A range of its own for each row, found in the run, has
finer steps than one range for all samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trireme.ir.graph import Graph
from trireme.quantiser.assign import watched_values
from trireme.quantiser.device_forms import DeviceForms, integers_alone
from trireme.quantiser.emit import Emitted
from trireme.quantiser.grouping import group
from trireme.quantiser.measure import Yardstick, worst_db
from trireme.quantiser.scheme import DYNAMIC, ModelKind
from trireme.quantiser.select import making_floats
from trireme.quantiser.trial import QuantTrial
from trireme.quantiser.weights import SmallerWeights, smaller_weights
from trireme.support.errors import GraphError

ROWS = "rows"
"""The name of products that round their input in the run, as the scheme dynamic does."""
Products = Literal["float32", "integers"]
LEAST_GAIN_DB = 0.3
"""Floats that gain less are not worth the devices that take integers alone.

One range for all samples must gain as much over ranges of rows, which fit inputs that no sample was
like."""


@dataclass(frozen=True)
class ProductChoice:
    """The trial that is kept, and what was measured.

    tried_db: the least signal-to-noise of an output by each way to take ranges
    products_db: the best of them, by what products make; empty where one form alone was tried
    why: what named devices say of the forms
    """

    products: Products
    trial: QuantTrial
    tried_db: Mapping[str, float]
    products_db: Mapping[str, float]
    why: str = ""

    @property
    def method(self) -> str:
        """The way to take ranges with the least error, the first of equals."""
        return max(self.tried_db, key=lambda one: self.tried_db[one])


@dataclass(frozen=True)
class ProductForms:
    """The forms that are tried, and what named devices say of them."""

    tried: tuple[Products, ...]
    why: str = ""


def forms_of(
    products: str, kind: ModelKind, takes_floats: bool, devices: Sequence[DeviceForms], scheme: str
) -> ProductForms:
    """Return what is tried.

    products: "auto" or one of the forms
    takes_floats: whether "auto" may try floats
    devices: what each named device runs; one that runs products to integers alone gets them
    """
    if products != "auto":
        return ProductForms(("float32",) if products == "float32" else ("integers",))
    if not kind.float_sums or not takes_floats:
        return ProductForms(("integers",))
    if alone := integers_alone(devices, scheme):
        why = "a named device runs products that make integers, and none that makes floats"
        return ProductForms(("integers",), f"{why} ({alone})")
    both = ", ".join(one.name for one in devices if not one.floats[scheme])
    why = f"{both}: runs products of both forms, so the error decides" if both else ""
    return ProductForms(("float32", "integers"), why)


def choose_products(
    trial: QuantTrial, forms: ProductForms, methods: Sequence[str], yardstick: Yardstick
) -> ProductChoice:
    """Return the choice with the least error on held samples.

    Floats are measured with every method. Integers are measured with the best of these first, and
    with the others only if they come near.

    trial: writes products that make integers
    """
    if "float32" not in forms.tried:
        tried = _measured(trial, methods, yardstick)
        return ProductChoice("integers", trial, tried, {}, forms.why)
    to_floats = _with_floats(trial)
    tried = _measured(to_floats, methods, yardstick)
    floats = ProductChoice("float32", to_floats, tried, {}, forms.why)
    if "integers" not in forms.tried:
        return floats
    best_db = floats.tried_db[floats.method]
    tried = _measured(trial, [floats.method], yardstick)
    if tried[floats.method] + LEAST_GAIN_DB > best_db:
        tried |= _measured(trial, [one for one in methods if one not in tried], yardstick)
    integers = ProductChoice("integers", trial, tried, {}, forms.why)
    known = {"float32": best_db, "integers": tried[integers.method]}
    is_better = known["float32"] > known["integers"] + LEAST_GAIN_DB
    return replace(floats if is_better else integers, products_db=known)


def by_rows(
    graph: Graph, keep_float: Collection[str], yardstick: Yardstick
) -> tuple[SmallerWeights, float] | None:
    """Return the graph of the scheme dynamic and its least signal-to-noise on held samples.

    None where no node has weights of a form that it takes.
    """
    try:
        made = smaller_weights(graph, DYNAMIC, None, keep_float)
    except GraphError:
        return None
    return made, worst_db(yardstick.outputs(Emitted(made.graph, {})))


def _measured(trial: QuantTrial, methods: Sequence[str], yardstick: Yardstick) -> dict[str, float]:
    return {one: worst_db(yardstick.outputs(trial(one))) for one in methods}


def _with_floats(trial: QuantTrial) -> QuantTrial:
    """Return the trial whose products make floats, with statistics of what it needs alone."""
    selection = making_floats(trial.graph, trial.selection)
    needed = set(watched_values(trial.graph, selection))
    statistics = {value: one for value, one in trial.statistics.items() if value in needed}
    groups = group(trial.graph, selection, trial.scheme)
    return replace(trial, selection=selection, groups=groups, statistics=statistics)
