"""Progress and colour: on a terminal alone, no line stuck to another, none wider than it."""

import os
import pty
import re
import struct
import sys

import pytest
from commands import save_small

from trireme.runtime.program.feeds import random_feeds
from trireme.runtime.session.session import Session
from trireme.tools.progress import Progress, left_text, time_left_s


@pytest.fixture
def model(tmp_path):
    return save_small(tmp_path / "small.trm")


def in_terminal(*arguments, columns=100, **environment):
    """Return what the command writes to a terminal of that width."""
    import fcntl
    import termios

    process, terminal = pty.fork()
    if not process:
        size = struct.pack("HHHH", 30, columns, 0, 0)
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        given = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
        words = [sys.executable, "-m", "trireme.tools.cli", *arguments]
        os.execve(sys.executable, words, given | environment)  # readline sets COLUMNS behind Python
    written = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.waitpid(process, 0)
    os.close(terminal)
    return written.decode()


def without_rich(folder):
    """Return the environment in which rich cannot be imported."""
    (folder / "rich").mkdir()
    (folder / "rich" / "__init__.py").write_text("raise ImportError")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def shown(written):
    """Return the lines that stay on the screen: what is wiped is gone."""
    lines = re.split(r"\r?\n", re.sub(r"\x1b\[\?\d+[hl]", "", written))
    return [re.split(r"\x1b\[2?K|\r", line)[-1] for line in lines]


@pytest.mark.parametrize("rich", [True, False])
def test_a_line_of_progress_sticks_to_nothing(model, tmp_path, rich):
    if rich:
        pytest.importorskip("rich")
    environment = {} if rich else without_rich(tmp_path)
    written = in_terminal("run", "absent.trm", **environment)
    assert "preparing absent.trm" in written
    last = [line for line in shown(written) if line][-1]
    assert last == "ModelFileError: absent.trm cannot be read: No such file or directory"


def test_colour_is_for_terminals_that_want_it(model):
    pytest.importorskip("rich")
    colour = re.compile(r"\x1b\[[0-9;]*m")
    words = ("explain", model)
    assert colour.search(in_terminal(*words, TERM="xterm-256color"))
    assert not colour.search(in_terminal(*words, TERM="xterm-256color", NO_COLOR="1"))
    assert "\x1b" not in in_terminal(*words, TERM="dumb")


@pytest.mark.parametrize("columns", [60, 100])
def test_a_screen_is_as_wide_as_the_terminal(model, columns):
    lines = shown(in_terminal("place", model, columns=columns, TERM="dumb"))
    assert any("device" in line for line in lines)
    assert max(map(len, lines)) <= columns, "\n".join(lines)


def test_what_is_no_terminal_gets_plain_lines_when_it_takes_long(monkeypatch, capsys):
    times = iter([0.0, 1.0, 1.0, 26.0, 26.0, 26.0])
    monkeypatch.setattr("trireme.tools.progress.time.perf_counter", lambda: next(times))
    progress = Progress()
    progress("placing", 1, 10)
    assert capsys.readouterr().err == ""
    progress("placing", 5, 10)
    assert capsys.readouterr().err == "placing 5/10, 25 s left\n"
    progress.done()
    assert capsys.readouterr().err == ""


def test_time_left():
    assert time_left_s(10.0, 5, 20) == 30.0
    assert time_left_s(0.5, 5, 20) is None and time_left_s(10.0, 0, 20) is None
    assert [left_text(s) for s in (None, 4.4, 89.0, 200.0)] == [
        "",
        "4 s left",
        "89 s left",
        "3 min left",
    ]


def test_a_profile_tells_how_far_it_is(monkeypatch, model):
    monkeypatch.setattr("trireme.runtime.loop.executors._REPORTED_S", 0.0)
    told = []
    with Session(model) as session:
        feeds = random_feeds(session.inputs)
        session.profile(feeds, 3, 1, lambda *one: told.append(one))
    assert told == [("timing runs", 0, 0), *(("watching runs", n, 4) for n in range(4))]
