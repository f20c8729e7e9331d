"""`python -m trireme` is the command line: the engine imports no tool, so it is named by a text."""

import runpy

if __name__ == "__main__":
    runpy.run_module("trireme.tools.cli", run_name="__main__")
