"""Numeric options: one that makes no sense is refused in a sentence; long names are shortened."""

import argparse

import pytest
from commands import call, save_small

from trireme.support.errors import RunError, TriremeError
from trireme.tools.command_table import COMMANDS
from trireme.tools.parser import make_parser

SENSELESS = ("-1", "nan", "inf", "-inf", "1" + "0" * 400, "x", "")
SHOULD_COUNT = {
    "--top",
    "--runs",
    "--rounds",
    "--duration",
    "--round-s",
    "--batch",
    "--threads",
    "--depth",
    "--repeat",
    "--steps",
    "--limit",
    "--prove",
}
"""Options that 0 makes no sense for either."""


def numeric():
    """Yield (command, option, action) for every option whose text is parsed."""
    subparsers = (a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for command, parser in next(subparsers).choices.items():
        for action in parser._actions:
            if action.type is not None:
                yield command, action.option_strings[0], action


CASES = list(numeric())


@pytest.mark.parametrize(
    ("command", "option", "action"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES]
)
def test_a_senseless_number_is_one_sentence_and_2(command, option, action, capsys):
    assert action.type not in (int, float), "see number_options.py"
    zero = ["0"] if option in SHOULD_COUNT else []
    for text in (*SENSELESS, *zero):
        with pytest.raises(SystemExit) as ended:
            make_parser().parse_args([command, f"{option}={text}"])
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert said.startswith("usage: ") and said.count("\n") == 2 and len(said) < 700, said
        assert f"argument {option}" in said and "expected" in said, said


def test_every_count_is_checked():
    assert {option for _, option, _ in CASES} >= SHOULD_COUNT
    assert {command for command, _, _ in CASES} <= set(COMMANDS)


@pytest.mark.parametrize("command", ["run", "profile", "bench", "info"])
def test_a_long_path_is_shortened(command, capsys):
    code, out, err = call(capsys, command, "folder/" + "x" * 5000 + ".onnx")
    assert code == 4 and not out
    assert len(err) < 1000 and "folder/xxx" in err and "characters" in err, err


def test_a_long_argument_is_shortened(tmp_path, capsys):
    model = save_small(tmp_path / "small.trm")
    for arguments in (["--shape", "s" * 5000], ["--pin", "p" * 5000 + "=cpu"]):
        code, _, err = call(capsys, "run", model, *arguments)
        assert code in (2, 3) and len(err) < 2000, err


def test_the_ends_of_a_long_word_are_shown():
    error = TriremeError("no file " + "a" * 3000 + "b", facts=["short", "c" * 300], fix="do")
    head, *facts = str(error).splitlines()
    assert head.startswith("no file aaa") and head.endswith("aaab") and len(head) < 300
    assert "(2761 characters)" in head
    assert facts[0] == "  short" and len(facts[1]) < 300 and facts[2] == "  fix: do"
    assert error.summary == "no file " + "a" * 3000 + "b"


def test_many_words_are_shortened_as_well():
    assert len(str(RunError("many " * 5000))) < 2100
