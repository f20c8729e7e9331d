"""Names that a new user tries: the message gives the name that there is."""

import logging

import pytest
from commands import call, save_small
from onnx import parser

from trireme.backend.registry import device_names, kind_named, open_device
from trireme.devices.cpu import device as cpu_device
from trireme.devices.cpu.runtime.cores import all_cores
from trireme.support.errors import DeviceError
from trireme.tools.cli import main

pytestmark = pytest.mark.usefixtures("no_calibration")


@pytest.fixture
def model(tmp_path):
    return save_small(tmp_path / "small.trm")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu", "opencl"),
        ("GPU", "opencl"),
        ("cuda", "opencl"),
        ("CPU", "cpu"),
        ("opencel", "opencl"),
    ],
)
def test_a_device_by_another_name_is_found(name, meant, model, capsys):
    code, _, err = call(capsys, "run", model, "--devices", f"npu,{name}")
    assert code == 5 and f"unknown device {name!r}" in err
    assert f"fix: name it {meant} ({kind_named(meant).summary})" in err
    with pytest.raises(DeviceError, match=f"name it {meant}"):
        open_device(f"{name}#1")


def test_no_name_of_one_kind_means_another():
    kinds = [kind_named(name) for name in device_names()]
    names = [name for kind in kinds for name in (kind.name, *kind.also_called)]
    assert len(names) == len(set(names)) and all(name == name.lower() for name in names)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["runn", "{model}"], "run"),
        (["quantise", "{model}"], "quantize"),
        (["benchmark", "{model}"], "bench"),
        (["run", "{model}", "--mode", "paralel"], "parallel"),
        (["place", "{model}", "--objective", "latencyy"], ""),
    ],
)
def test_a_word_that_is_no_choice_has_a_near_one(words, meant, model, capsys):
    with pytest.raises(SystemExit) as caught:
        main([word.format(model=model) for word in words])
    err = capsys.readouterr().err
    assert caught.value.code == 2
    assert ("did you mean" in err) == bool(meant) and (f"did you mean {meant}?" in err or not meant)


def test_threads_beyond_the_cores_are_named(model, capsys, caplog):
    cores = len(all_cores())
    cpu_device._warn_of_turns.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert call(capsys, "place", model, "--threads", str(cores))[0] == 0
        assert not [line for line in caplog.messages if "turns" in line]
        for _ in range(2):
            assert call(capsys, "place", model, "--threads", "999")[0] == 0
    told = [line for line in caplog.messages if "turns" in line]
    assert told == [f"cpu: 999 threads take turns on {cores} cores, and are not faster"]


@pytest.mark.parametrize("where", [["--devices", "npu"], ["--soc", "rk3588", "--devices", "npu"]])
def test_an_op_that_the_npu_refuses_is_for_the_cpu(where, model, capsys):
    code, _, err = call(capsys, "place", model, *where)
    assert code == 3 and "fix: add cpu to the devices" in err and "host" not in err


def test_an_op_of_the_host_alone_is_for_the_host(tmp_path, capsys):
    text = """<ir_version: 10, opset_import: ["" : 22]>
    m (string[2] x, string[2] y) => (string[2] z) { z = StringConcat(x, y) }"""
    path = tmp_path / "text.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    for devices in ("npu", "npu,cpu"):
        code, _, err = call(capsys, "place", str(path), "--devices", devices)
        assert code == 3 and "fix: add host to the devices: it has every op, slowly" in err
