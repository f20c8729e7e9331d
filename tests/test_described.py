"""Described machines: the files, what is refused, placing on them, and what-if variants."""

import json
import pathlib

import pytest
from placement_cases import to_graph
from zoo import zoo_path

import trireme
from trireme.builder import GraphBuilder
from trireme.calibration import Calibration
from trireme.convert import convert
from trireme.cost import CostModel
from trireme.devices.described import load_soc, soc_names
from trireme.errors import CompileError, ModelFileError, RunError
from trireme.graph import TensorType
from trireme.optimise import optimise
from trireme.place import place
from trireme.session import Session
from trireme.tools.cli import main
from trireme.tools.options import Progress
from trireme.tools.whatif import parse_axis, variants

SOCS = pathlib.Path(__file__).parent.parent / "devices/described/socs"
TEXT = """
name = "test"
[devices.cpu]
flops = { float32 = 1e9 }
bandwidth = 2e9
launch_s = 1e-6
[devices.cpu.sources]
flops = "t"
bandwidth = "t"
launch_s = "t"
[devices.far]
flops = { float32 = 1e12 }
bandwidth = 1e11
launch_s = 1e-5
memory = "far"
link_latency_s = 5e-6
link_bandwidth = 1e8
except_ops = ["erf"]
[devices.far.sources]
flops = "t"
bandwidth = "t"
launch_s = "t"
link_latency_s = "t"
link_bandwidth = "t"
"""


def soc_of(tmp_path, text=TEXT):
    path = tmp_path / "soc.toml"
    path.write_text(text)
    return load_soc(str(path))


def chain(ops=("tanh",) * 6, size=100_000):
    b = GraphBuilder("chain")
    x = b.input("x", TensorType((size,), "float32"))
    for op in ops:
        x = b.add(op, x)
    return b.finish(x)


@pytest.mark.parametrize("name", soc_names())
def test_shipped_descriptions_are_whole(name):
    assert (SOCS / f"{name}.toml").exists()
    soc = load_soc(name)
    for device, row in soc.tables["devices"].items():
        for key, source in row["sources"].items():
            assert key in row and len(source) > 7, f"{name}: {device}.{key}"
    assert any("data sheet" in s or "brief" in s for row in soc.tables["devices"].values()
               for s in row["sources"].values())  # fmt: skip


def test_four_descriptions_come_with_trireme():
    assert len(soc_names()) == 4


def test_coral_is_near_what_is_published():
    """coral.ai: MobileNet v2, int8, 2.6 ms on the Dev Board. Efficiencies were chosen by it."""
    graph = optimise(convert(zoo_path("mobilenet_v2_1.0_224_quant.tflite")))
    devices = dict(load_soc("coral_dev_board").devices())
    placement = place(graph, CostModel(devices, Calibration()))
    assert 1.5e-3 < placement.makespan_s < 4e-3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "test"', "", "has a name"),
        ("launch_s = 1e-6", "", "has no launch_s"),
        ("bandwidth = 2e9", 'bandwidth = "fast"', "not a positive number"),
        ("bandwidth = 2e9", "bandwidth = nan", "not a positive number"),
        ("bandwidth = 2e9", "bandwidth = -1", "not a positive number"),
        ("bandwidth = 2e9", "bandwidth = 2e9\ncolour = 1", "unknown field 'colour'"),
        ('launch_s = "t"', "", "launch_s has no source"),
        ("flops = { float32 = 1e9 }", "flops = {}", "flops is empty"),
        ("link_bandwidth = 1e8", "", "no link_bandwidth"),
        ('memory = "far"', 'memory = "far"\ndtypes = [1]', "not a list of names"),
        ("[devices.cpu]", "[devices.cpu", "soc.toml"),
        ('launch_s = 1e-6', 'launch_s = 1e-6\nmemory = "near"\nlink_bandwidth = 1e9', "no source"),
    ],
)  # fmt: skip
def test_wrong_descriptions_are_named(tmp_path, old, new, message):
    with pytest.raises(ModelFileError, match=message):
        soc_of(tmp_path, TEXT.replace(old, new, 1))


def test_a_description_cannot_be_run(tmp_path):
    devices = list(soc_of(tmp_path).devices().values())
    with pytest.raises(CompileError, match="only described"):
        Session(chain(), devices=devices)


def test_refusals_say_the_description(tmp_path):
    devices = dict(soc_of(tmp_path).devices())
    placement = place(chain(("tanh", "erf")), CostModel(devices, Calibration()))
    assert placement.choices[1].refusals == {"far": "its description has no erf"}


def test_whatif_finds_the_flip(tmp_path):
    """The far device wins once its link is fast enough; the flip says what moving gains."""
    soc = soc_of(tmp_path)
    axis = parse_axis(soc, "link_bandwidth=0.1..100", 8)
    assert axis.names == ("far.link_bandwidth",)
    found, flips = variants(chain(), soc, [axis], "makespan", Progress())
    scores = [variant.score for variant in found]
    assert scores == sorted(scores, reverse=True) and len(found) == 8
    (flip,) = flips
    assert list(flip.moves) == ["cpu -> far"] and len(flip.moves["cpu -> far"]) == 6
    assert flip.gain > 0
    for value, variant in zip(axis.values, found, strict=True):
        devices = dict(soc.varied({"far.link_bandwidth": 1e8 * value}).devices())
        anew = place(chain(), CostModel(devices, Calibration()))
        assert variant.score == pytest.approx(anew.makespan_s, rel=2e-3)


def test_figures_are_named_in_full_or_short(tmp_path):
    soc = soc_of(tmp_path)
    assert parse_axis(soc, "bandwidth=1e9,2e9", 2).values == (1e9, 2e9)
    assert set(soc.named("bandwidth")) == {"cpu.bandwidth", "far.bandwidth"}
    assert soc.named("far.flops.float32") == ["far.flops.float32"]
    for row in ("sram=1..2", "bandwidth=a..b", "bandwidth=0..2", "bandwidth"):
        with pytest.raises(RunError, match="sram|expected"):
            parse_axis(soc, row, 3)


def test_the_commands(tmp_path, capsys):
    soc_of(tmp_path)
    model, soc = str(tmp_path / "chain.trm"), str(tmp_path / "soc.toml")
    trireme.save(chain(), model)
    assert main(["place", model, "--soc", soc, "--why"]) == 0
    out = capsys.readouterr().out
    assert "placement of 'chain'" in out and "with it here" in out
    assert main(["whatif", model, "--soc", soc, "--vary", "link_bandwidth=0.1..100",
                 "--vary", "far.launch_s=1e-5,1e-4", "--steps", "4"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "flip between link_bandwidth x" in out and "far.launch_s 0.0001" in out
    assert main(["whatif", model, "--soc", soc, "--vary", "launch_s=1..9", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["variants"]) == 11
    assert main(["whatif", model, "--soc", "nope"]) == 4
    assert "with trireme come coral_dev_board" in capsys.readouterr().err


@pytest.mark.slow
def test_fifty_variants_of_a_thousand_nodes_take_a_minute():
    import time

    graph, _ = to_graph(1, 620)
    assert len(graph.nodes) >= 900
    soc = load_soc("jetson_orin_nano")
    axes = [parse_axis(soc, "link_bandwidth=0.5..16", 10), parse_axis(soc, "launch_s=0.5..2", 5)]
    start = time.process_time()
    found, _ = variants(graph, soc, axes, "makespan", Progress())
    assert len(found) == 50 and time.process_time() - start <= 60
