"""Costs: fits recover curves, files keep them, kernels are shared out among nodes, and a changed
machine is not priced by another's."""

import json
from dataclasses import replace

import numpy as np
import pytest
from placing import place_plain
from toy_device import ToyDevice

from trireme.backend.calibrate_hint import command
from trireme.backend.core_latency import UNKNOWN, USUAL
from trireme.backend.device import KernelCost
from trireme.backend.registry import open_device
from trireme.calibration.calibrate import calibrate
from trireme.calibration.machine_speed import MachineSpeed
from trireme.calibration.net_builder import Net, build
from trireme.calibration.nets import NETS
from trireme.calibration.samples import Measured
from trireme.cost.calibration import (
    VERSION,
    Calibration,
    Curve,
    DeviceCalibration,
    Sharing,
    load_calibration,
)
from trireme.cost.estimate import SPREAD, Estimate, interval
from trireme.cost.model import CostModel
from trireme.cost.work import generic_works, supported_part
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.model_file import save
from trireme.passes.pipeline import optimise
from trireme.profiling.prediction_error import TOLERANCE, prediction_error_of
from trireme.runtime.options import AS_GIVEN
from trireme.runtime.session import Session
from trireme.support.errors import ModelFileError
from trireme.tools.calibrate_check import repeated, verdict
from trireme.tools.calibrate_rank import rank_correlation
from trireme.tools.calibrate_rows import CheckRow
from trireme.tools.cli import main


def sample():
    curve = Curve(1e-6, {"flops": 1e-11, "bytes": 1e-10}, 0.9, 1.2, 5, 0.1)
    return Calibration.of_devices(
        DeviceCalibration(
            "cpu",
            "toy cpu",
            2e-6,
            1e-7,
            {"elementwise/float32": curve},
            {"read": (1e-5, 1e9)},
            {"gpu": Sharing(1e-5, 1e9, 100.0, 0.1, 1.1)},
        )
    )


def test_save_and_load(tmp_path):
    path = tmp_path / "deep" / "c.json"
    sample().save(path)
    assert load_calibration(path) == sample()
    assert load_calibration(tmp_path / "absent.json") == Calibration()


def test_other_devices_are_kept():
    other = Calibration.of_devices(DeviceCalibration("cpu", "more threads", 1e-6))
    both = sample().with_(other)
    assert len(both.devices) == 2
    assert both.with_(sample()) == both


KEY = "cpu: toy cpu"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(version="1"),
        lambda d: d.pop("version"),
        lambda d: d["devices"][KEY].update(launch_s="soon"),
        lambda d: d["devices"][KEY]["curves"]["elementwise/float32"].update(fixed_s=-1.0),
        lambda d: d["devices"][KEY]["curves"]["elementwise/float32"]["per"].update(bytes=-1.0),
        lambda d: d["devices"][KEY]["curves"]["elementwise/float32"].update(high=float("nan")),
        lambda d: d["devices"][KEY]["curves"]["elementwise/float32"].update(colour="red"),
        lambda d: d["devices"][KEY]["copies"].update(read=[1e-5, 0.0]),
        lambda d: d["devices"][KEY]["sharing"]["gpu"].update(latency_s=None),
        lambda d: d["devices"][KEY]["sharing"]["gpu"].update(bandwidth=0.0),
        lambda d: d.update(devices=[]),
    ],
)
def test_damaged_files_are_named(tmp_path, change):
    path = tmp_path / "c.json"
    sample().save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ModelFileError, match=r"(?s)c\.json.*trireme calibrate"):
        load_calibration(path)


@pytest.mark.parametrize("version, which", [(VERSION - 1, "older"), (VERSION + 1, "newer")])
def test_another_versions_file_is_told_and_unused(tmp_path, version, which, caplog):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"version": version, "devices": {KEY: {"made": "otherwise"}}}))
    found = load_calibration(path)
    assert not found.devices and which in found.stale
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "trireme calibrate" in record.getMessage()
    spec = ToyDevice("cpu").spec
    (line,) = found.unmeasured([spec])
    assert line.startswith("priced by description") and found.stale in line
    assert line.endswith("trireme calibrate --devices cpu")
    assert not sample().unmeasured([spec])
    (line,) = Calibration().unmeasured([spec])
    assert "never measured" in line
    assert not Calibration().unmeasured([replace(spec, clock="virtual")])
    sample().save(path)
    assert load_calibration(path) == sample()


@pytest.mark.parametrize("command", ["place", "profile", "explain"])
def test_commands_say_what_is_not_measured(tmp_path, command, monkeypatch, capsys):
    calibration, model = tmp_path / "c.json", tmp_path / "m.trm"
    calibration.write_text(json.dumps({"version": VERSION - 1, "devices": {}}))
    monkeypatch.setenv("TRIREME_CALIBRATION", str(calibration))
    save(relu(), model)
    assert main([command, str(model), "--devices", "cpu"]) == 0
    assert "priced by description" in capsys.readouterr().out
    assert main([command, str(model), "--devices", "cpu", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["unmeasured"]) == 1


def relu():
    b = GraphBuilder("g")
    return b.finish(b.add("relu", b.input("x", TensorType((100,), "float32"))))


def test_another_machine_is_not_priced():
    graph, device = relu(), ToyDevice("cpu")
    measured = CostModel({"cpu": device}, sample()).node(graph, graph.nodes[0], "cpu")
    assert measured.source == "calibration"
    assert measured.seconds == pytest.approx(1e-7 + 1e-6 + 100e-11 + 800e-10)
    assert measured.low_s == pytest.approx(0.9 * measured.seconds)
    assert measured.high_s == pytest.approx(1.2 * measured.seconds)
    other = Calibration.of_devices(DeviceCalibration("cpu", "other cpu", 1.0))
    costs = CostModel({"cpu": device}, other)
    assert costs.node(graph, graph.nodes[0], "cpu").source == "roofline"
    assert costs.launch_s("cpu") == device.spec.launch_s


def test_a_kernel_is_shared_out_among_its_nodes():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((1000,), "float32"))
    graph = b.finish(b.add("tanh", b.add("relu", x)))
    device = ToyDevice("cpu")
    ids = tuple(node.id for node in graph.nodes)
    device.cost_features = lambda graph: [KernelCost(ids, "chain", {"bytes": 4e3}, 1e-3)]
    curve = Curve(0.0, {"bytes": 1e-9}, 0.5, 2.0)
    costs = CostModel(
        {"cpu": device},
        Calibration.of_devices(DeviceCalibration("cpu", "toy cpu", 0.0, 0.0, {"chain": curve})),
    )
    parts = [costs.node(graph, node, "cpu") for node in graph.nodes]
    assert sum(part.seconds for part in parts) == pytest.approx(4e-6)
    assert all(part.seconds > 0 and part.source == "calibration" for part in parts)
    unknown = Calibration.of_devices(DeviceCalibration("cpu", "toy cpu", 0.0))
    costs = CostModel({"cpu": device}, unknown)
    parts = [costs.node(graph, node, "cpu") for node in graph.nodes]
    assert sum(part.seconds for part in parts) == pytest.approx(1e-3)
    assert parts[0].source == "roofline"


def test_a_region_is_priced_as_its_faster_way():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((1000,), "float32"))
    graph = b.finish(b.add("tanh", b.add("relu", x)))
    device = ToyDevice("cpu")

    def cost_features(graph):
        alone = [KernelCost((n.id,), "map alone", {"bytes": 4e3}) for n in graph.nodes]
        return [
            KernelCost(one.nodes, "map", {"bytes": 2e3, "joins": 1.0}, alone=one) for one in alone
        ]

    device.cost_features = cost_features

    def seconds(join_s, **more):
        curves = {"map": Curve(0.0, {"bytes": 1e-9, "joins": join_s / USUAL.flag_s}), **more}
        known = DeviceCalibration("cpu", "toy cpu", 0.0, 0.0, curves)
        costs = CostModel({"cpu": device}, Calibration.of_devices(known))
        return sum(costs.node(graph, node, "cpu").seconds for node in graph.nodes)

    alone = {"map alone": Curve(0.0, {"bytes": 1e-9})}
    assert seconds(1e-6, **alone) == pytest.approx(6e-6)
    assert seconds(5e-6, **alone) == pytest.approx(8e-6)
    assert seconds(5e-6) == pytest.approx(14e-6)  # what was not measured is not the faster way


def test_what_others_run_is_left_out():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((10,), "float32"))
    y = b.add("tanh", b.add("relu", x))
    graph = b.finish(b.add("add", b.add("relu", y), x))
    part = supported_part(graph, ToyDevice("cpu", ops={"relu", "add"}))
    assert [node.op for node in part.nodes] == ["relu", "relu", "add"]
    assert set(part.inputs) == {x, y} and len(part.outputs) == 2
    assert supported_part(graph, ToyDevice("cpu")) is graph
    assert [work.nodes for work in generic_works(part)] == [(n.id,) for n in part.nodes]


def test_intervals_even_out_over_nodes():
    one = Estimate(1e-3, "calibration")
    low, high = interval([one] * 16)
    each = SPREAD["calibration"]
    assert 16e-3 * each[0] < low < 16e-3 < high < 16e-3 * each[1]
    assert interval([one], 1e-3) == pytest.approx((1e-3 + one.low_s, 1e-3 + one.high_s))


def test_prediction_errors_are_reported_with_its_remedy():
    def error_of(measured_s, sources):
        rows = [("conv", 1e-3, measured_s), ("relu", 1e-5, 1e-5)]
        return prediction_error_of("cpu", rows, [(1e-3, measured_s)], sources, "trireme calibrate")

    assert not error_of(1e-3 * (1 + TOLERANCE - 0.01), ["calibration"]).is_reported
    slow = error_of(1.5e-3, ["calibration"])
    assert slow.is_reported and slow.change == pytest.approx(0.5)
    assert "took 50% more than predicted (1.50 ms for 1.00 ms)" in str(slow)
    assert "took 20% less than" in str(error_of(0.8e-3, ["calibration"]))
    assert "when it is quiet: trireme calibrate" in str(slow)
    assert "never measured" in str(error_of(0.5e-3, ["roofline"]))


def test_a_profile_tells_prediction_errors():
    device = ToyDevice("cpu", delay_s=0.002)
    with Session(
        relu(), devices=[device], execution_options=AS_GIVEN, calibration=sample()
    ) as session:
        profile = session.profile({"x": np.ones(100, np.float32)}, runs=3)
    (error,) = profile.prediction_errors
    assert error.is_reported and "mispredicted" in str(profile)
    assert profile.interval_s[0] < profile.predicted_s < profile.interval_s[1]
    assert profile.to_json()["prediction_errors"][0]["change"] > TOLERANCE


def test_prediction_errors_of_copies_says_what_its_device_is_priced_by():
    """Copies to a device that was never measured are not said to have been."""
    far = ToyDevice("far", link_bandwidth=1e3)
    with Session(
        relu(), devices=[far], execution_options=AS_GIVEN, calibration=Calibration()
    ) as session:
        profile = session.profile({"x": np.ones(100, np.float32)}, runs=2)
    ways = [one for one in profile.prediction_errors if one.what.startswith("copies")]
    assert [one.what for one in ways] == ["copies host>far", "copies far>host"]
    for one in ways:
        assert "never measured" in one.remedy and one.remedy.endswith("--devices far")


def test_instances_are_measured_as_their_kind():
    assert command(["cpu#1", "opencl", "cpu#2"]) == "trireme calibrate --devices cpu,opencl"
    assert command(["cpu#1"], "--cores") == "trireme calibrate --cores --devices cpu"


def test_calibrate_measures_real_devices_only(monkeypatch):
    """Launches take what a formula says, so that no load of this machine disturbs the fit."""

    def measure(net, watch):
        seconds = [1e-6 + 1e-9 * sum(work.terms.values()) for work in net.cost_features]
        net.samples.append((2e-6 + sum(seconds), seconds, UNKNOWN))

    monkeypatch.setattr(Measured, "measure", measure)
    real = ToyDevice("cpu", ops={"add", "relu", "mul"})
    simulated = ToyDevice("npu", ops={"add"})
    simulated.spec = replace(simulated.spec, clock="virtual")
    seen = []
    result = calibrate([real, simulated], lambda *told: seen.append(told))
    (found,) = result.devices.values()
    assert found.name == "cpu"
    curve = found.curves["elementwise/float32"]
    assert curve.error < 0.01 and curve.samples > 0
    assert seen[-1][1] == seen[-1][2]


@pytest.fixture(scope="module")
def cpu():
    device = open_device("cpu", threads=1)
    yield device
    device.close()


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.name)
def test_nets_run_on_native_kernels(net, cpu):
    graph = optimise(build(net))
    assert supported_part(graph, cpu) is graph


def test_works_are_the_kernels_that_run():
    net = Net(
        "n",
        "float32",
        (1, 24, 24, 8),
        [("inverted", 8), ("map", "sigmoid"), ("again", "mul"), ("conv", 12)],
    )
    graph = build(net)
    device = open_device("cpu", threads=2)
    try:
        cost_features = device.cost_features(graph)
        (executable,) = device.compile([graph])
        assert [w.family for w in cost_features if len(w.nodes) > 1] == ["elementwise_f32"]
        assert {n for w in cost_features for n in w.nodes} == {node.id for node in graph.nodes}
        assert all(value >= 0 for work in cost_features for value in work.terms.values())
        assert set(executable.kernels) == {node.id for node in graph.nodes}
    finally:
        device.close()


def test_an_unmeasured_cpu_is_priced_by_what_its_kernels_are_estimated_to_take(cpu):
    """Winograd's algorithm takes a third of a sum of products; a roofline knows no algorithms."""
    graph = optimise(build(Net("n", "float32", (1, 28, 28, 64), [("conv", 64, 3), ("conv", 64)])))
    direct = open_device("cpu", threads=cpu.threads, winograd=False)
    try:
        costs = CostModel({"cpu": cpu}), CostModel({"cpu": direct})
        by_kernel, by_products = (
            [cost.node(graph, node, "cpu").seconds for node in graph.nodes] for cost in costs
        )
        guesses = sum(kernel.guess_s for kernel in cpu.cost_features(graph))
    finally:
        direct.close()
    assert sum(by_kernel) == pytest.approx(guesses)
    first = next(k for k, node in enumerate(graph.nodes) if node.op == "conv")
    assert by_kernel[first] < 0.6 * by_products[first]
    assert by_kernel[first + 1 :] == pytest.approx(by_products[first + 1 :])


def test_many_threads_of_an_unmeasured_cpu_hold_each_other_up():
    """16 threads were priced at a sixteenth of one, so that a GPU of half the time was not used."""
    graph = optimise(build(Net("n", "float32", (1, 64, 64, 64), [("conv", 64, 3)])))
    seconds = {}
    for threads in (1, 2, 16):
        device = open_device("cpu", threads=threads)
        (kernel, *_) = (one for one in device.cost_features(graph) if one.family.startswith("conv"))
        seconds[threads] = kernel.guess_s
        assert threads == 1 or kernel.alone.guess_s == pytest.approx(seconds[1])
        device.close()
    assert seconds[2] == pytest.approx(seconds[1] / 2, rel=0.02)
    assert 2 < seconds[16] / (seconds[1] / 16) < 4


def test_priced_kernels_are_those_compiled():
    """Lowered once to be priced, once not: the same results, also where another region cuts."""
    net = Net("n", "int8", (1, 12, 12, 8), [("inverted", 8), ("conv", 12, 3), ("mean",)])
    graph = optimise(build(net))
    x = np.random.default_rng(0).integers(-128, 128, (1, 12, 12, 8)).astype(np.int8)
    results = []
    for calibration in (
        Calibration(),
        Calibration.of_devices(_known("cpu", 2)),
    ):
        with Session(
            graph, devices=["cpu"], threads=2, execution_options=AS_GIVEN, calibration=calibration
        ) as session:
            results.append(list(session.run({"x": x}).values())[0])
    np.testing.assert_array_equal(*results)


def _known(name, threads):
    device = open_device(name, threads=threads)
    device.close()
    return DeviceCalibration(name, device.spec.description, 1e-6)


def test_pace_is_of_now_to_then(cpu):
    then = calibrate([cpu], limit_s=1.0).of(cpu.spec)
    apart = max(then.nets, key=lambda apart: len(then.nets[apart]))
    nets = {apart: {name: 99 * seconds for name, seconds in then.nets[apart].items()}}
    speed = MachineSpeed(cpu, replace(then, nets=nets))
    speed.measure(apart)
    assert 1e-4 < speed.since() < 0.9
    assert speed.since() == 1.0  # nothing was measured since
    speed.measure(apart)
    speed.forget()
    assert speed.since() == 1.0
    then_alone = {f"{name} alone": 99 * seconds for name, seconds in then.nets[apart].items()}
    elsewhere = MachineSpeed(cpu, replace(then, nets={"far": then.nets[apart] | then_alone}))
    elsewhere.measure("near")
    assert elsewhere.since() < 0.9
    of_one_core = MachineSpeed(cpu, replace(then, nets={"": nets[apart]}))
    of_one_core.measure("near")  # as another device says
    assert of_one_core.since() < 0.9
    speed = MachineSpeed(cpu, replace(then, nets={}))
    speed.measure()
    assert speed.since() == 1.0


def rows(*figures):
    return [
        CheckRow("m", "cpu", 1, "run", predicted, 0.0, 9.0, measured, speed)
        for predicted, measured, speed in figures
    ]


def test_the_bars_are_of_a_quiet_machine():
    """Runs at another speed than the calibration's are told, and not judged."""
    near, far = (1.0, 1.02, 1.0), (1.0, 1.3, 1.01)
    is_met, why = verdict(rows(*[near] * 8, far, far))
    assert is_met and why.startswith("met: of 10 runs") and "80% are within 10%" in why
    assert not verdict(rows(*[near] * 7, far, far, far))[0]
    slow = (1.0, 1.2, 1.2)
    assert verdict(rows(*[near] * 8, slow, slow))[0]
    is_met, why = verdict(rows(*[near] * 7, slow, slow, slow))
    assert not is_met and "only 7 of 10 runs" in why and "trireme calibrate" in why
    assert rows(slow)[0].paced_error == pytest.approx(0.0)
    assert not verdict([])[0]


def test_no_prediction_is_better_than_measurements_of_the_same():
    other = CheckRow("other", "cpu", 1, "run", 1.0, 0.0, 9.0, 5.0, 1.0)
    same = rows((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 2.0, 1.0))
    (line,) = repeated("runs", [*same, other])
    # of 1, 1 and 2 the others' medians are 1.5, 1.5 and 1
    assert "each predicted by the median of its other checks: 3, median error 50.0%" in line
    assert line.endswith("0% within 10%")
    assert not repeated("runs", [same[0], other])


def test_ranks():
    assert rank_correlation([(1, 10), (2, 20), (3, 40)]) == pytest.approx(1)
    assert rank_correlation([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    same = [(1, 10), (1, 12), (2, 20), (2, 21)]  # alike placements say nothing of their order
    assert rank_correlation(same) == rank_correlation(same[::-1]) == pytest.approx(0.8944, abs=1e-4)


def test_the_worked_example_of_the_docs():
    """docs/explanation/placement.md: npu only takes 58 us; with 100 us of latency cpu only wins."""
    b = GraphBuilder("pair")
    x = b.input("x", TensorType((1000,), "float32"))
    graph = b.finish(b.add("tanh", b.add("relu", x)))

    def placed(latency_s):
        cpu, npu = ToyDevice("cpu", launch_s=0.0), ToyDevice("npu", launch_s=20e-6)
        cpu.estimate_s = lambda graph, node: 100e-6
        npu.estimate_s = lambda graph, node: 10e-6
        object.__setattr__(npu.spec, "link_latency_s", latency_s)
        return place_plain(graph, CostModel({"cpu": cpu, "npu": npu}))

    near = placed(5e-6)
    assert near.makespan_s == pytest.approx(58e-6)
    assert near.score.lower_bound == pytest.approx(58e-6)
    assert {one.name: one.value for one in near.candidates}["cpu only"] == pytest.approx(200e-6)
    far = placed(100e-6)
    assert far.makespan_s == pytest.approx(200e-6)
    assert far.unused["npu"] == "the best run found with it takes 48.0 us more"
