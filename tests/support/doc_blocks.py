"""Run the blocks of a page of docs in their order, as a reader pastes them.

    python doc_blocks.py PAGE ZOO

    ```python             runs; ```python name.py is written to that file instead
    ```sh                 each `trireme` command runs and must end with 0
    ```toml name.toml     is written to that file
    ```text               is output or a formula

The folder is the current one. A `curl` line copies the file from ZOO; without the file the page
ends there.
"""

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


def blocks(text):
    """Return (kind, file name or "", text) of each block of a page."""
    found = re.findall(r"^```(\w*) ?([\w./-]*)[^\n]*\n(.*?)^```$", text, re.S | re.M)
    return [(kind, name, block) for kind, name, block in found]


def commands(block):
    """Return the commands of a block of shell: continued lines joined, comments left out."""
    lines = block.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def run_command(words, zoo):
    """Run one command; return False where the page ends for want of a file."""
    from trireme.tools.cli import main, make_parser

    line = " ".join(words)
    if words[0] == "trireme" and words[1] in PARSED:
        make_parser().parse_args(words[1:])
    elif words[0] == "trireme":
        print(f"$ {line}", flush=True)
        assert main(words[1:]) == 0, line
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


def run_page(page, zoo):
    """Run the blocks of a page in the current folder."""
    names = {"__name__": "__main__"}
    for kind, name, block in blocks(page.read_text()):
        if name:
            pathlib.Path(name).write_text(block)
        elif kind == "python":
            exec(compile(block, f"{page.name}", "exec"), names)
        elif kind == "sh" and not all(run_command(words, zoo) for words in commands(block)):
            return


if __name__ == "__main__":
    sys.path.insert(0, "")
    run_page(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
