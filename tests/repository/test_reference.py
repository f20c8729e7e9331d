"""The generated pages of docs/reference/ say what the code says, and their examples parse."""

import shlex

import pytest

from trireme.tools import generate_reference
from trireme.tools.command_table import EXAMPLES
from trireme.tools.parser import make_parser


def test_the_pages_are_current():
    assert not generate_reference.stale(), f"run {generate_reference.COMMAND}"


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_parse(command):
    for example in EXAMPLES[command]:
        make_parser().parse_args([command, *shlex.split(example)])


def test_every_public_name_is_in_the_page():
    page = generate_reference.api_page()
    for name in generate_reference.trireme.__all__:
        assert f"#### {name}\n" in page or name in ("__version__", "eager", "ops"), name
