#!/usr/bin/env bash
# torch 2.13.0 (cpu, float32): the remainder of one pair of numbers depends on its place in the
# tensor. fmod of whole vectors gives NaN where the quotient overflows float32; the elements after
# the last whole vector go through the C library and get the exact remainder. So torch.fmod of 17
# equal pairs has two answers, and a tensor of one element disagrees with a longer one.
# torch.remainder does the same. numpy 2.4.6 gives the exact remainder everywhere.
#
# Seen: fmod(3e38, 0.1): 16 times nan, then 0.0795948; of one element alone 0.0795948
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import torch

a, b = torch.full((17,), 3e38), torch.full((17,), 0.1)
exact = float(np.fmod(np.float32(3e38), np.float32(0.1)))
many, one = torch.fmod(a, b), torch.fmod(a[:1], b[:1])
print("17 elements:", many.tolist())
print("one element:", one.item(), "numpy:", exact)
assert many.isnan().any() and not many.isnan().all(), many
assert many[-1].item() == one.item() == exact
assert np.fmod(a.numpy(), b.numpy()).tolist() == [exact] * 17
PY
