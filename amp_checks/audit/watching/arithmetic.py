"""Whether a program computes with a number it was given: seen in its bytecode, as Python numbers carry no trace."""

from __future__ import annotations

import dis
import functools

from amp_checks.audit.places import Place


@functools.lru_cache(maxsize=256)
def computes_with(place: Place) -> bool:
    """Whether what the call at that place gives is a term of arithmetic, at once or by the name it is assigned to."""
    code, _, last, _ = place
    found = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "NOP")]
    after = next((number for number, one in enumerate(found) if one.offset > last), len(found))
    if after == len(found):
        return False
    follows = found[after]
    if follows.opname == "BINARY_OP":
        return True
    if not follows.opname.startswith("STORE_"):
        return False
    name = follows.argval
    return any(
        one.opname.startswith("LOAD_") and name in _names(one) and following.opname == "BINARY_OP"
        for one, following in zip(found[after:], found[after + 1 :], strict=False)
    )


def _names(one: dis.Instruction) -> tuple[object, ...]:
    """One, or two that are loaded at once."""
    return one.argval if isinstance(one.argval, tuple) else (one.argval,)
