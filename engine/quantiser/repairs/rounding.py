"""Weight rounding by the error of a product's outputs, in closed form, a column after another.

Rounding a weight to the nearest step ignores that inputs move together. Here the columns of the
weights are rounded in turn, and the columns that are left take up the error, as far as the Gram
matrix H of the inputs lets them:

    e = (w_j - q_j) / U_jj,   w_k -= e U_jk for k > j,   U the upper Cholesky factor of inverse(H)

Columns of large inputs come first. A row keeps nearest rounding where its error is less. Grams are
summed over samples one after another. `rounding_work` says which products fit a limit of work.

Source: Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers, 2022; Nagel et al., Up or Down? Adaptive Rounding for Post-Training Quantization, 2020
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trireme.ir.graph import Graph, Node, Quant
from trireme.quantiser.encode import stored, weights_of
from trireme.quantiser.repairs.edit import GraphEdit
from trireme.quantiser.repairs.products import groups_of, products, weights
from trireme.quantiser.repairs.rounding_work import depth_of, planned, rows_a_sample
from trireme.quantiser.samples import Feeds
from trireme.quantiser.statistics import run_watched
from trireme.quantiser.trial import QuantTrial
from trireme.support.dtypes import Array

_DEEPEST = 2500
"""Products of more weights a row keep nearest rounding: their Gram matrix takes too long."""
_DAMP = 0.01
_BLOCK = 64
_DTYPE = "int8"
_GFLOP = 1e9
OnWork = Callable[[int, int], None]
"""Told the work that is done and all of it, in billions of operations."""


def rounded(
    trial: QuantTrial,
    method: str,
    feeds: Sequence[Feeds],
    threads: int | None,
    limit_gflop: float,
    on_work: OnWork,
) -> tuple[Graph, str] | str:
    """Return the graph whose weights lie on the steps that make the least error, or why not.

    limit_gflop: products that are not reached with this work keep nearest rounding
    """
    graph, scheme = trial.graph, trial.scheme
    nodes = products(graph, trial.selection.taken)
    if scheme.weights != _DTYPE or not nodes:
        return f"no product has {_DTYPE} weights and channels last"
    shallow = [node for node in nodes if depth_of(graph, node) <= _DEEPEST]
    plan = list(planned(graph, shallow, len(feeds), limit_gflop * _GFLOP))
    total = sum(sum(costs) for _, costs in plan)
    quants = trial.quants(method)
    edit, count, done = GraphEdit(graph), 0, 0.0
    for batch, costs in plan:
        grams = _grams(graph, batch, quants, trial.scheme.activations, feeds, threads)
        for node, cost in zip(batch, costs, strict=True):
            makes_integers = node.id not in trial.selection.to_floats
            bias = edit.data(node.id, 2) if makes_integers else None
            x_scale = quants[node.used[0]].scale
            _round(edit, node, grams.pop(node.id), x_scale, bias, scheme.bias)
            count, done = count + 1, done + cost
            on_work(round(done / _GFLOP), round(total / _GFLOP))
    late = f" within {limit_gflop:g} GFLOP" if count < len(shallow) else ""
    if not count:
        return f"no product was reached{late}"
    return edit.finish(), f"{count} of {len(nodes)} products{late}"


def _grams(
    graph: Graph,
    nodes: Sequence[Node],
    quants: dict[int, Quant],
    dtype: str,
    feeds: Sequence[Feeds],
    threads: int | None,
) -> dict[int, Array]:
    """Return the Gram matrix of what each product multiplies, by node: [groups,K,K].

    dtype: of stored inputs
    """
    found: dict[int, Array] = {}
    for made in run_watched(graph, list({node.used[0] for node in nodes}), feeds, threads):
        for node in nodes:
            quant = quants[node.used[0]]
            x = stored(made[node.used[0]], quant, dtype).astype(np.float32) - quant.zero_point
            rows = _patches(graph, node, x, rows_a_sample(depth_of(graph, node), len(feeds)))
            gram = np.stack([own.T @ own for own in rows])
            found[node.id] = found[node.id] + gram if node.id in found else gram
    return found


def _patches(graph: Graph, node: Node, x: Array, most: int) -> Array:
    """Return what the rows of the weights meet: [groups, positions, K], K in the weights' order."""
    w, groups = weights(graph, node), groups_of(node)
    if node.op == "fully_connected":
        rows = x.reshape(-1, w.shape[-1])
        return rows[None, :: -(-len(rows) // most)]
    top, left, bottom, right = node.attrs["pads"]
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    (sy, sx), (dy, dx) = node.attrs["strides"], node.attrs["dilations"]
    kh, kw = w.shape[1:3]
    size = ((kh - 1) * dy + 1, (kw - 1) * dx + 1)
    view = np.lib.stride_tricks.sliding_window_view(x, size, axis=(1, 2))
    view = view[:, ::sy, ::sx, :, ::dy, ::dx]
    n, h, wide, channels = view.shape[:4]
    picked = np.arange(0, n * h * wide, -(-n * h * wide // most))
    picks = np.unravel_index(picked, (n, h, wide))
    parts = view[picks].reshape(len(picked), groups, channels // groups, kh * kw)
    made: Array = parts.transpose(1, 0, 3, 2).reshape(groups, len(picked), -1)
    return made


def _round(
    edit: GraphEdit, node: Node, grams: Array, x_scale: float, bias: Array | None, bias_dtype: str
) -> None:
    """Round the weights of a node; the scales of an integer bias bound those of the weights."""
    w = edit.data(node.id, 1)
    assert w is not None, node.label
    nearest, quant = weights_of(w, 0, x_scale, bias, (_DTYPE, bias_dtype))
    scales = np.asarray(quant.scales)
    groups = len(grams)
    steps = (w.reshape(len(w), -1) / scales[:, None]).reshape(groups, len(w) // groups, -1)
    plain = nearest.reshape(steps.shape).astype(np.float64)
    made = np.stack(
        [
            _better(own, near, gram)
            for own, near, gram in zip(steps, plain, grams.astype(np.float64), strict=True)
        ]
    )
    real = made.reshape(len(w), -1) * scales[:, None]
    edit.set_constant(node.id, 1, np.asarray(real.reshape(w.shape), np.float32))


def _better(steps: Array, nearest: Array, gram: Array) -> Array:
    """Return rounded rows; each is the better of the compensated and of the nearest."""
    made = _compensated(steps, gram)
    peaks = np.abs(nearest).argmax(axis=1)
    rows = np.arange(len(made))
    low = np.abs(made).max(axis=1) < np.abs(nearest).max(axis=1)
    made[rows[low], peaks[low]] = nearest[rows[low], peaks[low]]  # a row's peak gives its scale
    error, plain = (((q - steps) @ gram * (q - steps)).sum(axis=1) for q in (made, nearest))
    return np.where((error < plain)[:, None], made, nearest)


def _compensated(steps: Array, gram: Array) -> Array:
    """Return rows of weights, in steps, rounded with the later columns taking up the error."""
    order = np.argsort(-np.diag(gram), kind="stable")
    h = gram[np.ix_(order, order)]
    h = h + np.eye(len(h)) * max(_DAMP * float(np.diag(h).mean()), 1e-9)
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    w, q = steps[:, order].copy(), np.empty_like(steps)
    for start in range(0, len(h), _BLOCK):
        stop = min(start + _BLOCK, len(h))
        errors = np.empty((len(w), stop - start))
        for j in range(start, stop):
            q[:, j] = np.clip(np.rint(w[:, j]), -127, 127)
            errors[:, j - start] = (w[:, j] - q[:, j]) / upper[j, j]
            w[:, j + 1 : stop] -= np.outer(errors[:, j - start], upper[j, j + 1 : stop])
        w[:, stop:] -= errors @ upper[start:stop, stop:]
    made = np.empty_like(q)
    made[:, order] = q
    return made
