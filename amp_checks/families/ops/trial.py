"""A row tried on a backend: in a region, and as the same explicit casts with autocast off; and the two compared."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from amp_checks.core import CastPolicy, Finding, NotEmulated, Raised, SuiteError, attempt, exact, first_line
from amp_checks.families.ops import explicit
from amp_checks.families.ops.entry import entries
from amp_checks.families.ops.explicit import Call
from amp_checks.families.ops.inputs import FIRST, Draw, Plan, dtype_in, tensors
from amp_checks.families.ops.rows import SCRATCH, OpCase
from amp_checks.records import cast_policy
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name
from amp_checks.torch_api.numerics import randn, same_bits

LACKING = "the emulation lacks the op for that dtype"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call gave: its tensors in order, or the exception that it raised."""

    tensors: tuple[torch.Tensor, ...] = ()
    error: str | None = None

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dtype_name(tensor.dtype) for tensor in self.tensors)

    @property
    def in_words(self) -> str:
        """Its exception, or the dtypes of its tensors."""
        return self.error or ", ".join(self.dtypes)


def outcome(function: Callable[[], Any], *, lacks: bool = False) -> Outcome:
    """Run code under test; an exception of it is an outcome like another.

    Args:
        function: the code under test.
        lacks: also what the emulation lacks is an outcome, `LACKING`: where what matters was seen before.
    """
    try:
        given = attempt("the call", function)
    except NotEmulated:
        if not lacks:
            raise
        return Outcome(error=LACKING)
    except Raised as raised:
        return Outcome(error=f"{type(raised.error).__name__}: {first_line(raised.error)}")
    return Outcome(tensors=tuple(leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)))


def in_region(call: Call, backend: Backend, *, lacks: bool = False) -> Outcome:
    """What the call gives inside a region; ``lacks`` as for `outcome`."""
    with backend.region():
        return outcome(call.run, lacks=lacks)


def without_scratch(case: OpCase, found: Outcome) -> Outcome:
    """What the row gave, without outputs that mean nothing."""
    if SCRATCH not in case.outputs or found.error is not None:
        return found
    kept = tuple(t for t, name in zip(found.tensors, case.outputs, strict=True) if name != SCRATCH)
    return dataclasses.replace(found, tensors=kept)


@dataclasses.dataclass(frozen=True)
class Trial:
    """A row under a dtype plan on a backend; each of its results is computed once, when it is first asked for.

    Attributes:
        case, backend, plan: what is tried.
        given: keywords that the user gives besides the row's own.
        drawn: which of the draws of the row's values.
    """

    case: OpCase
    backend: Backend
    plan: Plan = Plan.FLOAT32
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    drawn: Draw = FIRST

    @property
    def policy(self) -> CastPolicy:
        return cast_policy.of(self.case.id, self.backend.device_type)

    @property
    def why(self) -> str:
        """The source of what is expected."""
        return f"cast policy {self.policy} of {self.case.id} on {self.backend.device_type}"

    def _call(self) -> Call:
        call = Call.of(self.case, self.backend, self.plan, self.drawn)
        return dataclasses.replace(call, kwargs={**call.kwargs, **self.given})

    @functools.cached_property
    def call(self) -> Call:
        """The call as the user writes it."""
        return self._call()

    @functools.cached_property
    def expected(self) -> Call:
        """The call that the policy promises to make, on inputs that the other one cannot write to."""
        return self._cast(self._call())

    def _cast(self, call: Call) -> Call:
        return call.by_policy(self.policy, low=self.backend.low_dtype, enters=self.case.enters)

    @functools.cached_property
    def ran_in(self) -> torch.dtype | None:
        """The dtype in which the op runs in a region; None where its inputs alone decide."""
        return explicit.run_dtype(self.policy, self.call.dtypes, self.backend.low_dtype)

    @property
    def unit(self) -> torch.dtype:
        """The dtype whose eps is the unit of errors: that in which the op must run, whatever it does run in."""
        return self.ran_in or dtype_in(self.plan, 0, self.backend.low_dtype)

    @functools.cached_property
    def got(self) -> Outcome:
        """What the call gives inside a region."""
        return without_scratch(self.case, in_region(self.call, self.backend, lacks=self.plan is not Plan.FLOAT32))

    @functools.cached_property
    def without(self) -> Outcome:
        """What the explicit casts give, with autocast off.

        Raises:
            SuiteError: a row whose float32 call raises even so, without a reason for it, would pass every check by
                measuring nothing; says what to change.
        """
        return self._must_run(without_scratch(self.case, outcome(self.expected.run)))

    @property
    def reaches(self) -> tuple[Any, ...]:
        """What the policy lets through to the op: the overload, the dtypes of its tensors, its explicit dtype."""
        return self.expected.name, *self.expected.dtypes, self.expected.kwargs.get("dtype")

    def _must_run(self, found: Outcome) -> Outcome:
        if self.plan is Plan.FLOAT32 and not self.given and found.error is not None and not self.case.fails:
            raise SuiteError(
                f"the row of {self.case.id} does not run with explicit casts ({found.error}): give it inputs that do, "
                "or say in its field `fails` why it cannot"
            )
        return found

    @functools.cached_property
    def reference(self) -> Outcome:
        """What the call gives in float64, with inputs already rounded to what the op receives."""
        return outcome(self._wide().run)

    def _wide(self) -> Call:
        target = explicit.target_dtype(self.policy, self.call.dtypes, self.backend.low_dtype)

        def wide(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dtype not in explicit.CASTABLE:
                return tensor
            return (tensor if target is None else tensor.to(target)).double()

        call = self._reference_call()
        return dataclasses.replace(call, function=self.case.reference or call.function).with_tensors(wide)

    def _reference_call(self) -> Call:
        return self._call()

    @property
    def comparable(self) -> bool:
        """Whether the two outcomes can be set side by side.

        Not under emulation where a low or foreign dtype has no kernel on the CPU: the emulation may have one for what
        the device has, or lack it; the explicit casts, which are not emulated, say nothing of either.
        """
        if not self.backend.emulated or self.plan is Plan.FLOAT32:
            return True
        return not self.without.error and self.got.error != LACKING

    def runs(self, subject: str = "outcome") -> Generator[Finding, None, bool]:
        """Whether there are tensors to look at: raising is a finding, and must be so with explicit casts as well."""
        if self.without.error is not None:  # this machine has no kernel for that dtype, with autocast or without
            yield self.same_error(subject)
            return False
        yield exact(subject, actual=self.got.error, expected=None, why=f"{self.why}; it runs with explicit casts")
        return True

    def same_error(self, subject: str) -> Finding:
        """Where the explicit casts raise, the region raises an exception of that class too.

        Only the class: two kernels may word one lack differently.
        """
        one, other = ((found.error or "").split(":", maxsplit=1)[0] for found in (self.got, self.without))
        return exact(
            subject,
            actual=self.without.error if one == other else self.got.error,
            expected=self.without.error,
            why="the same call with explicit casts and autocast off",
        )

    def same_values(self, subject: str) -> Iterator[Finding]:
        """Value for value, the region gives what the explicit casts give."""
        if self.without.error is not None or self.got.error is not None:
            yield self.same_error(f"{subject}: outcome")
            return
        for index, (actual, expected) in enumerate(zip(self.got.tensors, self.without.tensors, strict=False)):
            yield exact(
                f"{subject}: output[{index}]",
                actual=difference(actual, expected),
                expected="the same values",
                why="explicit casts with autocast off",
            )

    def at_entry(self, *, stop: bool) -> Iterator[Finding]:
        """In a region, what the policy promises reaches the op's own entry; ``stop``: no kernel runs."""
        name, call = self.expected.name, self.call
        with entries(name, stop=stop) as seen:
            got = in_region(call, self.backend, lacks=True)
        first = seen[0] if seen else None
        yield exact(
            f"{self.plan}: dtypes at the entry of {name}",
            actual=", ".join(first.dtypes) if first else f"never entered ({got.error or 'no exception'})",
            expected=", ".join(map(dtype_name, self.expected.dtypes)),
            why=self.why,
        )
        wanted = self.expected.kwargs.get("dtype")
        if wanted is not None:
            yield exact(
                f"{self.plan}: dtype= at the entry of {name}",
                actual=first.dtype_argument if first else None,
                expected=dtype_name(wanted),
                why=self.why,
            )


class GradientTrial(Trial):
    """The same of gradients: those of the row's differentiable inputs, made leaves."""

    @property
    def unit(self) -> torch.dtype:
        """That of the leaves, where it is coarser: gradients are rounded to it."""
        leaves = dtype_in(self.plan, 0, self.backend.low_dtype)
        return max(super().unit, leaves, key=lambda dtype: torch.finfo(dtype).eps)

    @functools.cached_property
    def got(self) -> Outcome:
        """Gradients through a region; the backward pass runs outside of it."""
        return self._gradients(self.call, around=self.backend.region, lacks=self.plan is not Plan.FLOAT32)

    @functools.cached_property
    def without(self) -> Outcome:
        """Gradients through the explicit casts, which autograd records."""
        return self._must_run(self._gradients(self._call(), prepare=self._cast))

    @functools.cached_property
    def reference(self) -> Outcome:
        """Gradients in float64."""
        return self._gradients(self._wide())

    def _gradients(
        self,
        call: Call,
        *,
        prepare: Callable[[Call], Call] = lambda call: call,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
        lacks: bool = False,
    ) -> Outcome:
        """One gradient per leaf, of outputs weighted by fixed numbers; an empty tensor for a leaf that has none."""
        specs = tensors((self.case.args, self.case.kwargs))
        leaves: list[torch.Tensor] = []

        def leaf(tensor: torch.Tensor) -> torch.Tensor:
            spec = next(specs)
            if spec.dtype is not None or not spec.grad or not tensor.is_floating_point():
                return tensor
            leaves.append(tensor.detach().clone().requires_grad_())
            return leaves[-1]

        made = call.with_tensors(leaf)

        def forward_and_backward() -> list[torch.Tensor]:
            with around():
                outputs = prepare(made).run()
            roots = [out for out in tree_leaves(outputs) if isinstance(out, torch.Tensor) and out.requires_grad]
            if self.case.free_phase:
                roots = [root.abs().square() for root in roots]
            found = torch.autograd.grad(roots, leaves, self._weights(roots), allow_unused=True)
            return [torch.empty(0) if gradient is None else gradient for gradient in found]

        return outcome(forward_and_backward, lacks=lacks)

    def _weights(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Numbers that the backend's low dtype holds, and with float16 bfloat16 does not."""
        weights = []
        for index, output in enumerate(outputs):
            drawn = randn(*output.shape, 2, seed=self.drawn.seed(f"weights {index}")) * self.drawn.factor
            weight = drawn.to(self.backend.low_dtype).float()
            made = torch.view_as_complex(weight) if output.is_complex() else weight[..., 0]
            weights.append(made.to(device=output.device, dtype=output.dtype))
        return weights


def unnamed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without names for its dimensions, which torch had up to 2.12."""
    return tensor.rename(None) if hasattr(tensor, "rename") else tensor


def difference(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """How two tensors differ, in words; ``the same values`` where they do not."""
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)} for {tuple(expected.shape)}"
    wide = torch.complex128 if actual.is_complex() or expected.is_complex() else torch.float64
    left, right = (unnamed(tensor).detach().cpu().to(wide) for tensor in (actual, expected))
    if same_bits(left, right):
        return "the same values"
    different = (left != right) & ~(left.isnan() & right.isnan())
    most = (left - right).abs().max().item()
    return f"{int(different.sum())} of {left.numel()} values differ, by up to {most:.3g}"
