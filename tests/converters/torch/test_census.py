"""Which layers of torch.nn convert, on samples of torch's own tests; the how-to has the count."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from lab.census import SAMPLES, SEED, WRONG, layers, page_lines, verdict_of  # noqa: E402
from zoo import CHECKOUT  # noqa: E402

PAGE = CHECKOUT / "docs/how-to/convert-pytorch.md"


@pytest.mark.sweep
def test_layers_agree_with_torch_and_the_page_counts_them():
    print("seed", SEED)
    found = {name: verdict_of(makers, SAMPLES) for name, makers in layers()}
    wrong = {name: why for name, (verdict, why) in found.items() if verdict == WRONG}
    assert not wrong
    lines = page_lines({name: verdict for name, (verdict, _) in found.items()})
    table = "\n".join(lines)
    assert table in PAGE.read_text(), "python -m lab.census layers --page"
