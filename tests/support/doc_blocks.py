"""Run the blocks of a page of docs in their order, as a reader pastes them.

    python doc_blocks.py PAGE ZOO

    ```python             runs; ```python name.py is written to that file instead
    ```sh                 each `trireme` command runs and must end with 0
    ```toml name.toml     is written to that file
    ```text               is output or a formula

In a tutorial, text behind a block that ran is a part of what that block printed: its lines in their
order, `...` for lines left out, numbers and units of time apart.

The folder is the current one. A `curl` line copies the file from ZOO; without the file the page
ends there. `trireme serve ... --http 8000 &` serves until the page ends, on any free port; what
follows asks that port.
"""

import contextlib
import io
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

KINDS = ("python", "sh", "toml", "text")
NOT_RUN = ("python3 -m venv", "pip install", ".venv/bin/pip", "pytest", ".ci/", "git ")
"""Shell commands of a reader that no test repeats."""
PARSED = ("bench", "calibrate")
"""Commands of trireme that take too long: their options are parsed."""


PORT = "localhost:8000"
"""Where the server of a page listens, as the page says it."""
SERVERS = []
"""The servers of the page, and their ports."""


def start_server(words):
    """Start a server on a free port, and wait until it says which."""
    words = ["0" if word == PORT.partition(":")[2] else word for word in words]
    process = subprocess.Popen(
        [sys.executable, "-m", "trireme", *words], stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        found = re.search(r"serving at \w+://[^ ]+:(\d+)", line)
        if found:
            SERVERS.append((process, f"localhost:{found[1]}"))
            return
    raise AssertionError(f"it did not serve: {' '.join(words)}")


def stop_servers():
    """End the servers of the page; each must exit with 0."""
    for process, _ in SERVERS:
        process.terminate()
        assert process.wait(30) == 0


def of_server(text):
    """Return a text with the true port of the page's server."""
    return text.replace(PORT, SERVERS[-1][1]) if SERVERS else text


def blocks(text):
    """Return (kind, file name or "", text) of each block of a page."""
    found = re.findall(r"^```(\w*) ?([\w./-]*)[^\n]*\n(.*?)^```$", text, re.S | re.M)
    return [(kind, name, block) for kind, name, block in found]


def commands(block):
    """Return the commands of a block of shell: continued lines joined, comments left out."""
    lines = block.replace("\\\n", " ").splitlines()
    words = (shlex.split(line.removesuffix(" &"), comments=True) for line in lines)
    return [one for one in words if one]


def run_command(words, zoo):
    """Run one command; return False where the page ends for want of a file."""
    from trireme.tools.cli import main
    from trireme.tools.parser import make_parser

    line = " ".join(words)
    if words[0] == "trireme" and words[1] in PARSED:
        make_parser().parse_args(words[1:])
    elif words[:2] == ["trireme", "serve"]:
        start_server(words[1:])
    elif words[0] == "trireme":
        print(f"$ {line}", file=sys.__stdout__, flush=True)
        assert main(words[1:]) == 0, line
    elif words[0] == "curl" and PORT in line:
        quiet = ["curl", "--silent", "--show-error", "--fail-with-body"]
        subprocess.run([*quiet, *map(of_server, words[1:])], check=True)
    elif words[0] == "curl":
        name = words[-1].rpartition("/")[2]
        source = next((p for p in (zoo / name, zoo / "images" / name) if p.exists()), None)
        if source is None:
            return False
        shutil.copyfile(source, name)
    elif words[0] == "python" and words[1].endswith(".py") and pathlib.Path(words[1]).exists():
        subprocess.run([sys.executable, *words[1:]], check=True)
    else:
        assert line.startswith(NOT_RUN), f"nothing runs this: {line}"
    return True


def masked(text):
    """Return the lines of a text with # for each number, without units of time and alignment."""
    text = re.sub(r"\d+(?:[.,]\d+)*(?: (?:s|ms|us|ns)\b)?", "#", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def is_part(shown, printed):
    """Whether the lines of `shown` are in `printed` in their order, with gaps at `...` alone."""
    lines = [r"(?:.*\n)*?" if line == "..." else re.escape(f"{line}\n") for line in masked(shown)]
    whole = "".join(f"{line}\n" for line in masked(printed))
    return re.search(f"^{''.join(lines)}", whole, re.M) is not None


def run_page(page, zoo):
    """Run the blocks of a page in the current folder; compare what a tutorial shows of it."""
    names = {"__name__": "__main__"}
    printed = None
    for kind, name, block in blocks(page.read_text()):
        if kind == "text" and printed is not None and page.parent.name == "tutorial":
            assert is_part(block, printed), f"the page shows\n{block}\nprinted was\n{printed}"
        printed = None
        if name:
            pathlib.Path(name).write_text(block)
        elif kind in ("python", "sh"):
            with contextlib.redirect_stdout(io.StringIO()) as output:
                more = run_block(page, kind, block, names, zoo)
            printed = output.getvalue()
            print(printed, flush=True)
            if not more:
                return


def run_block(page, kind, block, names, zoo):
    """Run a block; return False where the page ends for want of a file."""
    if kind == "sh":
        return all(run_command(words, zoo) for words in commands(block))
    exec(compile(of_server(block), f"{page.name}", "exec"), names)
    return True


if __name__ == "__main__":
    sys.path.insert(0, "")
    try:
        run_page(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    finally:
        stop_servers()
