"""Options of devices on the command line: each declared flag is there, and reaches its devices."""

from collections import defaultdict

import numpy as np
import pytest
from commands import call, save_small

import trireme
from trireme.backend.registry import device_names, kind_named
from trireme.tools.command_table import COMMANDS
from trireme.tools.options import add_device_choice, add_devices
from trireme.tools.parsed import device_options
from trireme.tools.parser import make_parser

pytestmark = pytest.mark.usefixtures("no_calibration")

DECLARED = [
    (name, one) for name in device_names() for one in kind_named(name).declared() if one.flag
]
TAKES_DEVICES = [
    name for name, one in COMMANDS.items() if {add_devices, add_device_choice} & {*one.shared}
]
ARGUMENTS = {"replay": ["folder"]}


def parsed(command, *words):
    model = [] if command == "calibrate" else ["m.trm"]
    return make_parser().parse_args([command, *model, *ARGUMENTS.get(command, []), *words])


@pytest.mark.parametrize("command", TAKES_DEVICES)
def test_each_flag_reaches_each_device_that_declares_it(command):
    for flag in {one.flag for _, one in DECLARED}:
        mine = {name: one for name, one in DECLARED if one.flag == flag}
        switch = any(one.switched is not None for one in mine.values())
        words = ["--devices", ",".join(mine), flag, *([] if switch else ["value"])]
        found = device_options(parsed(command, *words))
        expected = {n: {one.name: one.switched if switch else "value"} for n, one in mine.items()}
        assert found == expected, f"{command} {flag}"
        assert device_options(parsed(command, "--devices", ",".join(mine))) == {}


def test_devices_that_share_a_flag_take_it_alike():
    takes_value = defaultdict(set)
    for _, one in DECLARED:
        takes_value[one.flag].add(one.switched is None)
        assert one.switched is None or not one.choices or one.switched in one.choices
    assert all(len(alike) == 1 for alike in takes_value.values())
    assert [name for name, one in DECLARED if one.flag == "--float16"] == ["opencl", "npu"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return save_small(tmp_path / "small.trm")


@pytest.mark.parametrize("command", ["place", "explain", "profile", "run"])
def test_a_float_model_runs_on_the_npu_in_float16(command, model, capsys):
    code, _, err = call(capsys, command, model, "--devices", "npu")
    assert code == 3 and "open it with float32='float16', or --float16, to round" in err
    code, out, err = call(capsys, command, model, "--devices", "npu", "--float16")
    assert code == 0, err
    assert command == "run" or "npu" in out


def test_the_flag_gives_the_bits_of_the_option(model, tmp_path, capsys):
    x = np.random.default_rng(3).standard_normal((1, 6, 6, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    given = ["--devices", "npu", "--float16", "--input", "x=x.npy", "--output", "y.npz"]
    assert call(capsys, "run", model, *given)[0] == 0
    options = trireme.ExecutionOptions(device_options={"npu": {"float32": "float16"}})
    with trireme.Session(model, devices=["npu"], execution_options=options) as session:
        expected = session.run({"x": x})["z"]
    with np.load("y.npz") as made:
        np.testing.assert_array_equal(made["z"], expected)
    with trireme.Session(model) as session:
        assert not np.array_equal(session.run({"x": x})["z"], expected)


def test_a_flag_of_devices_that_are_not_used_is_refused(model, capsys):
    code, _, err = call(capsys, "place", model, "--float16")
    assert code == 2
    assert "--float16 is an option of opencl and npu, and the devices are cpu" in err
    assert "fix: add one of them to --devices, or leave out --float16" in err
