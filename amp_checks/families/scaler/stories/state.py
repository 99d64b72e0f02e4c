"""``state_dict``, ``load_state_dict``, pickling."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import torch

from amp_checks.core import Finding, Raised, attempt
from amp_checks.families.scaler.rows import OBSERVED, STATE, error_text, outcome
from amp_checks.families.scaler.stories.story import Loop, StoryCase, story
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend


@story("state-dict-entries", 44, source=STATE)
def check_state_dict_entries(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Five entries, before and after a step; later steps do not change a saved state."""
    loop = Loop(backend, settings={"growth_interval": 10})
    saved = loop.scaler.state_dict()
    expected = {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 10, "_growth_tracker": 0}
    yield case.exact("state before the first scale", actual=repr(saved), expected=repr(expected))
    for weight in (1.0, float("inf"), 1.0):
        loop.iterate(weight)
    later = {**expected, "scale": 4.0, "_growth_tracker": 1}
    yield case.exact("state after steps", actual=repr(loop.scaler.state_dict()), expected=repr(later))
    yield case.exact("state saved before", actual=repr(saved), expected=repr(expected))


SAVED = {"scale": 32.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 7, "_growth_tracker": 2}


@story("load-incomplete-state", 44, source=STATE, variant="incomplete")
@story("load-state", 44, source=STATE, variant="complete")
def check_load_state(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A whole state is taken, by a live scaler and a new one; without an entry it is refused and changes nothing."""
    one = torch.ones((), device=backend.device_type)
    if case.variant == "complete":
        for live in (True, False):
            scaler = backend.scaler(init_scale=8.0)
            if live:
                scaler.scale(one)
            attempt("scaler.load_state_dict", scaler.load_state_dict, SAVED)
            scaler.scale(one)
            subject = f"state of a {'live' if live else 'new'} scaler"
            yield case.exact(subject, actual=repr(scaler.state_dict()), expected=repr(SAVED))
        return
    for name in SAVED:
        scaler = backend.scaler(init_scale=8.0)
        scaler.scale(one)
        before = repr(scaler.state_dict())
        seen = outcome(scaler.load_state_dict, {other: value for other, value in SAVED.items() if other != name})
        yield case.exact(f"loading without {name}", actual=seen, expected=f"KeyError: '{name}'")
        after = repr(scaler.state_dict())
        yield case.exact(f"state after loading without {name}", actual=after, expected=before)


def _flags(
    read: Callable[..., dict[torch.device, torch.Tensor]], scaler: object, optimizer: torch.optim.Optimizer
) -> str:
    """The flags of all devices as text, or the error of reading them."""
    try:
        return repr(attempt("the flags", lambda: [flag.item() for flag in read(scaler, optimizer).values()]))
    except Raised as raised:
        return error_text(raised)


@story("copy-after-reading-found-inf", 45, source=OBSERVED)
def check_copy_after_reading_found_inf(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Reading ``_found_inf_per_device``, as optimizers do, begins an iteration: no pickling until ``update``."""
    loop = Loop(backend)
    scaler, optimizer = loop.scaler, loop.optimizer
    scaler.scale(torch.ones((), device=backend.device_type))
    flags = _flags(private.found_inf_per_device, scaler, optimizer)
    yield case.exact("flags before a check", actual=flags, expected="[]")
    expected = (
        "AssertionError: A GradScaler instance may only be pickled at the beginning of an iteration, or at the end "
        "after scaler.update()."
    )
    yield case.exact("pickling after reading the flags", actual=outcome(pickle.dumps, scaler), expected=expected)
    loop.backward(float("inf"))
    loop.unscale()
    flags = _flags(private.found_inf_per_device, scaler, optimizer)
    yield case.exact("flags after unscale_ found inf", actual=flags, expected="[1.0]")
    flags = _flags(private.check_inf_per_device, scaler, optimizer)
    yield case.exact("flags that a check gives back", actual=flags, expected="[1.0]")
    flags = _flags(private.check_inf_per_device, backend.scaler(), optimizer)
    expected = (
        "AssertionError: Attempted _check_inf_per_device but _scale is None.  This may indicate your script did not "
        "use scaler.scale(loss or outputs) earlier in the iteration."
    )
    yield case.exact("checking before the first scale", actual=flags, expected=expected)
