"""States that are saved, loaded and copied, and disabled scalers."""

from __future__ import annotations

import functools

from amp_checks.families.scaler.oracle.program import (
    INF,
    Copy,
    Fresh,
    Load,
    Save,
    Scale,
    Set,
    Step,
    Unscale,
    Update,
)
from amp_checks.families.scaler.programs.rows import GOOD, ProgramCase, bad, iteration, script
from amp_checks.families.scaler.rows import CLASS, OBSERVED, STATE

_state = functools.partial(ProgramCase, source=STATE, behaviours=(44,))
_copy = functools.partial(ProgramCase, source=f"{CLASS}: the text of its pickling error", behaviours=(45,))

ROWS: tuple[ProgramCase, ...] = (
    _state(
        id="load-into-live",
        program=script(iteration(), Save(), iteration(), bad(INF), Load(), iteration() * 2, growth_interval=3),
        shows="load_state_dict brings scale and tracker back to where they were saved",
    ),
    _state(
        id="load-into-new",
        program=script(bad(INF), iteration() * 9, Save(), Fresh(), Load(), iteration() * 2, growth_interval=10),
        shows="a new scaler that loads the state grows on the step on which the old one would have",
    ),
    _state(id="load-empty", program=script(Load(), iteration()), shows="an empty state is refused"),
    _state(
        id="load-within-iteration",
        program=script(Scale(), Save(), GOOD, Unscale(), Load(), Unscale(), Step(), Update()),
        shows="loading does not end the iteration",
        source=f"{OBSERVED}: load_state_dict leaves the stages of the optimizers",
    ),
    *(
        _copy(
            id=f"{how}-between-iterations",
            program=script(iteration(), bad(INF), iteration(), Copy(how), Update(), iteration() * 2, growth_interval=2),
            shows="a copied scaler has the scale and the tracker of the original",
        )
        for how in ("pickle", "deepcopy")
    ),
    *(
        _copy(
            id=f"{how}-within-iteration",
            program=script(GOOD, Unscale(), Copy(how), Step(), Copy(how), Update(), Copy(how)),
            shows="a scaler is copied between iterations only",
        )
        for how in ("pickle", "deepcopy")
    ),
    ProgramCase(
        id="disabled",
        program=script(
            (Unscale(), Update(), Update(3.0), Load(), GOOD, Unscale(), Unscale(), Step(), Step(), Save(), Load()),
            (Copy(), Set("growth_factor", 3.0), *bad(INF)),
            enabled=False,
        ),
        shows="disabled: step() steps, all else does nothing",
        source=CLASS,
        behaviours=(11, 43),
    ),
    ProgramCase(
        id="disabled-closure",
        program=script(GOOD, Step(closure="keyword"), enabled=False),
        shows="disabled: a closure goes through to the optimizer",
        source=CLASS,
        behaviours=(25, 43),
    ),
)
