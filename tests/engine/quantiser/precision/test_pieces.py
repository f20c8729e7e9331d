"""A choice runs its own forms of nodes alone, and gives what the whole switched graph gives."""

from dataclasses import replace

import numpy as np
import pytest
from float_graphs import conv_net
from mixed_graphs import random_net, trial_of

from trireme.ir.interpreter import run_reference
from trireme.quantiser.half import half_alone
from trireme.quantiser.precision import pieces
from trireme.quantiser.precision.pieces import SwitchedRuns

SEEDS = range(3)


def switched(seed):
    """A switched graph with float16 wherever a node has such a form, and samples of it."""
    rng = np.random.default_rng(seed)
    trial, feeds = trial_of(random_net(rng, 4) if seed else conv_net(seed))
    nodes = trial.graph.nodes
    halves = frozenset(node.id for node in nodes if half_alone(trial.graph, node))
    trial = replace(trial, selection=replace(trial.selection, halves=halves))
    return trial("min_max", switched=True), feeds, rng


def choice(emitted, rng):
    return frozenset(unit for unit in emitted.switches if rng.random() < 0.4)


def whole(emitted, feeds, taken):
    """The outputs of the whole graph, by an interpreter, with its switches fed."""
    on = {name: np.array([unit in taken]) for unit, name in emitted.switches.items()}
    return list(run_reference(emitted.graph, {**feeds, **on}).values())


@pytest.mark.parametrize("seed", SEEDS)
def test_pieces_give_what_the_whole_graph_gives(seed):
    emitted, feeds, rng = switched(seed)
    runs = SwitchedRuns(emitted.graph, emitted.switches, 1)
    for _ in range(4):
        taken = choice(emitted, rng)
        for got, want in zip(
            runs.run(feeds[0], taken), whole(emitted, feeds[0], taken), strict=True
        ):
            # another order of sums may move a few values by one step of an integer
            error = np.square(got - want).sum() / np.square(want).sum()
            assert error < 1e-4, f"seed {seed}"
    runs.close()


@pytest.mark.parametrize("room", [0, 2000, pieces.KEPT_BYTES])
def test_values_that_are_kept_change_no_output(room, monkeypatch):
    monkeypatch.setattr(pieces, "KEPT_BYTES", room)
    emitted, feeds, rng = switched(1)
    runs = SwitchedRuns(emitted.graph, emitted.switches, 1)
    for _ in range(4):
        start = choice(emitted, rng)
        runs.keep(feeds, start)
        near = start ^ {sorted(emitted.switches)[int(rng.integers(len(emitted.switches)))]}
        for sample, one in enumerate(feeds):
            for taken in (start, near):
                pairs = zip(runs.run(one, taken, sample), runs.run(one, taken), strict=True)
                assert all(np.array_equal(kept, anew) for kept, anew in pairs), "seed 1"
    runs.close()


def test_a_choice_shares_the_steps_before_the_first_node_that_differs():
    emitted, _, _ = switched(0)
    runs = SwitchedRuns(emitted.graph, emitted.switches, 1)
    last = max(emitted.switches)
    known = {step.key for step in runs.steps(frozenset())}
    keys = [step.key for step in runs.steps(frozenset({last}))]
    assert len(set(keys) - known) <= 2 < len(set(keys) & known)
    runs.close()
