"""The joint model of precision and device: prices near a choice are those of the whole graph."""

import numpy as np
import pytest
from mixed_graphs import evaluator_of, random_machine, random_net, trial_of

from trireme.quantiser.precision.joint import JointModel
from trireme.quantiser.precision.prices import ModePrices

PRECISIONS = ("integers", "float32")


@pytest.mark.parametrize("seed", range(4))
def test_a_choice_near_another_costs_what_it_costs_alone(seed, tmp_path):
    rng = np.random.default_rng(seed)
    trial, feeds = trial_of(random_net(rng, 8))
    machine = tmp_path / "machine.toml"
    machine.write_text(random_machine(rng))
    with evaluator_of(trial, feeds, str(machine)) as evaluator:
        model = JointModel(ModePrices(trial, "min_max", evaluator.target.costs))
        for _ in range(3):
            fixed = {unit: PRECISIONS[int(rng.random() < 0.6)] for unit in evaluator.units}
            near = model.around(fixed)
            assert near.seconds == pytest.approx(model.around(fixed).seconds, rel=1e-9)
            for count in (0, 1, 1, 2, 3):
                first = int(rng.integers(len(evaluator.units) - count + 1))
                chosen = evaluator.units[first : first + count]
                changed = {unit: PRECISIONS[fixed[unit] == "float32"] for unit in chosen}
                alone = model.around(fixed | changed).seconds
                assert near.seconds_of(changed) == pytest.approx(alone, rel=1e-9), f"seed {seed}"


def test_nodes_far_apart_count_apart(tmp_path):
    rng = np.random.default_rng(9)
    trial, feeds = trial_of(random_net(rng, 8))
    machine = tmp_path / "machine.toml"
    machine.write_text(random_machine(rng))
    with evaluator_of(trial, feeds, str(machine)) as evaluator:
        model = JointModel(ModePrices(trial, "min_max", evaluator.target.costs))
        near = model.around(dict.fromkeys(evaluator.units, "integers"))
        ends = evaluator.units[0], evaluator.units[-1]
        alone = [near.seconds_of({unit: "float32"}) - near.seconds for unit in ends]
        both = near.seconds_of(dict.fromkeys(ends, "float32")) - near.seconds
        assert both == pytest.approx(sum(alone), abs=1e-12)
