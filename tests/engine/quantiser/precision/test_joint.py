"""The joint model of precision and device: prices near a choice are those of the whole graph."""

import numpy as np
import pytest
from mixed_graphs import evaluator_of, random_machine, random_net, trial_of

from trireme.quantiser.precision.joint import JointModel
from trireme.quantiser.precision.prices import ModePrices


@pytest.mark.parametrize("seed", range(4))
def test_a_choice_near_another_costs_what_it_costs_alone(seed, tmp_path):
    rng = np.random.default_rng(seed)
    trial, feeds = trial_of(random_net(rng, 8))
    machine = tmp_path / "machine.toml"
    machine.write_text(random_machine(rng))
    with evaluator_of(trial, feeds, str(machine)) as evaluator:
        model = JointModel(ModePrices(trial, "min_max", evaluator.target.costs), {})
        for _ in range(3):
            fixed = {unit: bool(rng.random() < 0.6) for unit in evaluator.units}
            near = model.around(fixed)
            assert near.seconds == model.best(0.0, fixed).seconds
            for count in (0, 1, 1, 2, 3):
                chosen = rng.choice(evaluator.units, count, replace=False)
                changed = {int(unit): not fixed[int(unit)] for unit in chosen}
                alone = model.best(0.0, fixed | changed).seconds
                assert near.seconds_of(changed) == pytest.approx(alone, rel=1e-9), f"seed {seed}"
