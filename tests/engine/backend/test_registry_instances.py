"""Opening instances of a device: their options, their share of the cores, and what is refused."""

from dataclasses import replace

import pytest
from toy_device import ToyDevice

import trireme.ops  # noqa: F401
from trireme.backend.device import DeviceSpec
from trireme.backend.device_kind import DeviceInstance, DeviceKind
from trireme.backend.registry import check_cores, open_device, options_of, register_device
from trireme.devices.cpu.runtime.cores import all_cores, share_of, whole_cores
from trireme.devices.cpu.runtime.native import has_futex
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError, TriremeError

pytestmark = pytest.mark.skipif(
    not has_futex() or len(all_cores()) < 2, reason="instances need Linux and two cores"
)
NAMES = ["cpu#1", "cpu#2"]


def relu():
    builder = GraphBuilder("g")
    return builder.finish(builder.add("relu", builder.input("x", TensorType((4,), "float32"))))


def test_what_is_refused():
    cores = len(all_cores())
    cases = {
        "cpu#0": "numbered from 1",
        "cpu#one": "numbered from 1",
        "cpu#": "numbered from 1",
        f"cpu#{cores + 1}": "one for each instance",
        "opencl#1": "opencl has no instances",
        "host#1": "host has no instances",
        "gpu#1": "unknown device",
    }
    for name, message in cases.items():
        with pytest.raises(DeviceError, match=message):
            open_device(name)
    with pytest.raises(DeviceError, match=f"{cores} threads on its own cores"):
        open_device("cpu#1", instances=2, threads=cores)
    with pytest.raises(DeviceError, match="expected some of"):
        open_device("cpu#1", cores=[4096])
    with pytest.raises(DeviceError, match="given to an instance"):
        open_device("cpu", cores=[0])


@pytest.mark.parametrize("names", [["cpu", "cpu#1"], ["cpu#2", "cpu"], ["opencl", "cpu#1"]])
def test_devices_that_share_cores_are_refused_together(names):
    try:
        with Session(relu(), devices=names):
            pytest.fail(f"{names} were opened together")
    except TriremeError as error:
        if "opencl" in names and "share core" not in str(error):
            pytest.skip(f"no OpenCL on the cores: {error}")
        assert "share core 0" in str(error) or "share core" in str(error)
        assert "fix: instances without" in str(error)


def test_cores_that_two_instances_were_both_given_are_refused():
    options = {"cpu": {"cores": [all_cores()[0]], "threads": 1}}
    with pytest.raises(DeviceError, match=r"cpu#1 and cpu#2 share core"):
        Session(relu(), devices=NAMES, execution_options=ExecutionOptions(device_options=options))
    with pytest.raises(DeviceError, match="cores that differ"):
        check_cores(
            DeviceSpec(name, "", {}, 1.0, 0.0, resource_group=name, cores=frozenset([1]))
            for name in NAMES
        )


def test_options_of_a_kind_and_of_an_instance():
    given = {"cpu": {"isa": "avx2", "spins": 1}, "cpu#2": {"spins": 2}}
    names = ["npu", "cpu#1", "cpu#3"]
    assert options_of("cpu#1", names, given, 4) == {
        "isa": "avx2",
        "spins": 1,
        "threads": 4,
        "instances": 3,
    }
    assert options_of("cpu#2", names, given)["spins"] == 2
    assert options_of("npu", names, given, 4) == {}
    assert options_of("cpu", ["cpu"], given, 4) == {"isa": "avx2", "spins": 1, "threads": 4}


def test_threads_of_one_core_go_to_one_instance(tmp_path):
    """Eight CPUs, two threads a core: 0 with 4, 1 with 5, and so on."""
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert whole_cores(range(8), tmp_path) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert whole_cores([0, 1, 5], tmp_path) == [(0,), (1, 5)]


def test_shares_are_disjoint_for_any_number_of_instances(monkeypatch, tmp_path):
    monkeypatch.setattr("trireme.devices.cpu.runtime.cores.all_cores", lambda: (1, 3, 5, 7, 9))
    for count in range(1, 6):
        shares = [share_of(DeviceInstance("", k + 1, count), None, tmp_path) for k in range(count)]
        assert len({cpu for one in shares for cpu in one}) == sum(map(len, shares)) <= 5
        assert {len(one) for one in shares} == {5 // count}
    with pytest.raises(DeviceError, match="cpu#1 to cpu#5"):
        share_of(DeviceInstance("cpu#6", 6, 6), None, tmp_path)


@pytest.mark.usefixtures("own_registry")
def test_a_device_of_another_package_has_instances_if_it_says_so():
    opened = []

    def open_other(options, instance):
        opened.append(instance)
        return ToyDevice(instance.name)

    several = DeviceKind("other", "", open_other, instances=True)
    register_device(several)
    open_device("other#2", instances=3)
    open_device("other")
    assert opened == [DeviceInstance("other#2", 2, 3), DeviceInstance("other")]
    register_device(replace(several, instances=False))
    with pytest.raises(DeviceError, match="other has no instances"):
        open_device("other#2")
