"""A pytest plugin for __main__.py: which tests run, and a line for each one's start and end.

TRIREME_MUTANT_TESTS names a file of the tests to run, in their order: what is not in it does not
run, and one that is gone is not missed. The lines go to the file that TRIREME_MUTANT_LOG names:
"begun", the CPU seconds of the process so far and the test; then the outcome (passed, failed or
skipped), the CPU seconds of the test and the test. Children that have ended count.
"""

import os

import pytest

_log = os.environ["TRIREME_MUTANT_LOG"]
_wanted = os.environ.get("TRIREME_MUTANT_TESTS", "")
_outcomes: dict[str, str] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    if _wanted:
        with open(_wanted) as file:
            place = {test: i for i, test in enumerate(file.read().splitlines())}
        items[:] = sorted(
            (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    before = _cpu_s()
    _note("begun", before, item.nodeid)
    result = yield
    _note(_outcomes.pop(item.nodeid, "skipped"), _cpu_s() - before, item.nodeid)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed or (report.skipped and _outcomes.get(item.nodeid) != "failed"):
        _outcomes[item.nodeid] = report.outcome
    else:
        _outcomes.setdefault(item.nodeid, "passed")
    return report


def _cpu_s() -> float:
    return sum(os.times()[:4])


def _note(event: str, seconds: float, test: str) -> None:
    with open(_log, "a") as file:
        file.write(f"{event}\t{seconds:.3f}\t{test}\n")
