"""The words of a layer's figures."""

from enginebench.report.layer_table import format_layer_cell, format_limit, format_remainder, format_share


def test_a_share_is_in_per_cent_and_a_limit_names_what_sets_it() -> None:
    assert (format_share(1 / 3), format_share(None)) == ("33.3%", "-")
    assert (format_limit(0.634, "compute"), format_limit(None, None)) == ("63% compute", "-")
    assert (format_layer_cell(0.5), format_layer_cell(None)) == ("0.50000", "-")


def test_what_lies_in_no_layer_is_distinguished_from_layers_that_take_more_under_the_profiler() -> None:
    assert format_remainder(0.25, 1.0) == "0.2500 ms (25.0%) lie in no layer"
    assert format_remainder(-0.25, 1.0) == "the layers add up to 0.2500 ms more under the profiler"
