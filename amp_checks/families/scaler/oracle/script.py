"""A program as a script in plain torch, for a bug report: anyone can run it, without this package."""

from __future__ import annotations

from collections.abc import Callable

from amp_checks.families.scaler.oracle import program as prog
from amp_checks.families.scaler.oracle.program import Kind, Program

_HEAD = """\
import copy
import pickle

import torch

inf, nan = float("inf"), float("nan")


class Recording(torch.optim.Optimizer):
    fails = False

    def __init__(self, parameters):
        super().__init__(list(parameters), {})
        self.calls = 0

    @torch.no_grad()
    def apply(self, factor=None):
        if self.fails:
            raise ArithmeticError("the optimizer fails")
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                if factor is not None:
                    parameter.grad.div_(factor)
                parameter.sub_(parameter.grad)
        self.calls += 1
        return float(self.calls)

    def step(self, *args, **kwargs):
        return self.apply()
"""

_KINDS: dict[Kind, str] = {
    Kind.PLAIN: "",
    Kind.SCALING: """

class Scaling(Recording):
    _step_supports_amp_scaling = True

    def step(self, *args, **kwargs):
        if not self.fails and bool(getattr(self, "found_inf", 0)):
            return None
        return self.apply(getattr(self, "grad_scale", None))
""",
    Kind.SCALER_ARGUMENT: """

class ScalerArgument(Recording):
    _step_supports_amp_scaling = True

    def step(self, *args, grad_scaler=None, **kwargs):
        if grad_scaler is not None:
            grad_scaler.unscale_(self)
            if any(p.grad is not None and not p.grad.isfinite().all() for p in self.param_groups[0]["params"]):
                return None
        return self.apply()
""",
}
_CLASSES: dict[Kind, str] = {
    Kind.PLAIN: "Recording",
    Kind.SCALING: "Scaling",
    Kind.SCALER_ARGUMENT: "ScalerArgument",
}

_SHOW = """

def show(action, call):
    global scaler
    try:
        returned = call()
        print(action, "returned", returned if isinstance(returned, float) else None)
    except Exception as error:
        print(action, "raised", type(error).__name__, error)
    print("   ", scaler.state_dict(), "steps", [optimizer.calls for optimizer in optimizers])
    print("    gradients", [p.grad if p.grad is None else p.grad.tolist() for p in parameters])
    print("    parameters", [p.tolist() for p in parameters])


def backward(coefficients):
    loss = torch.zeros(())
    for number, values in coefficients.items():
        loss = loss + (parameters[number] * torch.tensor(values)).sum()
    scaler.scale(loss).backward()


def set_grad(number, values):
    if parameters[number].grad is None:
        parameters[number].grad = torch.tensor(values)
    else:
        parameters[number].grad.copy_(torch.tensor(values))


def clip(number, function, *args, **kwargs):
    owned = [p for p in optimizers[number].param_groups[0]["params"] if p.grad is not None]
    if owned:
        function(owned, *args, **kwargs)


def step(number, fails=False, **kwargs):
    optimizers[number].fails = fails
    try:
        return scaler.step(optimizers[number], **kwargs)
    finally:
        optimizers[number].fails = False


def replace(new):
    global scaler
    scaler = new


saved = {}


def save():
    global saved
    saved = scaler.state_dict()

"""


def _update(action: prog.Update) -> str:
    if action.new_scale is None:
        return "scaler.update()"
    value = repr(action.new_scale)
    return f"scaler.update({f'torch.tensor({value})' if action.tensor else value})"


def _step(action: prog.Step) -> str:
    closure = {"": "", "none": ", closure=None", "keyword": ", closure=lambda: 0.0"}[action.closure]
    return f"step({action.optimizer}{', fails=True' if action.fails else ''}{closure})"


_LINES: dict[type[prog.Action], Callable[..., str]] = {
    prog.Scale: lambda _: "scaler.scale(torch.ones(()))",
    prog.Backward: lambda action: f"backward({dict(action.coefficients)!r})",
    prog.ZeroGrad: lambda action: f"optimizers[{action.optimizer}].zero_grad()",
    prog.SetGrad: lambda action: f"set_grad({action.parameter}, {action.values!r})",
    prog.Unscale: lambda action: f"scaler.unscale_(optimizers[{action.optimizer}])",
    prog.ClipValue: lambda action: f"clip({action.optimizer}, torch.nn.utils.clip_grad_value_, {action.bound!r})",
    prog.ClipNorm: lambda action: (
        f"clip({action.optimizer}, torch.nn.utils.clip_grad_norm_, {action.bound!r}, norm_type=inf)"
    ),
    prog.Step: _step,
    prog.Update: _update,
    prog.Set: lambda action: f"scaler.set_{action.name}({action.value!r})",
    prog.Save: lambda _: "save()",
    prog.Load: lambda _: "scaler.load_state_dict(saved)",
    prog.Fresh: lambda _: "replace(new_scaler())",
    prog.Copy: lambda action: (
        "replace(pickle.loads(pickle.dumps(scaler)))" if action.how == "pickle" else "replace(copy.deepcopy(scaler))"
    ),
}


def as_script(program: Program, device: str = "cpu") -> str:
    """The program, line by line; it prints what is seen after each action.

    Args:
        program: what to write out.
        device: of the scaler; tensors stay on the CPU where it is ``"cpu"``.
    """
    settings = ", ".join(f"{name}={value!r}" for name, value in prog.settings_of(program.settings).items())
    kinds = dict.fromkeys(spec.kind for spec in program.optimizers)
    optimizers = ", ".join(
        f"{_CLASSES[spec.kind]}({', '.join(f'parameters[{n}]' for n in spec.parameters).join('[]')})"
        for spec in program.optimizers
    )
    setup = [
        f"torch.set_default_device({device!r})",
        f"new_scaler = lambda: torch.amp.GradScaler({device!r}, {settings})",
        "scaler = new_scaler()",
        f"parameters = [torch.tensor(v, requires_grad=True) for v in {list(program.parameters)!r}]",
        f"optimizers = [{optimizers}]",
    ]
    calls = []
    for action in program.actions:
        line = _LINES[type(action)](action)
        calls.append(f"show({line!r}, lambda: {line})")
    return "\n".join([_HEAD + "".join(_KINDS[kind] for kind in kinds) + _SHOW, *setup, *calls, ""])
