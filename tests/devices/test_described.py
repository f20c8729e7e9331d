"""Described machines: the files, what is refused, placing on them, and what-if variants."""

import json
import math
import random

import numpy as np
import pytest
from commands import call
from described import TEXT, chain, soc_of
from placing import place_plain
from zoo import CHECKOUT, zoo_path

import trireme
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.devices.described import load_soc, soc_names
from trireme.devices.described.checks import Published
from trireme.devices.described.published import (
    Compared,
    compare,
    held_out_errors,
    predicted_ms,
)
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.runtime.session.session import Session
from trireme.support.errors import CompileError, ModelFileError

RUN = 'device = "far"\nmodel = "m"\ndtype = "int8"\nms = 1\nsource = "s"'
SOCS = CHECKOUT / "devices/described/socs"


@pytest.mark.parametrize("name", soc_names())
def test_shipped_descriptions_are_whole(name):
    assert (SOCS / f"{name}.toml").exists()
    soc = load_soc(name)
    for device, row in soc.tables["devices"].items():
        for key, source in row["sources"].items():
            assert key in row and len(source) > 7, f"{name}: {device}.{key}"
    assert any(
        "data sheet" in s or "brief" in s
        for row in soc.tables["devices"].values()
        for s in row["sources"].values()
    )


def test_four_descriptions_come_with_trireme():
    assert len(soc_names()) == 4


@pytest.mark.parametrize("name", ["coral_dev_board", "raspberry_pi_5_hailo", "rk3588"])
def test_int8_mobilenet_is_near_what_is_published(name):
    """Within a quarter where the description was fitted to the run, else within a factor of 2."""
    soc = load_soc(name)
    graph = optimise(convert(zoo_path("tf2_mobilenet_v2_1.0_224_ptq.tflite")))
    run = next(r for r in soc.published() if r.dtype == "int8" and r.model == "mobilenet_v2")
    row = Compared(run, predicted_ms(soc, run, graph))
    assert row.factor < (1.25 if run.used == "fit" else 2.0), row


@pytest.mark.slow
@pytest.mark.parametrize("name", soc_names())
def test_published_runs(name, made_models):
    """Fitted runs are predicted within a tenth, held-out runs of these models within a factor of 2:
    print both."""
    rows = [row for row in compare(load_soc(name), made_models) if row.predicted_ms is not None]
    for row in rows:
        print(f"{name}: {row.run}: {row.predicted_ms:.3g} ms")
    for used, bar in (("fit", 1.1), ("held out", 2.0)):
        assert all(row.factor < bar for row in rows if row.run.used == used)
    assert any(row.run.used == "held out" for row in rows)


def test_errors_are_those_of_held_out_runs(tmp_path):
    """The model of one run is there, in two sizes of its time; the other's is not."""
    trireme.save(chain(), tmp_path / "chain.trm")
    row = '[[published]]\ndevice = "far"\nmodel = "{}"\ndtype = "{}"\nms = {}\nsource = "s"\n'
    row += 'used = "{}"\n'
    known = predicted_ms(soc_of(tmp_path, TEXT), _run("far"), chain())
    rows = [("chain", "float32", known, "fit"), ("chain", "float32", known / 2, "held out")]
    rows += [("chain", "float32", known * 4, "held out"), ("gone", "int8", 1, "held out")]
    soc = soc_of(tmp_path, "\n".join([TEXT, *(row.format(*one) for one in rows)]))
    found = compare(soc, tmp_path)
    assert [one.predicted_ms for one in found] == [pytest.approx(known)] * 3 + [None]
    assert [one.error for one in found[:3]] == pytest.approx([0, 1, -0.75], abs=1e-9)
    assert held_out_errors(found) == pytest.approx({"median": 3.0, "worst": 4.0})
    assert not held_out_errors(compare(soc, None))


def _run(device):
    return Published(device, "chain", "float32", 1.0, "s", "fit")


def test_the_command_tells_a_descriptions_errors(tmp_path, capsys):
    soc_of(
        tmp_path,
        TEXT + '\n[[published]]\ndevice = "far"\nmodel = "chain"\n'
        'dtype = "float32"\nms = 1\nsource = "s"\nused = "held out"\n',
    )
    words = ["devices", "--soc", str(tmp_path / "soc.toml")]
    code, out, _ = call(capsys, *words)
    assert code == 0 and "no model" in out and "without --models DIR): chain" in out
    trireme.save(chain(), tmp_path / "chain.trm")
    code, out, _ = call(capsys, *words, "--models", str(tmp_path))
    assert code == 0 and "held out: predicted within a factor of" in out
    code, out, _ = call(capsys, *words, "--models", str(tmp_path), "--json")
    data = json.loads(out)
    assert data["published"][0]["used"] == "held out" and data["held_out"]["worst"] > 1
    for more, message in ((["--models", "/nowhere"], "there is no such folder"),):
        code, _, err = call(capsys, *words, *more)
        assert code == 2 and message in err
    code, _, err = call(capsys, "devices", "--models", str(tmp_path))
    assert code == 2 and "add --soc" in err


def test_a_compiler_that_maps_one_subgraph_stops_at_the_first_op_it_refuses(tmp_path):
    text = TEXT.replace('memory = "far"', 'memory = "far"\none_subgraph = true')
    far = soc_of(tmp_path, text).devices()["far"]
    graph = chain(("tanh", "erf", "tanh"))
    reasons = [far.unsupported_reason(graph, node) for node in graph.nodes]
    assert reasons[0] is None and reasons[1] == "its description has no erf"
    assert reasons[2] == f"its compiler maps one subgraph, which ends before {graph.nodes[1].label}"
    several = soc_of(tmp_path).devices()["far"]
    assert several.unsupported_reason(graph, graph.nodes[2]) is None


def test_sizes_of_an_op_may_end(tmp_path):
    text = TEXT.replace('memory = "far"', 'memory = "far"\nmax_elements = { tanh = 99 }')
    text = text.replace('link_bandwidth = "t"', 'link_bandwidth = "t"\nmax_elements = "t"')
    far = soc_of(tmp_path, text).devices()["far"]
    for size, reason in (
        (99, None),
        (100, "its description has tanh of 99 elements at most, not 100"),
    ):
        graph = chain(("tanh",), size=size)
        assert far.unsupported_reason(graph, graph.nodes[0]) == reason


def test_schemes_name_products_and_the_dtypes_of_their_values(tmp_path):
    text = TEXT.replace('memory = "far"', 'memory = "far"\nschemes = ["uint8"]')
    text = text.replace('link_bandwidth = "t"', 'link_bandwidth = "t"\nschemes = "t"')
    also = text.replace('["uint8"]', '["uint8"]\ndtypes = ["int8", "float32"]')
    only, more = (soc_of(tmp_path, one).devices()["far"] for one in (text, also))
    graphs = {}
    for scheme in ("int8", "uint8", "weights_int4"):
        made = trireme.quantize(product(), {"x": np.eye(32)[:8, None]}, scheme=scheme)
        graphs[scheme] = made, next(n for n in made.nodes if n.op in PRODUCTS)
    assert only.unsupported_reason(*graphs["uint8"]) is None
    assert only.unsupported_reason(*graphs["int8"]) == "its description has no int8"
    assert more.unsupported_reason(*graphs["int8"]) == "its description has no scheme int8"
    assert "no scheme weights_int4" in more.unsupported_reason(*graphs["weights_int4"])
    floats = chain(("tanh",))
    assert more.unsupported_reason(floats, floats.nodes[0]) is None
    assert only.unsupported_reason(floats, floats.nodes[0]) == "its description has no float32"


PRODUCTS = ("fully_connected", "matmul_nbits")


def product():
    b = GraphBuilder("product")
    x = b.input("x", TensorType((1, 32), "float32"))
    return b.finish(b.add("fully_connected", x, b.constant("w", np.eye(32, dtype=np.float32))))


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
        ('memory = "far"', 'memory = "far"\nsinks = 1', "not true or false"),
        ('memory = "far"', 'memory = "far"\none_subgraph = 1', "not true or false"),
        ('memory = "far"', 'memory = "far"\nmax_elements = { tanh = 0 }', "a whole number above 0"),
        ('memory = "far"', 'memory = "far"\nmax_elements = { tahn = 1 }', "'tahn', which is no op"),
        ('memory = "far"', 'memory = "far"\nsram = 1e6', "sram and no sram_bandwidth"),
        ("[devices.cpu]", "[devices.cpu", "soc.toml"),
        ("launch_s = 1e-6", 'launch_s = 1e-6\nmemory = "near"\nlink_bandwidth = 1e9', "no source"),
        ("launch_s = 1e-6", f"launch_s = 1{'0' * 400}", "not a positive number"),
        ('name = "test"', 'name = "test"\ncolour = 1', "unknown field 'colour'"),
        ('name = "test"', 'name = "test"\npublished = 3', "no list of tables"),
        ("{ float32 = 1e9 }", "{ float32 = { a = 1e9 } }", "float32 is {'a'.*not a positive"),
        ("{ float32 = 1e9 }", "{ float31 = 1e9 }", "'float31', which is no dtype"),
        ('memory = "far"', 'memory = ["far"]', "not a text"),
        ('memory = "far"', 'memory = "far"\nops = ["convv"]', "'convv', which is no op"),
        ('memory = "far"', 'memory = "far"\nops = ["tanh"]', "far.ops has no source"),
        ('memory = "far"', 'memory = "far"\ndtypes = ["int88"]', "'int88', which is no dtype"),
        ('memory = "far"', 'memory = "far"\nschemes = ["int9"]', "'int9', which is no scheme"),
        ('memory = "far"', 'memory = "far"\nschemes = "int8"', "not a list of names"),
        ('memory = "far"', 'memory = "far"\nschemes = ["int8"]', "far.schemes has no source"),
        ('memory = "far"', 'memory = "far"\nmax_rank = 2.5', "not a whole number"),
        ('memory = "far"', 'memory = "far"\nefficiency = { deflt = 1 }', "expected KIND"),
        ('memory = "far"', 'memory = "far"\nefficiency = { default = 2 }', "of 1 at most"),
        ('flops = "t"', "flops = 3", "sources.flops is 3, not a text"),
        ("devices.far", 'devices."a>b"', "have a meaning"),
        ("devices.far", 'devices.""', "not called ''"),
    ],
)
def test_wrong_descriptions_are_named(tmp_path, old, new, message):
    text = TEXT.replace(old, new) if old == "devices.far" else TEXT.replace(old, new, 1)
    with pytest.raises(ModelFileError, match=message):
        soc_of(tmp_path, text)


@pytest.mark.parametrize("name", soc_names())
def test_mutated_descriptions_are_refused_by_name_or_can_be_placed_on(tmp_path, name):
    text = (SOCS / f"{name}.toml").read_text().partition("[[published]]")[0]
    values = ["0", "-1", "nan", "inf", '"x"', "[]", "[1]", "{}", "{ a = 1 }", "true", "1e308", "7"]
    rng, refused = random.Random(f"described {name}"), 0
    for _ in range(60):
        rows = text.splitlines()
        at = rng.choice([i for i, row in enumerate(rows) if " = " in row])
        key = rows[at].partition(" = ")[0]
        rows[at] = f"{key} = {rng.choice(values)}" if rng.random() < 0.7 else ""
        try:
            soc = soc_of(tmp_path, "\n".join(rows))
        except ModelFileError:
            refused += 1
            continue
        placed = place_plain(chain(size=100), CostModel(dict(soc.devices()), Calibration()))
        assert math.isfinite(placed.makespan_s), rows[at]
    assert 20 <= refused < 60, refused


def test_estimates_of_a_description_are_read_off_figures(tmp_path):
    """They say so, keep the roofline's interval, and a split must gain more than a doubt."""
    costs = CostModel(dict(soc_of(tmp_path).devices()), Calibration())
    graph = chain()
    estimate = costs.node(graph, graph.nodes[0], "cpu")
    assert estimate.source == "roofline"
    assert estimate.low_s < 0.5 * estimate.seconds and estimate.high_s > 2 * estimate.seconds


@pytest.mark.parametrize(
    ("row", "dtype", "kind", "share"),
    [
        ({}, "int8", "conv", 1.0),
        ({"default": 0.5}, "int8", "conv", 0.5),
        ({"default": 0.5, "depthwise": 0.1}, "float32", "depthwise", 0.1),
        ({"default": 0.5, "int8": {"depthwise": 0.1}}, "int8", "depthwise", 0.1),
        ({"default": 0.5, "int8": {"default": 0.2}}, "int8", "depthwise", 0.2),
        ({"default": 0.5, "int8": {"default": 0.2}}, "float16", "depthwise", 0.5),
    ],
)
def test_shares_by_kind_and_dtype(tmp_path, row, dtype, kind, share):
    def table(shares):
        rows = (f"{k} = {table(v) if isinstance(v, dict) else v}" for k, v in shares.items())
        return "{" + ", ".join(rows) + "}"

    text = TEXT.replace("launch_s = 1e-6", f"launch_s = 1e-6\nefficiency = {table(row)}", 1)
    soc = soc_of(tmp_path, text.replace('launch_s = "t"', 'launch_s = "t"\nefficiency = "t"', 1))
    assert soc.devices()["cpu"].working.share(dtype, kind) == share
    if "int8" in row:
        (name,) = [n for n in soc.figures() if n.startswith("cpu.efficiency.int8.")]
        changed = soc.varied({name: 0.9}).devices()["cpu"].working
        assert changed.share("int8", name.rsplit(".", 1)[1]) == 0.9


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('device = "far"\nmodel = "m"\ndtype = "int8"\nms = 1', "published has no source"),
        (RUN, "has no used"),
        (f'{RUN}\nused = "maybe"', "not 'fit' or 'held out'"),
        (
            'device = "gpu"\nmodel = "m"\ndtype = "int8"\nms = 1\nsource = "s"\nused = "fit"',
            "no device 'gpu'",
        ),
        (
            'device = "far"\nmodel = "m"\ndtype = "int8"\nms = 0\nsource = "s"\nused = "fit"',
            "positive number",
        ),
        ('device = "far"\nfps = 3', "and nothing else"),
    ],
)
def test_wrong_published_runs_are_named(tmp_path, row, message):
    with pytest.raises(ModelFileError, match=message):
        soc_of(tmp_path, f"{TEXT}\n[[published]]\n{row}\n")


def test_a_description_cannot_be_run(tmp_path):
    devices = list(soc_of(tmp_path).devices().values())
    with pytest.raises(CompileError, match="only described"):
        Session(chain(), devices=devices)


def seconds_of(tmp_path, *lines, graph=None):
    """What the nodes of a chain are estimated to take on the far device, with lines added to it."""
    text = TEXT.replace("launch_s = 1e-5", "\n".join(("launch_s = 1e-5", *lines)))
    sources = [f'{key} = "t"' for key in ("sram", "sram_bandwidth") if key in "".join(lines)]
    far = soc_of(tmp_path, "\n".join((text, *sources))).devices()["far"]
    graph = graph or chain()
    return [far.estimate_s(graph, node) for node in graph.nodes], far.spec.launch_s


def test_what_fits_on_the_chip_travels_faster(tmp_path):
    """800,000 bytes go in and out of every node: 8 us from memory, 2 us on the chip."""
    plain, _ = seconds_of(tmp_path)
    assert plain == pytest.approx([8e-6] * 6)
    small, _ = seconds_of(tmp_path, "sram = 799999", "sram_bandwidth = 4e11")
    large, _ = seconds_of(tmp_path, "sram = 800000", "sram_bandwidth = 4e11")
    assert small == plain and large == pytest.approx([2e-6] * 6)


def test_weights_come_from_memory_wherever_the_rest_is(tmp_path):
    b = GraphBuilder("product")
    x = b.input("x", TensorType((1, 1000), "float32"))
    weights = b.constant("w", np.ones((1000, 1000), np.float32))
    graph = b.finish(b.add("matmul", x, weights))
    found, _ = seconds_of(tmp_path, "sram = 8000", "sram_bandwidth = 1e12", graph=graph)
    assert found == pytest.approx([4e6 / 1e11 + 8e3 / 1e12])


def test_where_nothing_sinks_every_node_is_launched(tmp_path):
    """The sum is the same for one node; regions save nothing."""
    plain, launch = seconds_of(tmp_path)
    alone, none = seconds_of(tmp_path, "sinks = false")
    assert (launch, none) == (1e-5, 0.0)
    assert alone == pytest.approx([one + 1e-5 for one in plain])


def test_refusals_say_the_description(tmp_path):
    devices = dict(soc_of(tmp_path).devices())
    placement = place_plain(chain(("tanh", "erf")), CostModel(devices, Calibration()))
    assert placement.choices[1].refusals == {"far": "its description has no erf"}
