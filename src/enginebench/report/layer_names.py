"""Shorten names of layers for readers: a fusion to its parts, a kernel to what distinguishes it."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

# The path of a module, or an operator in it; names of nodes have slashes.
_PART = re.compile(r"[\w.]+(?:: \w+(?: \d+)?)?")
# A demangled function of C++ with its arguments; TensorRT's `PWN(a, b)` is none.
_SIGNATURE = re.compile(r"^void\s|^std::enable_if|::[^()]*\(|>\s?\(")
# A function that has no name stands in the one around it: `copy(Tensor&)::{lambda(float)#2}::operator()(float) const`.
_LAMBDA = re.compile(r"::\{lambda#?(\d*)\}")
_NOISE = re.compile(r"::operator\b|\s*\bconst\b|\(anonymous namespace\)::")
_NAMESPACE = re.compile(r"\b(?:[A-Za-z_]\w*::)+(?=[A-Za-z_])")


def fold_names(names: Sequence[str]) -> list[str]:
    """Shorten each name as far as no two different ones become one."""
    forms = []  # of each name, the shortest first; the last is the name itself
    for name in names:
        signed = _SIGNATURE.search(name)
        short = [shorten_kernel(name), shorten_kernel(name, lambdas=True)] if signed else [fold_name(name)]
        forms.append([*short, name])
    while True:
        owners = Counter(short for short, _ in {(form[0], name) for form, name in zip(forms, names, strict=True)})
        clashing = [form for form in forms if owners[form[0]] > 1 and len(form) > 1]
        if not clashing:
            return [form[0] for form in forms]
        for form in clashing:
            del form[0]


def shorten_kernel(name: str, *, lambdas: bool = False) -> str:
    """`reduce_kernel<4, Sum<Half>>` for `void at::native::reduce_kernel<4, at::native::Sum<c10::Half> >(c10::Half*)`: a
    kernel without namespaces, arguments and the type of its result.

    Args:
        name: as a profiler demangled it; the end may have been cut off.
        lambdas: whether functions without a name keep their number, which may be all that tells two kernels apart.
    """
    text = _drop_arguments(_NOISE.sub("", name))
    text = _LAMBDA.sub(r"#\1" if lambdas else "", _NOISE.sub("", text))
    text = re.sub(r"\s*([<>])\s*", r"\1", _NAMESPACE.sub("", text)).strip()
    # The name begins behind the type of the result: after the last space outside of `<` and `>`.
    depth, start = 0, 0
    for i, letter in enumerate(text):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == " " and depth == 0:
            start = i + 1
    return text[start:] or name


def _drop_arguments(text: str) -> str:
    """Remove everything in parentheses; an unclosed one extends to the end."""
    depth, kept = 0, []
    for letter in text:
        if letter == "(":
            depth += 1
        elif letter == ")" and depth > 0:
            depth -= 1
        elif depth == 0:
            kept.append(letter)
    return "".join(kept)


def fold_name(name: str) -> str:
    """`layer4.1: bn2 + add` for `layer4.1.bn2 + layer4.1: add`; a name that has no such parts stays as it is.

    These are paths of modules, joined by " + "; `path: operator` is what a module does beside its children.
    """
    parts = name.split(" + ")
    if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts):
        return name
    folded, shorter = [], False
    for parent, group in groupby(parts, key=lambda part: _split(part)[0]):
        together = list(group)
        alone = len(together) == 1 or not parent
        shorter = shorter or not alone
        leaves = " + ".join(together if alone else [_split(part)[1] for part in together])
        folded.append(leaves if alone else f"{parent}: {leaves}")
    return ("; " if shorter else " + ").join(folded)


def _split(part: str) -> tuple[str, str]:
    """Return (path of the enclosing module, operation in it); `relu: relu 2` is the second call of a module `relu`."""
    path, _, operator = part.partition(": ")
    parent, _, own = path.rpartition(".")
    if operator and operator.partition(" ")[0] != own:
        return path, operator
    return parent, operator or own
