"""Random training scripts, action by action, on torch's scaler and on the oracle at once."""

from __future__ import annotations

import collections
import dataclasses
import warnings

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from amp_checks import backends
from amp_checks.families.scaler.oracle import oracle, program
from amp_checks.families.scaler.oracle.driver import Driver
from amp_checks.families.scaler.oracle.oracle import Departure, Oracle
from amp_checks.families.scaler.oracle.program import INF, NAN, Kind, Program
from amp_checks.families.scaler.oracle.script import as_script

PARAMETERS = ((1.0, 2.0), (0.0, -1.0), (3.0, 0.1))

transitions: collections.Counter[str] = collections.Counter()
"""How often each action was carried out and compared, over all machines of this process."""

FINITE = st.sampled_from((0.0, 1.0, -1.0, 2.0, 0.1, -3.7))
ENDS = st.sampled_from((-0.0, 1e-45, 1e-40, -2e-39, 1e38, -3e38))
BAD = st.sampled_from((INF, -INF, NAN))
ELEMENT = st.one_of(FINITE, FINITE, ENDS, BAD)
SCALES = st.sampled_from((1.0, 3.0, 8.0, 0.1, 65536.0, 1e38, 0.0, -2.0, 1e-40, 2.0**-130, INF, NAN))


SETTERS = (
    program.Set("growth_interval", 1),
    program.Set("growth_interval", 2),
    program.Set("growth_interval", 3),
    program.Set("growth_factor", 3.0),
    program.Set("growth_factor", 0.5),
    program.Set("growth_factor", 1e10),
    program.Set("backoff_factor", 0.1),
    program.Set("backoff_factor", 3.0),
)
STATES = (
    (program.Scale(),),
    (program.Save(),),
    (program.Load(),),
    (program.Save(), program.Fresh(), program.Load()),
    (program.Fresh(),),
    (program.Copy("pickle"),),
    (program.Copy("deepcopy"),),
)
Coefficients = tuple[tuple[int, tuple[float, ...]], ...]


def coefficients(elements: st.SearchStrategy[float]) -> st.SearchStrategy[Coefficients]:
    values = st.tuples(elements, elements)
    return st.dictionaries(st.integers(0, 2), values, min_size=1).map(lambda found: tuple(sorted(found.items())))


class Both(RuleBasedStateMachine):
    """Each rule is an action; what is seen after it must be the same on both sides."""

    departures: frozenset[Departure] = oracle.AS_RELEASED
    backend = backends.backend("cpu-float16")

    @initialize(
        settings=st.builds(
            program.Settings,
            init_scale=st.sampled_from((8.0, 0.1, 3.0, 65536.0)),
            growth_factor=st.sampled_from((2.0, 3.0, 1e20)),
            backoff_factor=st.sampled_from((0.5, 0.1, 1e-20, 0.0)),
            growth_interval=st.sampled_from((1, 2, 5, 2000)),
            enabled=st.sampled_from((True,) * 9 + (False,)),
        ),
        optimizers=st.lists(
            st.builds(
                program.OptimizerSpec,
                parameters=st.sets(st.integers(0, 2), min_size=1).map(lambda found: tuple(sorted(found))),
                kind=st.sampled_from((Kind.PLAIN, Kind.PLAIN, *Kind)),
            ),
            min_size=1,
            max_size=3,
        ).map(tuple),
    )
    def begin(self, settings: program.Settings, optimizers: tuple[program.OptimizerSpec, ...]) -> None:
        self.program = Program(actions=(), settings=settings, parameters=PARAMETERS, optimizers=optimizers)
        self.oracle = Oracle(self.program, self.departures)
        self.driver = Driver(self.program, self.backend)

    def act(self, action: program.Action) -> None:
        self.program = dataclasses.replace(self.program, actions=(*self.program.actions, action))
        expected = self.oracle.do(action)
        with warnings.catch_warnings():
            # Torch warns of the contract by which optimizers take the scaler: another check's matter.
            warnings.simplefilter("ignore")
            actual = self.driver.do(action)
        transitions[type(action).__name__] += 1
        if expected != actual:
            raise AssertionError(report(self.program, actual, expected))

    def optimizer(self, number: int) -> int:
        return number % len(self.program.optimizers)

    @rule(found=coefficients(FINITE))
    def backward_finite(self, found: Coefficients) -> None:
        self.act(program.Backward(found))

    @rule(found=coefficients(ELEMENT))
    def backward(self, found: Coefficients) -> None:
        self.act(program.Backward(found))

    @rule(number=st.integers(0, 5))
    def zero_grad(self, number: int) -> None:
        self.act(program.ZeroGrad(self.optimizer(number)))

    @rule(parameter=st.integers(0, 2), values=st.tuples(ELEMENT, ELEMENT))
    def set_grad(self, parameter: int, values: tuple[float, ...]) -> None:
        self.act(program.SetGrad(parameter, values))

    @rule(number=st.integers(0, 5))
    def unscale(self, number: int) -> None:
        self.act(program.Unscale(self.optimizer(number)))

    @rule(number=st.integers(0, 5), bound=st.sampled_from((0.5, 0.1, 7.0)), by_value=st.booleans())
    def clip(self, number: int, bound: float, *, by_value: bool) -> None:
        kind = program.ClipValue if by_value else program.ClipNorm
        self.act(kind(bound, self.optimizer(number)))

    @rule(number=st.integers(0, 5))
    def step(self, number: int) -> None:
        self.act(program.Step(self.optimizer(number)))

    @rule(number=st.integers(0, 5), closure=st.sampled_from(("", "none", "keyword")))
    def odd_step(self, number: int, closure: str) -> None:
        self.act(program.Step(self.optimizer(number), closure=closure, fails=not closure))

    @rule()
    def update(self) -> None:
        self.act(program.Update())

    @rule(value=SCALES, tensor=st.booleans())
    def update_to(self, value: float, *, tensor: bool) -> None:
        self.act(program.Update(value, tensor=tensor))

    @rule(action=st.sampled_from(SETTERS))
    def set(self, action: program.Set) -> None:
        self.act(action)

    @rule(actions=st.sampled_from(STATES))
    def state(self, actions: tuple[program.Action, ...]) -> None:
        for action in actions:
            self.act(action)

    # Whole iterations reach deeper states than single actions do.
    @rule(found=coefficients(st.one_of(FINITE, FINITE, FINITE, ELEMENT)), unscales=st.booleans())
    def iteration(self, found: Coefficients, *, unscales: bool) -> None:
        everyone = range(len(self.program.optimizers))
        for place in everyone:
            self.act(program.ZeroGrad(place))
        self.act(program.Backward(found))
        if unscales:
            self.act(program.Unscale(0))
        for place in everyone:
            self.act(program.Step(place))
        self.act(program.Update())

    @rule(found=coefficients(FINITE), value=SCALES)
    def iteration_at(self, found: Coefficients, value: float) -> None:
        for action in (program.Scale(), program.Update(value), program.ZeroGrad(0)):
            self.act(action)
        self.iteration(found, unscales=False)

    @rule(number=st.integers(0, 5), found=coefficients(FINITE))
    def failing_iteration(self, number: int, found: Coefficients) -> None:
        place = self.optimizer(number)
        steps = (program.Step(place, fails=True), program.Step(place))
        for action in (program.ZeroGrad(place), program.Backward(found), *steps, program.Update()):
            self.act(action)


def report(failing: Program, actual: program.Observation, expected: program.Observation) -> str:
    """What differs after the last action, and the program as a script."""
    names = [field.name for field in dataclasses.fields(actual)]
    told = [
        f"{name}: {getattr(actual, name)!r}, but the oracle says {getattr(expected, name)!r}"
        for name in names
        if getattr(actual, name) != getattr(expected, name)
    ]
    return "\n".join(["after the last action of this program:", *told, "", as_script(failing)])


def distribution() -> str:
    """One line for a log."""
    parts = ", ".join(f"{name} {count}" for name, count in transitions.most_common())
    return f"{transitions.total()} transitions agree with the oracle: {parts}"
