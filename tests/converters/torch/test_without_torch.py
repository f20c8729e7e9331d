"""Without torch: `import trireme` does not need it, and a model of PyTorch says what to install."""

import subprocess
import sys

import pytest

import trireme
from trireme.support.errors import ConvertError


def test_import_does_not_import_torch():
    code = """if True:
        import sys, trireme, trireme.converters.torch.table
        trireme.convert
        print('torch' in sys.modules)"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


def test_a_model_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConvertError, match="needs torch") as caught:
        trireme.convert(b"PK", format="torch")
    assert "trireme-engine[torch]" in caught.value.fix
