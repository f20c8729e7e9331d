"""Named devices decide the scheme: each says what it runs, and the report says why."""

from contextlib import closing

import pytest
from float_graphs import conv_net, samples_of

import trireme
from trireme.backend.registry import open_device
from trireme.devices.described import soc_names
from trireme.passes.pipeline import optimise
from trireme.quantiser.device_forms import AUTOMATIC, DEFAULT_SCHEME, forms_of_devices
from trireme.quantiser.precision.target import opened_target
from trireme.quantiser.scheme import SCHEMES
from trireme.support.errors import GraphError

SEED = 3


@pytest.fixture(scope="module")
def net():
    return conv_net(SEED)


def for_devices(net, **options):
    samples = samples_of(net, 8, SEED)
    is_integer = options.get("scheme", "int8") in ("int8", "uint8")
    quick = {"ranges": "min_max", "repairs": "none"} if is_integer else {}
    return trireme.quantize(net, samples, **quick, **options)


def test_every_scheme_can_be_chosen():
    """All but int16x8, which the caller names."""
    assert {*AUTOMATIC, "int16x8"} == set(SCHEMES) and AUTOMATIC[0] == DEFAULT_SCHEME


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_device_runs_the_schemes_that_it_says(net, scheme):
    """It runs the products of a whole model of the scheme, or refuses all of them."""
    made = optimise(for_devices(net, scheme=scheme))
    ops = ("matmul_nbits",) if scheme.startswith("weights") else ("conv", "fully_connected")
    products = [node for node in made.nodes if node.op in ops]
    for forms in forms_of_devices(["cpu", "opencl", "npu"], None, None):
        with closing(open_device(forms.name)) as device:
            reasons = [device.unsupported_reason(made, node) for node in products]
        assert reasons and {bool(why) for why in reasons} == {bool(forms.products[scheme])}


@pytest.mark.parametrize(
    ("machine", "scheme", "why"),
    [
        ({"devices": ["npu", "cpu"]}, "int8", "its products run on npu, cpu"),
        ({"soc": "rk3588"}, "int8", "its products run on cpu, npu; gpu: its description has no"),
        ({"soc": "raspberry_pi_5_hailo", "devices": ["npu"]}, "int8", "its products run on npu"),
    ],
)
def test_devices_decide_the_scheme(net, machine, scheme, why):
    report = for_devices(net, **machine).quantization
    assert report.scheme == scheme and report.scheme_why.startswith(why)
    assert f"scheme: {scheme}, {report.scheme_why}" in str(report)


def test_a_gpu_of_floats_gets_float16(net):
    report = trireme.quantize(net, soc="rk3588", devices=["gpu", "cpu"]).quantization
    assert report.scheme == "float16" and report.scheme_why == "its products run on cpu, gpu"


def test_a_description_of_one_scheme_gets_it(net, tmp_path):
    path = tmp_path / "one.toml"
    path.write_text(
        """
        name = "one"
        [devices.cpu]
        flops = { uint8 = 1e9 }
        bandwidth = 1e9
        launch_s = 1e-6
        schemes = ["uint8"]
        dtypes = ["float32"]
        [devices.cpu.sources]
        flops = "t"
        bandwidth = "t"
        launch_s = "t"
        schemes = "t"
        """
    )
    report = for_devices(net, soc=str(path)).quantization
    assert report.scheme == "uint8" and report.scheme_why == "its products run on cpu"
    with pytest.raises(GraphError) as error:
        trireme.quantize(net, soc=str(path), scheme="weights_int4")
    assert "no named device runs products of the scheme weights_int4" in str(error.value)
    assert "cpu: its description has no scheme weights_int4" in str(error.value)
    assert "scheme='uint8'" in str(error.value)


@pytest.mark.parametrize(
    ("scheme", "machine", "reason"),
    [
        ("weights_int4", {"devices": ["opencl"]}, "opencl: no kernel for matmul_nbits"),
        ("dynamic", {"devices": ["npu"]}, "npu: tensors must be of a dtype that the NPU has"),
        ("int8", {"soc": "rk3588", "devices": ["gpu"]}, "gpu: its description has no int8"),
    ],
)
def test_a_scheme_that_no_named_device_runs_is_refused(net, scheme, machine, reason):
    with pytest.raises(GraphError) as error:
        for_devices(net, scheme=scheme, **machine)
    assert f"no named device runs products of the scheme {scheme}" in str(error.value)
    assert reason in str(error.value)


def test_a_budget_takes_schemes_of_integers_alone(net):
    with pytest.raises(GraphError, match="no named device runs products of the scheme int8"):
        for_devices(net, soc="rk3588", devices=["gpu"], budget=20.0, metric="snr")


def test_a_file_keeps_the_reason(net, tmp_path):
    made = for_devices(net, devices=["npu"])
    trireme.save(made, tmp_path / "m.trm")
    kept = trireme.load(tmp_path / "m.trm").quantization
    assert kept.scheme_why == made.quantization.scheme_why != ""


@pytest.mark.parametrize("soc", soc_names())
def test_the_chosen_scheme_keeps_the_accelerator_busy(net, soc):
    """Each description's second device is offered products of the scheme that it decided."""
    made = optimise(for_devices(net, soc=soc))
    with opened_target(None, soc, None) as target:
        device = list(target.costs.devices.values())[-1]
        convs = [node for node in made.nodes if node.op == "conv"]
        reasons = {device.unsupported_reason(made, node) for node in convs}
    if device.support.one_subgraph:
        reasons = {why for why in reasons if why and "one subgraph" not in why} or {None}
    assert reasons == {None}
