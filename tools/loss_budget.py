"""Options of `trireme quantize` that give a loss budget and the machine that the model is for."""

from __future__ import annotations

import argparse
from typing import Any

from trireme.quantiser.precision.budget import METRICS, SNR
from trireme.support.errors import RunError
from trireme.tools.number_options import positive, seconds, share
from trireme.tools.options import argument

BUDGET_ARGUMENTS = (
    argument(
        "--max-loss",
        type=share,
        metavar="LOSS",
        help="what the metric may lose: nodes then stay float where that keeps the budget at the "
        "least predicted time; with --metric",
    ),
    argument(
        "--metric",
        choices=tuple(name for name in METRICS if name != SNR),
        help="top1: the share of right answers, with --labels; agreement: the share of answers "
        "that are the float model's",
    ),
    argument(
        "--labels", metavar="FILE", help=".npy file with the labels of all samples, in their order"
    ),
    argument(
        "--min-snr-db",
        type=positive,
        metavar="DB",
        help="in place of --max-loss: the least signal-to-noise of an output beside float",
    ),
    argument(
        "--soc",
        metavar="NAME",
        help="described machine that the model is for, its name or a .toml file, in place of this "
        "one; a budget places nodes there",
    ),
    argument(
        "--time-limit",
        type=seconds,
        metavar="SECONDS",
        help="seconds after which the search of a budget tries no more choices (default: no limit)",
    ),
    argument(
        "--devices",
        metavar="NAMES",
        help="devices that the model is for, as npu,cpu: one that takes products of integers alone "
        "gets them, and a budget places nodes there (default: cpu; with --soc all of it)",
    ),
)


def budget_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `trireme.quantize` that the options of a budget are.

    Errors: RunError, if both budgets are given
    """
    if options.max_loss is not None and options.min_snr_db is not None:
        raise RunError("--max-loss and --min-snr-db are both budgets; give one of them")
    names = [name.strip() for name in (options.devices or "").split(",") if name.strip()]
    is_snr = options.min_snr_db is not None
    return {
        "budget": options.min_snr_db if is_snr else options.max_loss,
        "metric": SNR if is_snr and options.metric is None else options.metric,
        "labels": options.labels,
        "devices": names or None,
        "soc": options.soc,
        "time_limit_s": options.time_limit,
    }
