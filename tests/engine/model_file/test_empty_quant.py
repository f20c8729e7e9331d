"""A quantisation without scales is a defect of the file, whatever else is wrong with the value."""

import pytest

from trireme.model_file.flat import FileDefect
from trireme.model_file.types import read_type


@pytest.mark.parametrize("empty", ["scales", "zero_points"])
def test_a_quantisation_without_numbers_is_refused(empty):
    quant = {"scales": (0.5,), "zero_points": (0,), "axis": None, empty: ()}
    with pytest.raises(FileDefect, match="no scale or no zero point"):
        read_type({"dtype": "int8", "shape": (2, 3), "quant": quant}, ())
