"""Random small float graphs and random described machines, to choose precisions for."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from float_graphs import CONV, POOL, samples_of, weights

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.quantiser.assign import watched_values
from trireme.quantiser.grouping import group
from trireme.quantiser.half import half_nodes
from trireme.quantiser.precision.budget import budget_of
from trireme.quantiser.precision.evaluate import MixedEvaluator
from trireme.quantiser.precision.meter import LossMeter
from trireme.quantiser.precision.search import MOST_PLACEMENTS
from trireme.quantiser.precision.target import opened_target
from trireme.quantiser.prepare import prepare
from trireme.quantiser.scheme import scheme_named
from trireme.quantiser.select import select
from trireme.quantiser.statistics import gather
from trireme.quantiser.trial import QuantTrial

_DEVICE = """
[devices.{name}]
memory = "{name}"
flops = {{ {flops} }}
bandwidth = {bandwidth}
launch_s = {launch_s}
link_latency_s = {latency_s}
link_bandwidth = {link}
dtypes = [{dtypes}]
[devices.{name}.sources]
flops = "made up"
bandwidth = "made up"
launch_s = "made up"
link_latency_s = "made up"
link_bandwidth = "made up"
"""
_CPU = """
name = "random machine"
[devices.cpu]
flops = {{ float32 = {slow}, int8 = {fast} }}
bandwidth = {bandwidth}
launch_s = 2e-6
[devices.cpu.sources]
flops = "made up"
bandwidth = "made up"
launch_s = "made up"
"""


def random_machine(rng, with_halves=False):
    """The text of a machine: a cpu, an npu of integers, and often a gpu of floats.

    with_halves: whether the gpu is there always, and it or the npu computes in float16 too
    """
    slow = rng.uniform(1e9, 2e10)
    text = _CPU.format(slow=slow, fast=slow * rng.uniform(0.8, 5), bandwidth=rng.uniform(2e9, 2e10))
    shapes = [("npu", "int8", ["int8"])]
    shapes += [("gpu", "float32", ["float32"])] if with_halves or rng.random() < 0.7 else []
    half = ("npu", "gpu")[int(rng.integers(2))] if with_halves else ""
    for name, kind, dtypes in shapes:
        flops = f"{kind} = {(rate := rng.uniform(3e10, 1e12))}"
        if name == half:
            dtypes = [*dtypes, "float16"]
            flops += f", float16 = {rate * rng.uniform(0.4, 0.7 if name == 'npu' else 3)}"
        text += _DEVICE.format(
            name=name,
            flops=flops,
            bandwidth=rng.uniform(1e10, 1e11),
            launch_s=rng.uniform(1e-6, 4e-5),
            latency_s=rng.uniform(1e-6, 2e-5),
            link=rng.uniform(2e8, 1e10),
            dtypes=", ".join(f'"{one}"' for one in dtypes),
        )
    return text


def random_net(rng, products):
    """Products in a row with branches, sums, pools and tables between them, of unlike sizes."""
    b = GraphBuilder("random")
    side = 16
    live = [(b.input("x", TensorType((1, side, side, 8), "float32")), 8)]
    for k in range(products):
        x, inside = live[-1] if rng.random() < 0.8 else live[int(rng.integers(len(live)))]
        out, size = int(rng.choice([4, 8, 16, 48])), int(rng.choice([1, 3, 5]))
        w = b.constant(f"w{k}", weights(rng, out, size, size, inside))
        bias = b.constant(f"b{k}", rng.standard_normal(out).astype(np.float32))
        pads = {"pads": (size // 2,) * 4}
        y = b.add("conv", x, w, bias, names=[f"conv{k}"], groups=1, **(CONV | pads))
        y = b.add("relu", y, names=[f"act{k}"]) if rng.random() < 0.6 else y
        same = [value for value, channels in live if channels == out]
        if same and rng.random() < 0.6:
            y = b.add("add", y, same[int(rng.integers(len(same)))], names=[f"sum{k}"])
        live.append((y, out))
    y = live[-1][0]
    if rng.random() < 0.5:
        y = b.add("max_pool", y, names=["pool"], **POOL)
    ends = [y, *(value for value, _ in live[1:-1] if rng.random() < 0.15)]
    return b.finish(*ends)


def trial_of(graph, samples=3, seed=1):
    """A float graph folded, some of its samples, and the trial that quantises it whole."""
    data = samples_of(graph, samples, seed)
    feeds = [{name: rows[k] for name, rows in data.items()} for k in range(samples)]
    return trial_of_feeds(graph, feeds), feeds


def trial_of_feeds(graph, feeds):
    """The trial that quantises a float graph whole, by ranges of some feeds."""
    graph = prepare(graph, None)
    scheme = scheme_named("int8")
    selection = select(graph, scheme, scheme.kind_of(graph), ())
    values = watched_values(graph, selection)
    known = gather(graph, values, feeds, threads=1, on_sample=lambda done: None)
    groups = group(graph, selection, scheme)
    return QuantTrial(graph, selection, groups, known, scheme, "mixed")


@contextmanager
def evaluator_of(trial, feeds, soc, min_snr_db=30.0, most=MOST_PLACEMENTS, with_halves=False):
    """An evaluator of choices on a described machine, under a budget of signal-to-noise.

    with_halves: whether nodes may be float16 where a device is faster in it
    """
    budget = budget_of(min_snr_db, "snr", None)
    with opened_target(None, soc, 1) as target:
        halves = half_nodes(trial.graph, target.costs) if with_halves else frozenset()
        trial = replace(trial, selection=replace(trial.selection, halves=halves))
        with LossMeter(trial, "min_max", feeds, lambda: feeds, budget, 1) as meter:
            yield MixedEvaluator(trial, "min_max", target, meter, most, lambda done: None)
