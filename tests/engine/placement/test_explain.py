"""Explanations state exactly what a pin would change; advice and lockfiles say what they mean."""

import functools
import random
from dataclasses import replace

import pytest
from placement_cases import to_graph
from placing import place_plain
from sweep import sweep
from toy_device import ToyDevice

from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.selectors import pinned
from trireme.placement.explain import explain
from trireme.placement.kernel_advice import advise
from trireme.placement.lock import lock
from trireme.placement.lock_changes import differences, remarks
from trireme.placement.lockfile import VERSION, load_lock, lock_text, save_lock
from trireme.placement.singles import solve_singles
from trireme.placement.solve import solve_several
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.errors import ModelFileError, PlacementError


@functools.cache
def placed(seed, n=12, objective="makespan"):
    graph, devices = to_graph(seed, n)
    costs = CostModel(devices, Calibration())
    return graph, costs, place_plain(graph, costs, objective)


@pytest.mark.parametrize(
    "objective",
    sweep(["makespan", "serial", "throughput", "energy"], always=["makespan", "energy"]),
)
@pytest.mark.parametrize("seed", sweep(range(3), always=[1]))
def test_a_pin_changes_exactly_what_was_stated(seed, objective):
    graph, costs, placement = placed(seed, objective=objective)
    checked = 0
    for node, alternatives in explain(placement).nodes:
        for other in alternatives[1:]:
            if other.run_s is None:
                assert other.why == placement.choices[node.id].refusals[other.device]
                continue
            pins = {node.id: other.device}
            forced = place_plain(graph, costs, objective, pins=pins, fixed=placement)
            assert forced.score.value == pytest.approx(other.run_s, rel=1e-12)
            appears = len(forced.copies()) - len(placement.copies())
            said = [sum("copy of" in t for t in side) for side in (other.appears, other.vanishes)]
            assert appears == said[0] - said[1]
            checked += 1
    assert checked


@pytest.mark.parametrize("seed", sweep(range(3), always=[1]))
def test_with_all_others_free_it_is_exact_too(seed):
    """What a pin leads the search to is no better than what it finds without one."""
    graph, costs, placement = placed(seed, 4)
    for node, alternatives in explain(placement, free=True).nodes:
        for other in alternatives[1:]:
            if other.run_s is not None:
                forced = place_plain(graph, costs, pins={node.id: other.device})
                assert forced.score.value == pytest.approx(other.free_s, rel=1e-12)
                assert other.free_s >= placement.score.value * (1 - 1e-9)


@pytest.mark.parametrize("seed", sweep(range(20), always=[9]))
def test_an_idle_device_says_what_its_cheapest_use_takes(seed):
    """No dearer than any single node that `explain` would list; what a node is said to take is what
    a pin makes of it.
    """
    graph, costs, placement = placed(seed, 10)
    reasons = explain(placement).nodes
    for device, why in placement.unused.items():
        runs = {n.label: a.run_s for n, ways in reasons for a in ways if a.device == device}
        runs = {label: run_s for label, run_s in runs.items() if run_s is not None}
        if not runs:
            assert f"refuses all {len(graph.nodes)} nodes" in why
            continue
        least = min(runs.values())
        named = [label for label in runs if f" {label} alone" in why]
        if named:
            assert runs[named[0]] <= least * 1.02
            assert placement.score.change(runs[named[0]] - placement.score.value) in why
        else:
            assert why.startswith("the best run found with it takes")


def test_each_copy_is_explained():
    for seed in (2, 5):
        _, _, placement = placed(seed, 20, "serial")
        copies = explain(placement).copies
        assert len(copies) == len(placement.copies())
        assert all(copy.ways and copy.estimate_s > 0 for copy in copies)


def shattered():
    """A chain of ten ops, of which the NPU refuses the third and the seventh."""
    b = GraphBuilder("shattered")
    x = b.input("x", TensorType((200_000,), "float32"))
    for i in range(10):
        x = b.add("erf" if i in (2, 6) else "tanh", x)
    graph = b.finish(x)
    cpu = ToyDevice("cpu", flops=1e9, bandwidth=2e9)
    npu = ToyDevice("npu", flops=1e11, bandwidth=1e11, ops={"tanh"}, link_bandwidth=8e9)
    return graph, CostModel({"cpu": cpu, "npu": npu}, Calibration())


def test_advice_names_what_breaks_a_region():
    graph, costs = shattered()
    placement = place_plain(graph, costs)
    (advice,) = advise(placement)
    assert (advice.device, advice.op, len(advice.nodes)) == ("npu", "erf", 2)
    assert advice.regions[1] == 1 and advice.saved > 0
    costs.devices["npu"].ops = None
    with_it = place_plain(graph, costs)
    assert placement.makespan_s - with_it.makespan_s == pytest.approx(advice.saved, rel=1e-6)
    assert advise(with_it) == []


def test_advice_does_not_count_the_gain_of_a_mixture_that_was_given_up():
    graph, costs = shattered()
    mixture, alone = place_plain(graph, costs), solve_singles(graph, costs)["cpu"]
    assert alone.score.value > mixture.score.value * 1.01
    assert [one.saved for one in advise(alone)] == pytest.approx([advise(mixture)[0].saved])


def test_locks_survive_a_file(tmp_path):
    graph, costs, placement = placed(1)
    locked = lock(placement, "1.2.3")
    save_lock(locked, tmp_path / "p.toml")
    again = load_lock(tmp_path / "p.toml")
    assert differences(locked, again) == [] and differences(again, lock(placement)) == []
    assert lock_text(again) == lock_text(locked)
    held = place_plain(graph, costs, fixed=tmp_path / "p.toml")
    assert held.score.value == pytest.approx(placement.score.value)
    assert held.device_of == placement.device_of


def test_differences_are_sentences():
    graph, costs, placement = placed(1)
    before = lock(placement)
    node = graph.nodes[3]
    others = [d for d in placement.choices[node.id].estimates if d != before.nodes[3].device]
    after = lock(place_plain(graph, costs, pins={node.id: others[0]}, fixed=placement))
    (line,) = differences(before, after)
    assert before.nodes[3].name in line and f"-> {others[0]}" in line and "pinned" in line
    fewer = replace(after, nodes=after.nodes[1:])
    assert any(line.startswith("- ") for line in differences(before, fewer))
    assert any(line.startswith("+ ") for line in differences(fewer, before))
    gone = differences(before, replace(before, devices={"cpu": "toy cpu"}), {"npu": "no driver"})
    assert gone == ["device npu is not there: no driver", "device gpu was not asked for"]
    other = replace(before, devices={**before.devices, "cpu": "another"}, predicted=1.0)
    assert differences(before, other) == [] and len(remarks(before, other)) == 2


def test_a_lock_of_another_graph_is_refused():
    _, _, placement = placed(1)
    graph, costs, _ = placed(2)
    with pytest.raises(PlacementError, match="of another graph"):
        place_plain(graph, costs, fixed=lock(placement))


def test_a_device_that_is_gone_is_named():
    graph, costs, placement = placed(1)
    used = next(d for d in placement.device_of.values() if d != "cpu" and ">" not in d)
    left = {name: device for name, device in costs.devices.items() if name != used}
    with pytest.raises(PlacementError, match=f"cannot be kept on {used}: it is not among"):
        place_plain(graph, CostModel(left, Calibration()), fixed=placement)


@pytest.mark.parametrize(
    "cut", [f"version = {VERSION}", "nodes = [", "[devices]", "[options]", 'unit = "s"']
)
def test_damaged_locks_are_named(tmp_path, cut):
    _, _, placement = placed(1)
    path = tmp_path / "p.toml"
    path.write_text(lock_text(lock(placement)).replace(cut, "", 1))
    with pytest.raises(ModelFileError, match=r"p\.toml"):
        load_lock(path)


def test_mutated_locks_are_refused_by_name_or_are_locks(tmp_path):
    _, _, placement = placed(1)
    text = lock_text(lock(placement))
    rng = random.Random(0)
    print("seed 0")
    refused = 0
    for _ in range(200):
        at = rng.randrange(len(text))
        (tmp_path / "p.toml").write_text(text[:at] + chr(rng.randrange(1, 256)) + text[at + 1 :])
        try:
            again = load_lock(tmp_path / "p.toml")
        except ModelFileError as error:
            refused += 1
            assert "p.toml" in str(error)
        else:
            assert load_lock_text(tmp_path, lock_text(again)) == again
    assert 20 <= refused < 200


def load_lock_text(folder, text):
    (folder / "again.toml").write_text(text)
    return load_lock(folder / "again.toml")


def test_several_placements_differ():
    graph, devices = to_graph(3, 6)
    costs = CostModel(devices, Calibration())
    several = solve_several(graph, costs)
    assert len(several) == 3 and several[0].score.value == place_plain(graph, costs).score.value
    where = [tuple(p.device_of[n.id] for n in graph.nodes) for p in several]
    assert len(set(where)) == 3


def test_each_device_alone_has_all_that_it_can_run():
    graph, devices = to_graph(3, 6)
    costs = CostModel(devices, Calibration())
    best, alone = place_plain(graph, costs), solve_singles(graph, costs)
    assert set(alone) <= set(devices)
    for name, placement in alone.items():
        able = [n.id for n in graph.nodes if devices[name].unsupported_reason(graph, n) is None]
        assert able and [n.id for n in placement.nodes_on(name)] == able
        assert placement.makespan_s >= best.makespan_s * (1 - 1e-9)
    held = graph.nodes[2]
    name = best.choices[held.id].device
    for placement in solve_singles(pinned(graph, {held.id: name}), costs).values():
        assert placement.choices[held.id].device == name


def test_a_session_holds_a_locked_placement(tmp_path):
    graph, devices = to_graph(3, 6)
    with Session(graph, devices=list(devices.values()), execution_options=AS_GIVEN) as session:
        save_lock(lock(session.placement), tmp_path / "p.toml")
        where = session.placement.device_of
    with Session(
        graph,
        devices=list(devices.values()),
        execution_options=AS_GIVEN,
        placement=tmp_path / "p.toml",
    ) as session:
        assert session.placement.device_of == where
