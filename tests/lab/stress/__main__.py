"""Run `python -m lab.stress` as a process."""

import sys

from lab.stress.command import main

sys.exit(main())
