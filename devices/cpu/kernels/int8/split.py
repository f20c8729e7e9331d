"""Weights for products of unsigned and signed bytes whose sums of 16 bits must not overflow.

Without VNNI, x86 multiplies bytes by `vpmaddubsw`: the products of two neighbouring taps are added
in a 16-bit word, which saturates, and words of a few instructions may be added before they are
widened. Inputs are 0..255 and not known; weights are. A word that sums the products of any taps is
exact for every input, if the weights of each sign among them add up to at most 128:

    -32768 <= 255 * -128,  255 * 128 <= 32767

`split` cuts weights in two parts of which the first keeps that rule. The second is zero nearly
everywhere; the groups of taps in which it is not are multiplied once more, each with what the first
part lacks. So the sum is exact, whatever the weights; what varies is how much there is to repeat.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import form_of
from trireme.devices.cpu.kernels.int8.arithmetic import Dot
from trireme.devices.cpu.kernels.int8.microkernel import rank_update
from trireme.devices.cpu.kernels.int8.pack import Int8MatmulShape, RegisterTile, in_order
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

MOST = 128
"""The largest sum of weights of one sign in a word."""


@dataclass(frozen=True, eq=False)
class Split:
    """The first part of weights, and the parts to add to it.

    main: int8 [group, channel, steps, taps]
    rest: int8 parts of the same shape, which add up to the weights less main
    """

    main: Array
    rest: tuple[Array, ...]

    @cached_property
    def touched(self) -> tuple[Array, ...]:
        """The steps at which each part is not zero, bool [group, channel, steps]."""
        return tuple(np.asarray(part.any(axis=-1)) for part in self.rest)

    def again(self, channels: int) -> float:
        """Return how many steps a group does again, where so many channels share a panel."""
        count = 0
        for touched in self.touched:
            starts = np.arange(0, touched.shape[1], channels)
            count += int(np.logical_or.reduceat(touched, starts, axis=1).sum())
        return count / len(self.main)


@dataclass(frozen=True, eq=False)
class Repeats:
    """The tables of the repeated steps that a kernel reads.

    index: int32, for each panel of each group where its steps begin and, at last, their number;
           then for each step where it begins, in bytes from where its row does
    weights: int8 [step, vector, lanes, taps]
    panels: of all groups
    """

    index: Array
    weights: Array
    panels: int

    @property
    def form(self) -> Repeats:
        """The facts that code depends on: the panels and the size of a step, not the steps."""
        return Repeats(form_of(self.index[:0]), form_of(self.weights[:1]), self.panels)

    def emit(
        self,
        fn: Function,
        dot: Dot,
        acc: Sequence[Sequence[Var]],
        starts: Sequence[Value],
        pointers: Sequence[Value],
        panel: Index,
    ) -> None:
        """Emit the steps of a panel; starts: where rows begin, pointers: index and weights."""
        index, weights = pointers
        first, last = (_loaded(fn, index, panel + i) for i in range(2))
        steps = fn.at(index, self.panels + 1, "i32")
        for k in fn.range(first, last):
            at = _loaded(fn, steps, k)
            places = [fn.at(start, at, "i8") for start in starts]
            base = fn.at(weights, k * self.weights[0].size, "i8")
            rank_update(fn, dot, acc, places, base, (0, 1))


def _loaded(fn: Function, table: Value, at: Index) -> Value:
    return fn.convert("sext", fn.load("i32", fn.at(table, at, "i32"), 4), "i64")


def repeats_of(
    parts: Split, product: Int8MatmulShape, dot: Dot, order: Array, tile: RegisterTile, lanes: int
) -> Repeats | None:
    """Return the repeated steps of each panel; None if there are none."""
    width = tile.vectors * lanes
    counts, steps, weights = [], [], []
    rest = [in_order(part, order) for part in parts.rest]
    for group in range(product.groups):
        for first in range(0, len(order), width):
            found = [part[group, first : first + width] for part in rest]
            at = [np.flatnonzero(part.any(axis=(0, 2))) for part in found]
            counts.append(sum(len(a) for a in at))
            steps += at
            weights += [
                np.pad(part[:, a], ((0, width - len(part)), (0, 0), (0, 0))).swapaxes(0, 1)
                for part, a in zip(found, at, strict=True)
            ]
    if not sum(counts):
        return None
    starts = np.concatenate([[0], np.cumsum(counts)])
    places = product.places(dot)[np.concatenate(steps)]
    index = np.concatenate([starts, places]).astype(np.int32)
    return Repeats(index, np.ascontiguousarray(np.concatenate(weights)), len(counts))


def split(w: Array, spans: Sequence[int], dot: Dot) -> Split:
    """Return weights [group, channel, steps, taps] of any 16-bit size in parts that fit words.

    spans: steps of each span; words add up `dot.run` steps, from the start of a span
    """
    main = w.astype(np.int16)
    start = 0
    for steps in spans:
        whole = steps // dot.run * dot.run
        _fit_words(main[..., start : start + whole, :], dot.run)
        _fit_words(main[..., start + whole : start + steps, :], 1)
        start += steps
    rest, left = [], w - main
    while left.any():
        part = left.astype(np.int16)
        _fit_words(part, 1)
        rest.append(part.astype(np.int8))
        left = left - part
    return Split(main.astype(np.int8), tuple(rest))


def _fit_words(w: Array, run: int) -> None:
    """Make weights [..., steps, taps] smaller, in place, until no word of `run` steps overflows."""
    if not w.size:
        return
    np.minimum(w, 127, out=w)
    shape = (*w.shape[:-2], w.shape[-2] // run, run, w.shape[-1] // 2, 2)
    words = w.reshape(shape).swapaxes(-3, -2)  # a view: [..., word, run, 2]
    terms = [words[..., step, tap] for step in range(run) for tap in range(2)]
    for sign, op in ((1, np.maximum), (-1, np.minimum)):
        total = functools.reduce(np.add, (op(term, 0) for term in terms))
        over = np.asarray(total * sign - MOST)
        hit = over > 0
        if not hit.any():
            continue
        worse, left = words[hit], over[hit]
        for step in range(run):
            for tap in range(2):
                cut = np.clip(worse[:, step, tap] * sign, 0, left)
                worse[:, step, tap] -= sign * cut
                left -= cut
        words[hit] = worse
