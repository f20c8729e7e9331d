"""`python tools/convert.py MODEL -o m.trm`: the same as `trireme convert`."""

import sys

from trireme.tools.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
