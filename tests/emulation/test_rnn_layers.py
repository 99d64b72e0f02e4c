"""RNN layers: made up of torch's own ops in the CPU's kernels; as one op, as cuDNN runs them, in float32 inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from amp_checks.backends.observe import OpCall, observe
from amp_checks.emulation import Numerics, emulate, layers
from amp_checks.emulation import rules as rule_lists
from amp_checks.emulation.region import current
from amp_checks.torch_api import private

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")

HALF = torch.float16
REGIONS = (torch.float16, torch.bfloat16)

LAYERS: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True),
    "lstm without biases": lambda: nn.LSTM(6, 5, 2, bias=False),
    "lstm with projection": lambda: nn.LSTM(6, 5, proj_size=3, batch_first=True),
    "lstm with dropout": lambda: nn.LSTM(6, 5, 3, dropout=0.5),
    "gru": lambda: nn.GRU(6, 5, 2, bidirectional=True),
    "rnn": lambda: nn.RNN(6, 5, 2, batch_first=True),
    "rnn with relu": lambda: nn.RNN(6, 5, nonlinearity="relu"),
    "lstm, packed": lambda: nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True),
    "gru, packed": lambda: nn.GRU(6, 5, 2, batch_first=True),
}


def made(name: str) -> tuple[nn.RNNBase, Tensor]:
    torch.manual_seed(1)
    return LAYERS[name](), torch.randn(4, 7, 6, requires_grad=True)


def run(name: str, net: Callable[..., Any], given: Tensor) -> list[Tensor]:
    """Output and states, after a seed: dropout draws the same numbers in each run."""
    torch.manual_seed(5)
    packed = "packed" in name
    out, states = net(rnn.pack_padded_sequence(given, [7, 2, 5, 1], True, False) if packed else given)
    if packed:
        out = rnn.pad_packed_sequence(out, batch_first=True)[0]
    return [out, *(states if isinstance(states, tuple) else (states,))]


def gradients(net: nn.Module, given: Tensor, outputs: list[Tensor]) -> tuple[Tensor, ...]:
    total = sum((out.float() * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum() for out in outputs)
    assert isinstance(total, Tensor)
    return torch.autograd.grad(total, [given, *net.parameters()])


def emulated(
    name: str, net: nn.Module, given: Tensor, *, dtype: torch.dtype = HALF, numerics: Numerics = "float32"
) -> tuple[list[Tensor], list[OpCall]]:
    with emulate("cuda", numerics=numerics), torch.autocast("cuda", dtype=dtype), observe() as calls:
        outputs = run(name, net, given)
    return outputs, calls


@pytest.mark.parametrize("dtype", REGIONS, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_float32_between_two_casts_to_float16(name: str, dtype: torch.dtype) -> None:
    runs_between_two_casts(name, dtype)


def runs_between_two_casts(name: str, dtype: torch.dtype) -> None:
    """To the bit, forward and backward, and in float16 in a region of any dtype, as the rule of `_cudnn_rnn`."""
    net, given = made(name)
    outputs, calls = emulated(name, net, given, dtype=dtype)
    by_hand = {key: parameter.half().float() for key, parameter in net.named_parameters()}
    wanted = [
        out.half()
        for out in run(name, lambda value: torch.func.functional_call(net, by_hand, (value,)), given.half().float())
    ]
    for one, other in zip(outputs, wanted, strict=True):
        assert one.dtype is HALF
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    for one, other in zip(gradients(net, given, outputs), gradients(net, given, wanted), strict=True):
        assert one.dtype is torch.float32
        assert torch.equal(one, other)
    (layer,) = [call for call in calls if call.op == "aten::_cudnn_rnn"]
    assert {kind for kind in layer.input_dtypes if kind.is_floating_point} == {HALF}
    assert set(layer.output_dtypes) == {HALF}


def plain_repeat(layer: layers.Layer, wide: Any, random: Any) -> Any:
    del random
    return layer.run(wide)


FAULTS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "cast to the region's dtype": ("cast", lambda tensors: [tensor.bfloat16() for tensor in tensors], "gru"),
    "weights not rounded": ("cast", lambda tensors: [tensors[0].half(), *tensors[1:]], "rnn"),
    "other numbers drawn for backward": ("_repeat", plain_repeat, "lstm with dropout"),
    "taken apart": ("layer_of", lambda op, args: None, "lstm"),
}
"""Fault -> what of `layers` it replaces, by what, and the layer that shows it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_layer_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced, by, name = FAULTS[fault]
    monkeypatch.setattr(layers, replaced, by)
    with pytest.raises(AssertionError):
        runs_between_two_casts(name, torch.bfloat16)


@pytest.mark.parametrize("dtype", REGIONS, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in LAYERS if "packed" in name])
def test_packed_sequences_in_the_cpus_kernels(name: str, dtype: torch.dtype) -> None:
    net, given = made(name)
    outputs, calls = emulated(name, net, given, dtype=dtype, numerics="native")
    plain = run(name, net, given)
    for one, other in zip(outputs, plain, strict=True):
        assert one.dtype is dtype
        torch.testing.assert_close(one.float(), other, rtol=0.03, atol=0.03)
    assert not [call for call in calls if call.op == "aten::_cudnn_rnn"]
    for gradient, size in zip(gradients(net, given, outputs), gradients(net, given, plain), strict=True):
        torch.testing.assert_close(gradient, size, rtol=0.05, atol=0.05 * size.abs().max().item())


def test_the_arguments_of_cudnns_entry_point() -> None:
    seen: list[tuple[Any, ...]] = []

    class Watch:
        def record(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            del kwargs, output
            if op is private.CUDNN_RNN:
                seen.append(args)

    for name in LAYERS:
        with emulate("cuda", numerics="float32"), torch.autocast("cuda"):
            region = current()
            assert region is not None
            with region.recorded_by(Watch()):
                run(name, *made(name))
    names = [argument.name for argument in private.CUDNN_RNN._schema.arguments]
    said = {name: dict(zip(names, args, strict=True)) for name, args in zip(LAYERS, seen, strict=True)}
    assert {name: args["mode"] for name, args in said.items()} == {
        **{name: 2 for name in LAYERS if "lstm" in name},
        **{name: 3 for name in LAYERS if "gru" in name},
        "rnn": 1,
        "rnn with relu": 0,
    }
    assert {args["hidden_size"] for args in said.values()} == {5}
    assert said["lstm with projection"]["proj_size"] == 3
    assert said["lstm without biases"]["weight_stride0"] == 2
    assert said["lstm"]["weight_stride0"] == 4
    assert (said["lstm"]["bidirectional"], said["lstm"]["batch_first"], said["lstm"]["num_layers"]) == (True, True, 2)
    assert said["lstm with dropout"]["dropout"] == 0.5
    assert said["lstm, packed"]["batch_sizes"] == [4, 3, 2, 2, 2, 1, 1]
    assert said["gru"]["cx"] is None


def test_it_saves_what_it_was_given_in_float16() -> None:
    net, given = made("lstm")
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        emulated("lstm", net, given)
    assert {tensor.dtype for tensor in saved} == {HALF}
    assert len(saved) == 1 + 2 + len(list(net.parameters()))


def test_it_refuses_what_was_changed_since() -> None:
    net, given = made("gru")
    low = given.detach().half()
    outputs, _ = emulated("gru", net, low)
    low.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs[0].sum().backward()


def test_it_is_differentiated_twice() -> None:
    found = []
    for enabled in (True, False):
        net, given = made("rnn")
        with emulate("cuda", numerics="float32"), torch.autocast("cuda", enabled=enabled):
            outputs = run("rnn", net, given)
        (gradient,) = torch.autograd.grad(outputs[0].float().pow(2).sum(), given, create_graph=True)
        gradient.pow(2).sum().backward()
        found.append(net.weight_hh_l0.grad)
    narrow, wide = found
    assert isinstance(narrow, Tensor)
    torch.testing.assert_close(narrow, wide, rtol=0.05, atol=0.01)


def test_transforms_take_the_layer_apart() -> None:
    net, given = made("gru")
    parameters: dict[str, Tensor] = dict(net.named_parameters())

    def loss(values: dict[str, Tensor], sequence: Tensor) -> Tensor:
        out = torch.func.functional_call(net, values, (sequence.unsqueeze(1),))[0]
        return out.float().pow(2).sum()  # type: ignore[no-any-return]

    with emulate("cuda", numerics="float32"), torch.autocast("cuda", dtype=HALF), observe() as calls:
        each = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, given.detach())
    assert "aten::_cudnn_rnn" not in {call.op for call in calls}
    together = torch.stack([loss(parameters, row) for row in given]).sum()
    whole = torch.autograd.grad(together, list(parameters.values()))
    for one, other in zip(each.values(), whole, strict=True):
        torch.testing.assert_close(one.sum(0), other, rtol=0.05, atol=0.05)


def ops_of(device_type: str, given: Tensor, *, enabled: bool = True) -> set[str]:
    net = nn.GRU(6, 5).to(given.dtype)
    with emulate(device_type, numerics="float32"), torch.autocast(device_type, enabled=enabled), observe() as calls:
        net(given)
    return {call.op for call in calls}


@pytest.mark.parametrize("case", ["region off", "float64", "no time steps", "another device"])
def test_where_cudnn_or_its_rule_would_not_take_it(case: str) -> None:
    given = torch.randn(3, 2, 6, dtype=torch.float64 if case == "float64" else torch.float32)
    if case == "no time steps":
        given = given[:, :0]
    device = "xpu" if case == "another device" else "cuda"
    assert "aten::_cudnn_rnn" not in ops_of(device, given, enabled=case != "region off")


def test_a_lost_rule_of_cudnns_entry_point_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a build with CUDA the rule is registered, or gone; in any other build it is taken to be there."""
    given = torch.randn(3, 2, 6)
    assert "aten::_cudnn_rnn" in ops_of("cuda", given)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    registered = rule_lists.registered_rules
    for rule, seen in ((frozenset({"aten::_cudnn_rnn"}), True), (frozenset(), False)):
        monkeypatch.setattr(
            "amp_checks.emulation.engine.registered_rules",
            lambda device, rule=rule: registered(device) - {"aten::_cudnn_rnn"} | rule,
        )
        assert ("aten::_cudnn_rnn" in ops_of("cuda", given)) is seen
