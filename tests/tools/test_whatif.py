"""What-if: variants of described machines, their flips, and the commands that take descriptions."""

import json
import re
import shlex

import numpy as np
import pytest
from described import chain, soc_of
from placement_cases import to_graph
from placing import place_plain
from zoo import zoo_path

import trireme
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.devices.described import load_soc
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.support.errors import RunError
from trireme.tools.cli import main
from trireme.tools.figures import parse_axis
from trireme.tools.progress import Progress
from trireme.tools.variants import held_score, variants


def test_whatif_varies_the_memory_on_the_chip():
    """The more activations of MobileNet v2 an NPU holds, the faster it is."""
    graph = optimise(convert(zoo_path("mobilenet_v2_1.0_224_quant.tflite")))
    soc = load_soc("rk3588")
    axis = parse_axis(soc, "npu.sram=0.125..1", 4)
    found, _ = variants(graph, soc, [axis], "makespan", Progress())
    scores = [variant.score for variant in found]
    assert scores == sorted(scores, reverse=True) and scores[0] > 1.005 * scores[-1]


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
        anew = place_plain(chain(), CostModel(devices, Calibration()))
        assert variant.score == pytest.approx(anew.makespan_s, rel=2e-3)


def test_figures_are_named_in_full_or_short(tmp_path):
    soc = soc_of(tmp_path)
    axis = parse_axis(soc, "bandwidth=1e9,2e9", 2)
    assert axis.values == (1e9, 2e9) and not axis.multiples
    axis = parse_axis(soc, "bandwidth=x0.5,x2", 2)
    assert axis.values == (0.5, 2.0) and axis.multiples
    assert set(soc.named("bandwidth")) == {"cpu.bandwidth", "far.bandwidth"}
    assert soc.named("far.flops.float32") == ["far.flops.float32"]
    assert soc.named("far.flops") == ["far.flops.float32"] and len(soc.named("flops")) == 2
    for row in (
        "cache=1..2",
        "bandwidth=a..b",
        "bandwidth=0..2",
        "bandwidth",
        "bandwidth=x1,2",
        "bandwidth=nan..2",
        "bandwidth=1..inf",
        "=1",
        "",
        "far=1",
    ):
        with pytest.raises(RunError, match="no figure|expected"):
            parse_axis(soc, row, 3)
    with pytest.raises(RunError, match="two values at least"):
        parse_axis(soc, "bandwidth=1..2", 1)


@pytest.mark.parametrize("value", ["0", "-1e9", "nan", "inf", "1e400", "x0", "xnan", "x-1"])
@pytest.mark.parametrize("figure", ["bandwidth", "far.link_bandwidth", "flops", "cpu.launch_s"])
def test_figures_are_not_varied_to_what_cannot_be(tmp_path, figure, value):
    soc = soc_of(tmp_path)
    axis = parse_axis(soc, f"{figure}={value}", 2)
    if figure == "cpu.launch_s" and value in ("0", "x0"):
        assert variants(chain(), soc, [axis], "makespan", Progress())[0][0].score > 0
        return
    with pytest.raises(RunError, match="cannot be varied so"):
        variants(chain(), soc, [axis], "makespan", Progress())


def test_two_axes_do_not_vary_one_figure(tmp_path):
    soc = soc_of(tmp_path)
    axes = [parse_axis(soc, row, 2) for row in ("bandwidth=1..2", "far.bandwidth=1..2")]
    with pytest.raises(RunError, match="both vary far.bandwidth"):
        variants(chain(), soc, axes, "makespan", Progress())


TWINS = """
name = "twins"
[devices.cpu]
flops = { float32 = 1e9 }
bandwidth = 1e10
launch_s = 1e-6
[devices.cpu.sources]
flops = "t"
bandwidth = "t"
launch_s = "t"
"""
TWINS += "".join(
    f"""
[devices.{name}]
flops = {{ float32 = 1e11 }}
bandwidth = 1e11
launch_s = 1e-6
memory = "{name}"
link_bandwidth = 1e9
[devices.{name}.sources]
flops = "t"
bandwidth = "t"
launch_s = "t"
link_bandwidth = "t"
"""
    for name in ("one", "two")
)


def wide():
    b = GraphBuilder("wide")
    x = b.input("x", TensorType((1, 64, 64, 32), "float32"))
    weights = b.constant("w", np.ones((64, 3, 3, 32), np.float32))
    return b.finish(
        b.add(
            "conv",
            x,
            weights,
            pads=(1, 1, 1, 1),
            strides=(1, 1),
            dilations=(1, 1),
            groups=1,
            layout="NHWC",
        )
    )


@pytest.mark.parametrize("objective", ["makespan", "throughput"])
def test_whatif_says_what_place_says(tmp_path, objective):
    """Splits, and the search of every objective, are those of `place --soc`."""
    soc = soc_of(tmp_path, TWINS)
    axis = parse_axis(soc, "link_bandwidth=0.1..30", 6)
    found, flips = variants(wide(), soc, [axis], objective, Progress())
    for value, variant in zip(axis.values, found, strict=True):
        machine = soc.varied({name: 1e9 * value for name in axis.names})
        costs = CostModel(dict(machine.devices()), Calibration())
        anew = place_plain(wide(), costs, objective, sharding="auto", multi_device="significant")
        assert variant.score == pytest.approx(anew.score.value, rel=1e-3)
    if objective == "makespan":
        ways = [one.where[0].partition(" by ")[0] for one in (found[0], found[-1])]
        assert ways == ["cpu+one+two", "one+two"] and found[-1].shards
        assert any("cpu+one+two by" in way for flip in flips for way in flip.moves)
        assert all(flip.gain > 0 for flip in flips)
        plain, _ = variants(wide(), soc, [axis], objective, Progress(), "off")
        assert not any(one.shards for one in plain) and plain[-1].score > found[-1].score


def test_whatif_leaves_what_does_not_fit_any_more(tmp_path, capsys):
    """With less memory the parts cannot be where they were: there is no gain to tell."""
    text = TWINS.replace("link_bandwidth = 1e9", "link_bandwidth = 1e12\nmemory_bytes = 1e8")
    text = text.replace('link_bandwidth = "t"', 'link_bandwidth = "t"\nmemory_bytes = "t"')
    soc_of(tmp_path, text)
    model, soc = str(tmp_path / "wide.trm"), str(tmp_path / "soc.toml")
    trireme.save(wide(), model)
    words = ["whatif", model, "--soc", soc, "--vary", "memory_bytes=x1,0.001"]
    for more in ([], ["--shard", "off"]):
        assert main([*words, *more]) == 2  # x1,0.001 is neither values nor multiples
        capsys.readouterr()
        rows = [*words[:-1], "memory_bytes=x1,x0.001", *more]
        assert main([*rows, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["variants"][1]["where"] == ["cpu"] and data["flips"][0]["gain"] is None
        assert main(rows) == 0
        assert "the placement before is impossible there" in capsys.readouterr().out


def test_commands_take_some_devices_of_a_description(tmp_path, capsys):
    soc_of(tmp_path, TWINS)
    model, soc = str(tmp_path / "wide.trm"), str(tmp_path / "soc.toml")
    trireme.save(wide(), model)
    assert main(["place", model, "--soc", soc, "--devices", "cpu,two"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"two +1 +1 ", out) and "cpu       unused" in out and "\n  one " not in out
    assert main(["whatif", model, "--soc", soc, "--devices", "two", "--vary", "flops=1..2"]) == 0
    assert "two 1" in capsys.readouterr().out
    assert main(["whatif", model, "--soc", soc, "--pin", "*=cpu"]) == 0
    assert "cpu 1, one 0, two 0" in capsys.readouterr().out
    for more, message in (
        (["--devices", "gpu"], "no device 'gpu'"),
        (["--devices", ","], "no device without a name"),
        (["--measure"], "--measure is for devices that run"),
        (["--threads", "1"], "only described"),
        (["--soc", ""], "'' cannot be read: Is a directory"),
        (["--pin", "*=gpu"], "not among the"),
    ):
        assert main(["place", model, "--soc", soc, *more]) in (2, 3, 4)
        assert message in capsys.readouterr().err


def test_the_commands(tmp_path, capsys):
    soc_of(tmp_path)
    model, soc = str(tmp_path / "chain.trm"), str(tmp_path / "soc.toml")
    trireme.save(chain(), model)
    assert main(["explain", model, "--soc", soc]) == 0
    out = capsys.readouterr().out
    assert "placement of 'chain'" in out and "nodes that cost most" in out
    assert (
        main(
            [
                "whatif",
                model,
                "--soc",
                soc,
                "--vary",
                "link_bandwidth=0.1..100",
                "--vary",
                "far.launch_s=1e-5,1e-4",
                "--steps",
                "4",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "flip between link_bandwidth x" in out and "far.launch_s 0.0001" in out
    assert "as described: far.launch_s 1e-05" in out
    assert main(["whatif", model, "--soc", soc, "--vary", "launch_s=1..9", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["variants"]) == 11
    assert main(["whatif", model, "--soc", "nope"]) == 4
    assert "with trireme come coral_dev_board" in capsys.readouterr().err


@pytest.mark.timed
def test_fifty_variants_of_a_thousand_nodes_take_a_minute():
    import time

    graph, _ = to_graph(1, 620)
    assert len(graph.nodes) >= 900
    soc = load_soc("jetson_orin_nano")
    axes = [parse_axis(soc, "link_bandwidth=0.5..16", 10), parse_axis(soc, "launch_s=0.5..2", 5)]
    start = time.process_time()
    found, _ = variants(graph, soc, axes, "makespan", Progress())
    assert len(found) == 50 and time.process_time() - start <= 60


@pytest.mark.parametrize(
    "text, figure", [(None, "link_bandwidth=0.1..100"), (TWINS, "link_bandwidth=0.1..30")]
)
def test_the_commands_of_a_flip_reproduce_it(tmp_path, capsys, monkeypatch, text, figure):
    """The two last commands predict what the flip says that moving gains."""
    monkeypatch.chdir(tmp_path)
    soc_of(tmp_path, *([text] if text else []))
    trireme.save(wide() if text else chain(), "model of mine.trm")
    words = [
        "whatif",
        "model of mine.trm",
        "--soc",
        str(tmp_path / "soc.toml"),
        "--vary",
        figure,
        "--steps",
        "6",
    ]
    assert main([*words, "--json"]) == 0
    flips = json.loads(capsys.readouterr().out)["flips"]
    assert flips
    for flip in flips:
        scores = []
        for command in flip["commands"]:
            program, *rest = shlex.split(command)
            assert program == "trireme" and main([*rest, "--json"]) == 0
            scores.append(json.loads(capsys.readouterr().out)["score"])
        assert flip["gain"] == pytest.approx(scores[2] - scores[3], rel=1e-12, abs=0)


def test_at_the_crossing_both_placements_take_the_same(tmp_path):
    soc = soc_of(tmp_path)
    axis = parse_axis(soc, "link_bandwidth=0.1..100", 4)
    _, (flip,) = variants(chain(), soc, [axis], "makespan", Progress())
    assert flip.low < flip.crossing < flip.high
    for share, first_wins in ((0.99, True), (1.01, False)):
        machine = soc.varied(axis.changes(soc, flip.crossing * share))
        costs = CostModel(dict(machine.devices()), Calibration())
        scores = [held_score(chain(), costs, "makespan", s) for s in (flip.before, flip.after)]
        assert (scores[0] < scores[1]) == first_wins
