"""Single calls: constructing a scaler, what ``scale`` makes of its argument, and stories with code of their own."""

from __future__ import annotations

import dataclasses

from amp_checks.core import Backend
from amp_checks.families.scaler.oracle.program import INF, NAN

CLASS = "torch.amp.GradScaler"
SCALE = "torch.amp.GradScaler.scale: a tensor or an iterable of tensors"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConstructCase:
    """One construction.

    Attributes:
        settings: keyword arguments of the scaler.
        error: ``"AssertionError: ..."`` of the construction, or empty.
        first_scale_error: the same of the first ``scale`` of a tensor.
    """

    id: str
    settings: tuple[tuple[str, float], ...] = ()
    error: str = ""
    first_scale_error: str = ""
    source: str = CLASS
    behaviours: tuple[int, ...] = (3,)
    family: str = "scaler"
    full: bool = False

    def runs_on(self, _: Backend) -> bool:
        return True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputsCase:
    """One argument of ``scale``.

    Attributes:
        outputs: its name among `amp_checks.families.scaler.outputs.BUILDERS`.
        init_scale: of the scaler.
        expected: the result, as `amp_checks.families.scaler.outputs.describe` puts it, or ``"ValueError: ..."``.
        starts: whether the scaler has a scale tensor afterwards (it refuses ``update`` with another error if not).
        enabled: of the scaler.
    """

    id: str
    outputs: str
    expected: str
    init_scale: float = 8.0
    starts: bool = True
    enabled: bool = True
    source: str = SCALE
    behaviours: tuple[int, ...] = (9,)
    family: str = "scaler"
    full: bool = False

    def runs_on(self, _: Backend) -> bool:
        return True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoryCase:
    """A story that a check of its own tells: the row names it, and says which promise it is about.

    Attributes:
        story: the key of the check among `amp_checks.families.scaler.stories.stories.CHECKS`; the id where empty.
        variant: which of the story's variants, where it has several.
        real_device: only on backends of this device type, not emulated; empty for all.
    """

    id: str
    shows: str
    source: str
    behaviours: tuple[int, ...]
    story: str = ""
    variant: str = ""
    real_device: str = ""
    family: str = "scaler"
    full: bool = False

    def runs_on(self, backend: Backend) -> bool:
        return not self.real_device or (backend.device_type == self.real_device and not backend.emulated)


_GROWTH = "AssertionError: The growth factor must be > 1.0."
_BACKOFF = "AssertionError: The backoff factor must be < 1.0."
_UNCHECKED = "observed on 2.13.0: accepted"

CONSTRUCTIONS: tuple[ConstructCase, ...] = (
    ConstructCase(id="construct-defaults", behaviours=(1, 5)),
    *(
        ConstructCase(id=f"construct-growth-factor-{value:g}", settings=(("growth_factor", value),), error=_GROWTH)
        for value in (1.0, 0.5, -INF)
    ),
    *(
        ConstructCase(id=f"construct-backoff-factor-{value:g}", settings=(("backoff_factor", value),), error=_BACKOFF)
        for value in (1.0, 2.0, INF)
    ),
    ConstructCase(
        id="construct-both-factors-wrong",
        settings=(("growth_factor", 1.0), ("backoff_factor", 1.0)),
        error=_GROWTH,
        source="observed on 2.13.0: the growth factor is looked at first",
    ),
    ConstructCase(
        id="construct-disabled-unchecked",
        settings=(("growth_factor", 0.5), ("backoff_factor", 2.0), ("enabled", False)),
        source="observed on 2.13.0: a disabled scaler checks nothing",
        behaviours=(3, 43),
    ),
    *(
        ConstructCase(id=f"construct-{name}-{value:g}", settings=((name, value),), source=_UNCHECKED)
        for name, values in (
            ("growth_factor", (1.5, INF, NAN)),
            ("backoff_factor", (0.0, -1.0, 0.75)),
            ("init_scale", (0.0, -2.0, INF, 0.1)),
            ("growth_interval", (0, -1)),
        )
        for value in values
    ),
    ConstructCase(
        id="construct-init-scale-beyond-float32",
        settings=(("init_scale", 1e39),),
        first_scale_error="RuntimeError: value cannot be converted to type float without overflow",
        source="observed on 2.13.0",
        behaviours=(4,),
    ),
)

OUTPUTS: tuple[OutputsCase, ...] = (
    OutputsCase(id="scale-float32", outputs="float32 vector", expected="float32 [8.0, -16.0]"),
    OutputsCase(id="scale-float64", outputs="float64 vector", expected="float64 [8.0, -16.0]"),
    OutputsCase(id="scale-bfloat16", outputs="bfloat16 vector", expected="bfloat16 [8.0, -16.0]"),
    OutputsCase(id="scale-float16", outputs="float16 vector", expected="float16 [8.0, -16.0]"),
    OutputsCase(id="scale-float32-scalar", outputs="float32 scalar", expected="float32 8.0"),
    OutputsCase(id="scale-float64-scalar", outputs="float64 scalar", expected="float64 8.0"),
    OutputsCase(id="scale-float16-scalar", outputs="float16 scalar", expected="float32 8.0"),
    OutputsCase(id="scale-bfloat16-scalar", outputs="bfloat16 scalar", expected="float32 8.0"),
    OutputsCase(id="scale-int64-scalar", outputs="int64 scalar", expected="float32 8.0"),
    OutputsCase(
        id="scale-float16-scalar-at-default-scale",
        outputs="float16 scalar",
        init_scale=65536.0,
        expected="float32 65536.0",
    ),
    OutputsCase(
        id="scale-float16-vector-at-default-scale",
        outputs="float16 vector",
        init_scale=65536.0,
        expected="float32 [65536.0, -131072.0]",
        source="torch.amp.GradScaler.scale, as for 0-dim losses: a finite loss stays finite",
    ),
    OutputsCase(id="scale-list", outputs="list", expected="list(float32 8.0, float64 [16.0])", behaviours=(10,)),
    OutputsCase(id="scale-tuple", outputs="tuple", expected="tuple(float32 8.0, float64 [16.0])", behaviours=(10,)),
    OutputsCase(
        id="scale-nested",
        outputs="nested",
        expected="list(tuple(float32 8.0, list(float32 16.0)), float32 24.0)",
        behaviours=(10,),
    ),
    OutputsCase(id="scale-generator", outputs="generator", expected="map(float32 8.0, float32 16.0)", behaviours=(10,)),
    OutputsCase(
        id="scale-unread-generator",
        outputs="unread generator",
        expected="map",
        starts=False,
        source="observed on 2.13.0: a generator is scaled as it is read",
        behaviours=(10,),
    ),
    OutputsCase(id="scale-empty-list", outputs="empty list", expected="list()", starts=False, behaviours=(10,)),
    OutputsCase(
        id="scale-namedtuple",
        outputs="namedtuple",
        expected="Pair(float32 8.0, float32 16.0)",
        source="torch.amp.GradScaler.scale: tuple[Tensor, ...] -> tuple[Tensor, ...]",
        behaviours=(10,),
    ),
    OutputsCase(
        id="scale-string",
        outputs="string",
        expected="map",
        starts=False,
        source="observed on 2.13.0: a string is an iterable, read when it is read",
        behaviours=(10,),
    ),
    OutputsCase(
        id="scale-dict",
        outputs="dict",
        expected="map",
        starts=False,
        source="observed on 2.13.0: a dict is an iterable of its keys, read when it is read",
        behaviours=(10,),
    ),
    *(
        OutputsCase(
            id=f"scale-{name.replace(' ', '-')}",
            outputs=name,
            expected="ValueError: outputs must be a Tensor or an iterable of Tensors",
            starts=False,
            behaviours=(10,),
        )
        for name in ("number", "none", "list of numbers")
    ),
    OutputsCase(
        id="scale-disabled", outputs="list", expected="the same object", enabled=False, behaviours=(11,), source=CLASS
    ),
    OutputsCase(
        id="scale-disabled-number",
        outputs="number",
        expected="the same object",
        enabled=False,
        behaviours=(11,),
        source=CLASS,
    ),
)

_STEP = "torch.amp.GradScaler.step"
_UPDATE = "torch.amp.GradScaler.update"
_STATE = "torch.amp.GradScaler.state_dict, load_state_dict"

STORIES: tuple[StoryCase, ...] = (
    StoryCase(
        id="cuda-scaler-without-cuda",
        shows="without CUDA a scaler for cuda warns and disables itself",
        source="torch.amp.GradScaler: the text of its warning",
        behaviours=(2,),
        real_device="cpu",
    ),
    StoryCase(
        id="disabled-getters",
        story="getters",
        variant="disabled",
        shows="disabled, the getters give what was set",
        source="torch.amp.GradScaler: enabled=False makes other methods no-ops",
        behaviours=(6,),
    ),
    StoryCase(
        id="aliases",
        shows="the other names of GradScaler are the same class, or warn",
        source="torch.cuda.amp.GradScaler, torch.cpu.amp.GradScaler: deprecated",
        behaviours=(7,),
    ),
    StoryCase(
        id="getters-and-setters",
        story="getters",
        variant="enabled",
        shows="what is set is what is got, and what is saved",
        source="torch.amp.GradScaler.get_growth_factor and its like",
        behaviours=(1, 46),
    ),
    StoryCase(
        id="scaling-is-differentiable",
        shows="autograd flows through scale(), to the outputs and not to the scale",
        source=SCALE,
        behaviours=(8,),
    ),
    StoryCase(
        id="first-scale-in-no-grad",
        story="first-scale-mode",
        variant="no_grad",
        shows="in which mode the first scale() was called is of no consequence later",
        source=SCALE,
        behaviours=(12,),
    ),
    StoryCase(
        id="first-scale-in-inference-mode",
        story="first-scale-mode",
        variant="inference_mode",
        shows="in which mode the first scale() was called is of no consequence later",
        source=SCALE,
        behaviours=(12,),
    ),
    StoryCase(
        id="backward-after-update",
        shows="outputs that were scaled in a list keep the scale of their time",
        source="torch.amp.GradScaler: _MultiDeviceReplicator serves copies",
        behaviours=(8, 10),
    ),
    StoryCase(
        id="guards",
        shows="a scaler whose insides were tampered with says so",
        source="torch.amp.GradScaler: the text of its errors",
        behaviours=(13,),
    ),
    StoryCase(
        id="gradient-penalty",
        shows="gradients of a double backward, unscaled by hand for the penalty, equal those without a scaler",
        source="torch notes: Automatic Mixed Precision examples, gradient penalty",
        behaviours=(8, 15),
    ),
    StoryCase(
        id="clip-by-norm",
        shows="unscale_, clip_grad_norm_, step is clipping without a scaler",
        source="torch notes: Automatic Mixed Precision examples, gradient clipping",
        behaviours=(15, 23),
    ),
    StoryCase(
        id="one-parameter-one-gradient",
        story="unscaled-once",
        variant="one parameter",
        shows="a gradient is unscaled once",
        source="torch.amp.GradScaler.unscale_",
        behaviours=(21,),
    ),
    StoryCase(
        id="two-parameters-one-gradient",
        story="unscaled-once",
        variant="two parameters",
        shows="a gradient tensor that two parameters hold is unscaled once",
        source="torch.amp.GradScaler.unscale_",
        behaviours=(21,),
    ),
    StoryCase(
        id="two-scalers-one-optimizer",
        story="unscaled-once",
        variant="two scalers",
        shows="a second scaler does not unscale what the first one has",
        source="torch.amp.GradScaler.unscale_",
        behaviours=(21,),
    ),
    StoryCase(
        id="kernel-arguments",
        shows="the check kernel refuses scales and flags that are not one float32 element",
        source="torch._amp_foreach_non_finite_check_and_unscale_: the text of its errors",
        behaviours=(22,),
    ),
    StoryCase(
        id="kernel-arithmetic",
        shows="found_inf is sticky; small float16 gradients flush to 0",
        source="observed on 2.13.0",
        behaviours=(22,),
    ),
    StoryCase(
        id="update-kernel-arithmetic",
        shows="growth, backoff and tracker of the update kernel",
        source=_UPDATE,
        behaviours=(35, 36),
    ),
    StoryCase(
        id="arguments-of-step",
        shows="step hands its arguments on, and gives back what the optimizer gave",
        source="torch.amp.GradScaler.step: *args and **kwargs are forwarded",
        behaviours=(23,),
    ),
    StoryCase(
        id="hooks-on-skip",
        story="hooks-on-skip",
        variant="for-loop",
        shows="step hooks of a skipped optimizer do not run",
        source=_STEP,
        behaviours=(24,),
    ),
    StoryCase(
        id="hooks-on-fused-skip",
        story="hooks-on-skip",
        variant="fused",
        shows="step hooks of a skipped fused optimizer do not run",
        source=_STEP,
        behaviours=(29,),
    ),
    StoryCase(
        id="keyword-closure",
        story="closure",
        variant="keyword",
        shows="a closure is refused, however it is passed",
        source="torch.amp.GradScaler.step: closure use is not currently supported",
        behaviours=(25,),
    ),
    StoryCase(
        id="positional-closure",
        story="closure",
        variant="positional",
        shows="a closure is refused, however it is passed",
        source="torch.amp.GradScaler.step: closure use is not currently supported",
        behaviours=(25,),
    ),
    StoryCase(
        id="lbfgs",
        shows="LBFGS cannot be stepped by a scaler: it needs a closure",
        source="torch.amp.GradScaler.step: closure use is not currently supported",
        behaviours=(25,),
    ),
    StoryCase(
        id="fused-float16",
        shows="a fused optimizer takes float16 gradients, unless they are unscaled before",
        source="torch.amp.GradScaler: the text of its error, and allow_fp16 in the source of _check_inf_per_device",
        behaviours=(30,),
    ),
    StoryCase(
        id="fused-unscaled-before",
        shows="a fused optimizer after unscale_: bad gradients skip, good ones step as without a scaler",
        source="https://github.com/pytorch/pytorch/issues/95781",
        behaviours=(29, 30),
    ),
    StoryCase(
        id="scale-on-fused-optimizer",
        shows="a grad_scale that the script has set multiplies the scale, and is gone after the step",
        source="torch.amp.GradScaler.step: the comment on the product of the scales",
        behaviours=(32,),
    ),
    StoryCase(
        id="sparse-float16-of-scaling-optimizer",
        shows="float16 sparse gradients are coalesced before they are checked",
        source="torch.amp.GradScaler: the comment on coalescing in _unscale_grads_",
        behaviours=(19,),
    ),
    StoryCase(
        id="scaler-argument-warning",
        shows="an optimizer that takes grad_scaler makes step warn",
        source="torch.amp.GradScaler.step: the text of its warning",
        behaviours=(33,),
    ),
    StoryCase(
        id="new-scale-kinds",
        story="new-scale",
        variant="kinds",
        shows="new_scale is a float or a 1-element tensor that requires no gradient",
        source=_UPDATE,
        behaviours=(41,),
    ),
    StoryCase(
        id="new-scale-shape-1",
        story="new-scale",
        variant="shape 1",
        shows="a tensor of shape [1], which the error message asks for, is taken",
        source="torch.amp.GradScaler.update: 1-element tensor",
        behaviours=(41,),
    ),
    StoryCase(
        id="state-dict-entries",
        shows="five entries, read once: later steps do not change a saved state",
        source=_STATE,
        behaviours=(44,),
    ),
    StoryCase(
        id="load-state",
        story="load-state",
        variant="complete",
        shows="loading makes the state the saved one",
        source=_STATE,
        behaviours=(44,),
    ),
    StoryCase(
        id="load-incomplete-state",
        story="load-state",
        variant="incomplete",
        shows="a state that lacks an entry is refused and changes nothing",
        source=_STATE,
        behaviours=(44,),
    ),
    StoryCase(
        id="copy-after-reading-found-inf",
        shows="reading the inf flags begins an iteration: no pickling until update",
        source="observed on 2.13.0",
        behaviours=(45,),
    ),
    StoryCase(
        id="scheduler-after-skip",
        shows="a scheduler whose first optimizer step was skipped warns",
        source="https://github.com/pytorch/pytorch/issues/44511",
        behaviours=(47,),
    ),
    *(
        StoryCase(
            id=f"resume-in-{name.replace(' ', '-')}",
            story="resume",
            variant=name,
            shows="training that is saved and taken up again ends, bit for bit, where training at one go ends",
            source=_STATE,
            behaviours=(44,),
            full=name == "new process",
        )
        for name in ("new objects", "new process")
    ),
    StoryCase(
        id="growth-stops-below-inf",
        story="growth-capped",
        shows="the scale does not grow to inf",
        source="https://github.com/pytorch/pytorch/issues/98828",
        behaviours=(36,),
    ),
    StoryCase(
        id="sharded-growth-stops-below-inf",
        story="growth-capped",
        variant="torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler",
        shows="the scale of a ShardedGradScaler does not grow to inf",
        source="https://github.com/pytorch/pytorch/issues/98828",
        behaviours=(36,),
        real_device="cpu",
        full=True,
    ),
    StoryCase(
        id="several-devices",
        shows="the flags of all devices are summed, and the scale is copied to each",
        source="torch.amp.GradScaler: _MultiDeviceReplicator",
        behaviours=(48,),
        real_device="cpu",
    ),
)

ROWS: tuple[ConstructCase | OutputsCase | StoryCase, ...] = (*CONSTRUCTIONS, *OUTPUTS, *STORIES)
