"""PoCL's name of the CPU: corrected in the version that is known, said and left in any other."""

import logging
from types import SimpleNamespace

import pytest

from trireme.devices.opencl import pocl

KNOWN = pocl._CORRECTED[0] + " SLEEF, DISTRO, POCL_DEBUG"
NEWER = "OpenCL 3.0 PoCL 6.0  Linux, Release, RELOC, LLVM 18.1.8, SLEEF"


def device_of(cpu):
    version = f"OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-{cpu}"
    return SimpleNamespace(version=version, int_ptr=0)


@pytest.fixture
def searched(monkeypatch):
    """Where memory was searched; nothing is found there."""
    asked = []
    monkeypatch.setattr(pocl, "_find_slot", lambda *args: asked.append(args) or 0)
    return asked


@pytest.mark.parametrize("version", [KNOWN, NEWER])
def test_a_name_that_works_is_left_without_a_search(version, searched, caplog):
    assert pocl.name_cpu(device_of("skylake-avx512"), version) == "skylake-avx512"
    assert not searched and not caplog.messages


@pytest.mark.parametrize("version, searches", [(KNOWN, 1), (NEWER, 0)])
def test_a_name_that_cannot_work_is_told_where_it_stays(version, searches, searched, caplog):
    with caplog.at_level(logging.WARNING):
        assert pocl.name_cpu(device_of("generic"), version) == "generic"
    assert len(searched) == searches
    assert "takes this CPU for generic" in caplog.text and version in caplog.text


def test_a_zen_4_that_is_taken_for_a_zen_3_is_told(searched, monkeypatch, caplog):
    monkeypatch.setattr(pocl, "cpu_flags", lambda: frozenset(pocl._AVX512))
    pocl.name_cpu(device_of("znver3"), NEWER)
    assert "takes this CPU for znver3" in caplog.text
    monkeypatch.setattr(pocl, "cpu_flags", lambda: frozenset(pocl._AVX2))
    caplog.clear()
    assert pocl.name_cpu(device_of("znver3"), NEWER) == "znver3" and not caplog.messages
