#!/usr/bin/env bash
# torch 2.13.0 (cpu, float32): gelu(inf) is inf for a tensor of one element and NaN for one of eight.
# The exact form (erf) differs by the path that computes it; approximate="tanh" gives inf for both.
# The limit of x * Phi(x) is inf.
#
# Seen: one element inf; eight elements nan; tanh form inf and inf
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import torch
from torch.nn.functional import gelu

one, eight = torch.full((1,), float("inf")), torch.full((8,), float("inf"))
seen = [gelu(x).unique().tolist() for x in (one, eight)]
smooth = [gelu(x, approximate="tanh").unique().tolist() for x in (one, eight)]
print("exact:", seen, "tanh:", smooth)
assert gelu(one).isinf().all() and gelu(eight).isnan().all()
assert all(gelu(x, approximate="tanh").isinf().all() for x in (one, eight))
PY
