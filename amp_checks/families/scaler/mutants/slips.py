"""Mutants of torch's own scaler: single edits of its source, each planted where one check must see it."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from amp_checks.core import SuiteError
from amp_checks.families.scaler.mutants import edits
from amp_checks.families.scaler.mutants.rows import Plant, mutant
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend


@functools.cache
def _edits() -> dict[str, edits.Edit]:
    return {edit.id: edit for edit in edits.edits(edits.installed_source())}


@contextmanager
def _edited(backend: Backend, *, edit_id: str) -> Iterator[Backend]:
    if edit_id not in _edits():
        message = f"{edit_id!r} is no edit of this torch's grad_scaler.py: the mutant that plants it must name another"
        raise SuiteError(message)
    module = edits.load(edits.edited(edits.installed_source(), _edits()[edit_id]))
    try:
        yield dataclasses.replace(backend, grad_scaler=module.GradScaler)
    finally:
        del sys.modules[edits.MODULE]


def edited(edit_id: str) -> Plant:
    """Plant torch's scaler with one edit made in its source."""
    return functools.partial(_edited, edit_id=edit_id)


FAULTS: dict[str, str] = {
    "assignment-removed@module:1": "the module of the scaler exports no names",
    "condition-true@_MultiDeviceReplicator.get:1": "each dtype has an inf flag of its own, and the last one counts",
    "condition-false@GradScaler._maybe_opt_step:1": "no step is ever made",
    "condition-false@GradScaler._unscale_grads_:3": "float16 gradients are unscaled as they are",
    "arithmetic-swapped@GradScaler.scale:1": "outputs are divided by the scale",
    "raise-removed@GradScaler._check_scale_growth_tracker:1": "a scaler that has scaled nothing does not say so",
    "condition-false@GradScaler.step:2": "closures are let through",
    "assignment-removed@GradScaler._unscale_grads_:4": "float16 sparse gradients are not coalesced",
    "constant-changed@_MultiDeviceReplicator.get:2": "outputs in a list share the scale tensor itself",
    "raise-removed@GradScaler.__getstate__:1": "a scaler is pickled within an iteration",
    "assignment-removed@_MultiDeviceReplicator.get:3": "the copies of each device are forgotten",
    "raise-removed@GradScaler._check_scale_growth_tracker:2": "a scaler without a tracker does not say so",
    "assignment-removed@GradScaler.unscale_:5": "unscale_ leaves no mark: fused optimizers divide again",
    "and-or-swapped@GradScaler.__init__:1": "a disabled scaler warns that it is enabled",
    "raise-removed@GradScaler.__init__:1": "a growth factor of 1 is accepted",
    "condition-true@GradScaler.scale:1": "scale gives its argument back",
    "call-removed@GradScaler.update:3": "update changes neither scale nor tracker",
    "arithmetic-swapped@GradScaler.scale.apply_scale:1": "outputs in a list are divided by the scale",
    "condition-true@GradScaler._maybe_opt_step:1": "no step is ever skipped",
    "call-removed@GradScaler.step:2": "the deprecated contract is used without a warning",
    "raise-removed@GradScaler.update:3": "a new scale of several elements is not refused by name",
    "condition-false@GradScaler.step:8": "fused optimizers divide by the scale once more after unscale_",
    "assignment-removed@GradScaler.step:13": "step drops what the optimizer returned",
    "return-dropped@GradScaler.get_growth_factor:1": "get_growth_factor gives nothing",
    "call-removed@GradScaler._unscale_grads_:2": "unscale_ leaves the gradients scaled",
    "condition-true@GradScaler.scale:3": "every scale() makes a new scale",
    "assignment-removed@GradScaler.load_state_dict:1": "a new scaler forgets the scale that it loads",
    "call-removed@GradScaler.load_state_dict:1": "a live scaler keeps its scale when a state is loaded",
}
"""What each edit breaks."""

ROWS: tuple[Mutant, ...] = tuple(
    mutant(f"scaler-slip-{case}", FAULTS[edit_id], edited(edit_id), case, check)
    for case, check, edit_id in (
        ("aliases", "check_aliases", "assignment-removed@module:1"),
        (
            "bad-in-gradient-0-of-three-dtypes",
            "check_bad_gradient_skips_step",
            "condition-true@_MultiDeviceReplicator.get:1",
        ),
        ("bad-in-bfloat16-gradient", "check_clean_gradient_is_used", "condition-false@GradScaler._maybe_opt_step:1"),
        ("float16-gradient-refused", "check_gradient_is_refused", "condition-false@GradScaler._unscale_grads_:3"),
        ("scale-float32", "check_scaled_outputs", "arithmetic-swapped@GradScaler.scale:1"),
        ("scale-empty-list", "check_outputs_start_scaler", "raise-removed@GradScaler._check_scale_growth_tracker:1"),
        ("lbfgs", "check_lbfgs", "condition-false@GradScaler.step:2"),
        ("keyword-closure", "check_closure_is_refused", "condition-false@GradScaler.step:2"),
        ("fused-float16", "check_fused_float16", "condition-false@GradScaler._unscale_grads_:3"),
        (
            "sparse-float16-of-scaling-optimizer",
            "check_sparse_float16_is_coalesced",
            "assignment-removed@GradScaler._unscale_grads_:4",
        ),
        ("backward-after-update", "check_backward_after_update", "constant-changed@_MultiDeviceReplicator.get:2"),
        (
            "copy-after-reading-found-inf",
            "check_copy_after_reading_found_inf",
            "raise-removed@GradScaler.__getstate__:1",
        ),
        ("several-devices", "check_several_devices", "assignment-removed@_MultiDeviceReplicator.get:3"),
        ("guards", "check_guards", "raise-removed@GradScaler._check_scale_growth_tracker:2"),
        ("scale-on-fused-optimizer", "check_preset_grad_scale", "assignment-removed@GradScaler.unscale_:5"),
        ("cuda-scaler-without-cuda", "check_cuda_scaler_without_cuda", "and-or-swapped@GradScaler.__init__:1"),
        ("construct-growth-factor-1", "check_construction", "raise-removed@GradScaler.__init__:1"),
        ("construct-defaults", "check_first_scale", "condition-true@GradScaler.scale:1"),
        ("gradient-penalty", "check_gradient_penalty", "condition-false@GradScaler._maybe_opt_step:1"),
        ("state-dict-entries", "check_state_dict_entries", "call-removed@GradScaler.update:3"),
        (
            "scaling-is-differentiable",
            "check_scaling_is_differentiable",
            "arithmetic-swapped@GradScaler.scale.apply_scale:1",
        ),
        ("hooks-on-skip", "check_skip_runs_no_hooks", "condition-true@GradScaler._maybe_opt_step:1"),
        ("scaler-argument-warning", "check_scaler_argument_warns", "call-removed@GradScaler.step:2"),
        ("new-scale-kinds", "check_new_scale", "raise-removed@GradScaler.update:3"),
        ("scheduler-after-skip", "check_scheduler_after_skip", "condition-true@GradScaler._maybe_opt_step:1"),
        ("clip-by-norm", "check_clip_by_norm", "arithmetic-swapped@GradScaler.scale:1"),
        ("fused-unscaled-before", "check_fused_after_unscale", "condition-false@GradScaler.step:8"),
        ("arguments-of-step", "check_arguments_of_step", "assignment-removed@GradScaler.step:13"),
        ("getters-and-setters", "check_getters", "return-dropped@GradScaler.get_growth_factor:1"),
        ("one-parameter-one-gradient", "check_unscaled_once", "call-removed@GradScaler._unscale_grads_:2"),
        ("first-scale-in-no-grad", "check_first_scale_mode", "condition-true@GradScaler.scale:3"),
        ("resume-in-new-objects", "check_resume", "assignment-removed@GradScaler.load_state_dict:1"),
        ("load-state", "check_load_state", "call-removed@GradScaler.load_state_dict:1"),
    )
)
