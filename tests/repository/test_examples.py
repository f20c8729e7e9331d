"""Every script in examples/ runs and says something."""

import importlib.util

import pytest
from zoo import CHECKOUT

SCRIPTS = sorted((CHECKOUT / "examples").glob("*.py"))
SAID = {
    "control_flow": "captured Python: 5 rows, 24 steps, as numpy",
    "custom_op": "numpy reference",
    "heterogeneous_graph": "the same bits in 8 ways: True",
    "embed": "digits are right",
    "null_device": "no kernel for tanh",
    "null_converter": "array([",
    "quantise": "int8 on the npu: 9",
    "read_placement": "us predicted",
    "compare_machines": "rk3588",
    "hold_placement": "the same placement: True",
    "profile_and_trace": "written: ",
    "web_service": "sent [2, 0, 7], got [2, 0, 7]",
}
NEEDS = {"web_service": "fastapi", "heterogeneous_graph": "pyopencl"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("own_registry")
def test_an_example_runs(script, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if script.stem in NEEDS:
        pytest.importorskip(NEEDS[script.stem])
    spec = importlib.util.spec_from_file_location(f"example_{script.stem}", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    assert SAID.get(script.stem, "") in capsys.readouterr().out
    assert module.__doc__ and module.main.__doc__
