"""Planted faults that show only in the other ways to call an op."""

from __future__ import annotations

from amp_checks.families.ops.mutants import faults
from amp_checks.suite.planting import Mutant


def _fault(name: str, op: str, rule: faults.Rule, fault: str, killer: tuple[str, str]) -> Mutant:
    """A faulty rule of ``op``, tried on a case of it and caught by one check; where the case runs."""
    return Mutant(
        id=name, family="ops", fault=fault, plant=faults.with_rule(op, rule), case=killer[0], killed_by=(killer[1],)
    )


MUTANTS: tuple[Mutant, ...] = (
    _fault(
        "float64-cast-too",
        "mm",
        faults.casting_float64_too("mm"),
        "mm lowers float64 inputs",
        ("mm.dtypes", "check_every_dtype"),
    ),
    Mutant(
        id="disabled-region-ignored",
        family="ops",
        fault="a disabled region inside a region stays on",
        plant=faults.with_autocast(faults.never_disabled),
        case="mm.nesting",
        killed_by=("check_nested_regions",),
    ),
    _fault(
        "explicit-dtype-overridden",
        "prod",
        faults.forcing_float32("prod"),
        "prod gives float32 whatever dtype= says",
        ("prod.dtype", "check_explicit_dtype"),
    ),
    _fault(
        "promotion-to-narrowest-addcmul",
        "addcmul",
        faults.promoting("addcmul", widest=False),
        "addcmul of a float32 and a low input runs in the low dtype",
        ("addcmul.promotion", "check_promotes_to_widest"),
    ),
    _fault(
        "promotion-to-narrowest-cat",
        "cat",
        faults.promoting("cat", widest=False),
        "cat of a float32 and a low input runs in the low dtype",
        ("cat.promotion", "check_promotes_to_widest"),
    ),
    _fault(
        "promotion-takes-any-addcmul",
        "addcmul",
        faults.promoting("addcmul", refuses=False),
        "addcmul takes a 16-bit float that is not the region's",
        ("addcmul.promotion", "check_promotion_refuses_other_low_dtype"),
    ),
    _fault(
        "promotion-takes-any-cat",
        "cat",
        faults.promoting("cat", refuses=False),
        "cat takes a 16-bit float that is not the region's",
        ("cat.promotion", "check_promotion_refuses_other_low_dtype"),
    ),
    _fault(
        "out-form-cast",
        "mm.out",
        faults.casting_out_form("mm"),
        "mm(out=) computes in the low dtype",
        ("mm.out", "check_form_is_not_cast"),
    ),
    _fault(
        "rule-missed-by-spelling",
        "mm",
        faults.removed,
        "torch.mm reaches no rule",
        ("torch.mm", "check_spelling_is_cast"),
    ),
)
