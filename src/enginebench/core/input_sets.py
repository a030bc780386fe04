"""Sets of inputs that outputs are compared on beside the usual ones, by the names that records give them."""

# Of the user's factory or module.
EXAMPLES = "examples"
# The user's own, of --inputs or --data.
GIVEN = "given"
# Padding in every mask, integers at the ends of their known range, states that are not zero.
MASKS = "masks"
# Those of no known range, negative ones too.
INTEGERS = "integers"
# Floats that are large, negative, positive or zero.
LARGE = "large"
# Those of `LARGE`, each changed by a few rounding steps: where that moves the outputs, rounding may, too.
NUDGED = "nudged"

# In front of a shape of a mix of requests, as `core/shapes.py: name_cells` names it.
CELL = "shape "
# Calls of each of these shapes; of the first one as many as of any configuration.
CELL_CALLS = 4

# What each is called, behind "on".
SET_NAMES: dict[str, str] = {
    GIVEN: "your inputs",
    EXAMPLES: "the example inputs",
    MASKS: "padded masks and integers at the ends of their range",
    INTEGERS: "negative and large integers",
    LARGE: "large, negative and zero inputs",
}


def name_set(name: str) -> str:
    """Return what a set of inputs is called, behind "on": the shape of a cell, or that of `SET_NAMES`."""
    return name if name.startswith(CELL) else SET_NAMES[name]
