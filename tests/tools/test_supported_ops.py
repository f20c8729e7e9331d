"""SUPPORTED_OPS.md says what the devices say."""

import pytest
from zoo import CHECKOUT

from trireme.tools.supported_ops import support_table, table_text

PAGE = CHECKOUT / "SUPPORTED_OPS.md"


@pytest.fixture(scope="module")
def table():
    return support_table()


def test_the_page_is_current(table):
    if table.absent:
        pytest.skip(f"a device is absent: {dict(table.absent)}")
    assert PAGE.read_text() == table_text(table) + "\n", "trireme supported-ops > SUPPORTED_OPS.md"


def test_the_main_ops_have_kernels_everywhere(table):
    rows = {row.op: row.kernels for row in table.rows}
    for op in ("conv", "fully_connected", "add", "mul", "max_pool", "average_pool", "softmax"):
        for device, cell in rows[op].items():
            assert "int8" in cell, f"{op} on {device}: {cell}"


def test_control_flow_and_strings_are_for_the_host(table):
    rows = {row.op: row.kernels for row in table.rows}
    for op in ("if", "loop", "scan", "string_concat", "regex_full_match"):
        assert set(rows[op].values()) == {"-"}, op


def test_the_page_says_of_each_format_what_converts_and_what_does_not(table):
    text = table_text(table)
    onnx, refused = text.split("## What an .onnx file may hold")[1].split("### Refused in an")
    for row in ("| Conv | `conv` |", "| Attention | its function |", "| If | `if` |"):
        assert row in onnx, row
    assert "| com.microsoft.MatMulNBits | `matmul_nbits` |" in onnx
    assert "RandomNormal " in refused.split("##")[0]
    tflite = text.split("### Refused in a .tflite file")[1].split("## ")[0]
    for name in ("HASHTABLE_FIND", "of strings"):
        assert name in tflite, name
    assert "CONV_2D" not in tflite
    assert "| add | Scalar, Tensor |" in text.split("## What a PyTorch model may hold")[1]
