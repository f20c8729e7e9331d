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
