"""What regions, their weight cache and what stands around them must do: one row per program of the checks.

An expected value of ``low`` is the region's dtype. Where a torch does otherwise, the row keeps what is right and
``fixtures/known_defects/ops.json`` has the entry.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from amp_checks.core import Backend, Value
from amp_checks.torch_api import machine

_DOCS = "torch.autocast documentation"


class Topic(enum.StrEnum):
    """What a row is about: each has a check of its own."""

    STATE = "state"
    ARGUMENTS = "arguments"
    DECORATORS = "decorators"
    THREADS = "threads"
    CACHE = "cache"
    GRADIENTS = "gradients"
    FUNCTIONS = "custom functions"
    TRANSFORMS = "transforms"
    COMPILED = "compiled"
    MIXED = "mixed dtypes"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RegionCase:
    """A program, and what it must report.

    Attributes:
        program: its name in `amp_checks.families.ops.regions.checks.PROGRAMS`.
        topic: which check runs it.
        expected: subject -> value.
        expected_on: the same where it differs by device type; its subjects join those of ``expected``.
        source: where the expectation comes from.
        real_only: why it says nothing under emulation; empty where it does.
        devices: device types on which it means something; all where empty.
        machine: a condition of `amp_checks.torch_api.machine` without which it cannot run.
    """

    program: str
    topic: Topic
    expected: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    expected_on: Mapping[str, Mapping[str, Value]] = dataclasses.field(default_factory=dict)
    source: str = _DOCS
    real_only: str = ""
    devices: tuple[str, ...] = ()
    machine: str = ""
    full: bool = False
    family: str = "ops"

    @property
    def id(self) -> str:
        return f"region.{self.program}"

    def runs_on(self, backend: Backend) -> bool:
        if self.devices and backend.device_type not in self.devices:
            return False
        return not (self.real_only and backend.emulated) and machine.holds(self.machine)

    def right(self, device_type: str) -> dict[str, Value]:
        """Everything that is expected on a device type."""
        return {**self.expected, **self.expected_on.get(device_type, {})}


DEFAULT_DTYPES = {
    "cuda": "float16",
    "cpu": "bfloat16",
    "xpu": "float16",
    "mps": "float16",
    "mtia": "float16",
    "maia": "bfloat16",
}
"""The dtype of a region that names none."""

_THREAD = "an emulated region holds for the thread that entered it"
_COMPILE = "a region graph-breaks under the emulation"
_INSIDE_OUTSIDE = {"inside": "low", "after": "float32"}

CASES: tuple[RegionCase, ...] = (
    RegionCase(
        program="nested",
        topic=Topic.STATE,
        expected={
            "inside": "low",
            "off inside": "float32",
            "on inside off": "low",
            "on again": "low",
            "switches restored": True,
        },
    ),
    RegionCase(
        program="left_by_exception",
        topic=Topic.STATE,
        expected={"exception": "KeyError: 'mine'", "switches restored": True},
    ),
    RegionCase(
        program="failing_op",
        topic=Topic.STATE,
        expected={"raised": "RuntimeError", "switches restored": True},
    ),
    RegionCase(
        program="instance_in_sequence",
        topic=Topic.STATE,
        expected={"first": "low", "between": "float32", "second": "low", "after": "float32"},
    ),
    RegionCase(program="instance_in_itself", topic=Topic.STATE, expected=_INSIDE_OUTSIDE),
    RegionCase(
        program="default_dtype",
        topic=Topic.STATE,
        expected_on={device: {"dtype of a region that names none": name} for device, name in DEFAULT_DTYPES.items()},
        source="the table of default dtypes in aten/src/ATen/autocast_mode.cpp",
    ),
    RegionCase(program="other_device", topic=Topic.STATE, expected={"under another device's autocast": "float32"}),
    RegionCase(
        program="asked_without_device",
        topic=Topic.STATE,
        expected={"is_autocast_enabled(device)": True, "is_autocast_enabled() is cuda's": True},
        source="without a device type, torch.is_autocast_enabled answers for cuda: give it one",
    ),
    RegionCase(
        program="bad_arguments",
        topic=Topic.ARGUMENTS,
        expected={
            "device object": "ValueError: Expected `device_type` of type `str`, got: `<class 'torch.device'>`",
            "unknown device": "RuntimeError",
            "meta": "RuntimeError",
            "not callable": "TypeError: autocast()(func) requires a callable, but got int",
            "enabled not a bool": "TypeError",
        },
    ),
    RegionCase(
        program="unsupported_dtype",
        topic=Topic.ARGUMENTS,
        expected={"warned": True, "product inside": "float32", "warned where disabled": False},
        source="torch.autocast warns of a dtype that its device does not support, and disables itself",
    ),
    RegionCase(
        program="float32_region",
        topic=Topic.ARGUMENTS,
        expected={"product in a float32 region inside a low one": "float32"},
        source="a region of dtype float32 is an island of float32: pytorch issue 100565",
    ),
    RegionCase(
        program="decorated_function",
        topic=Topic.DECORATORS,
        expected={"inside": "low", "again": "low", "after": "float32"},
    ),
    RegionCase(
        program="decorated_recursion",
        topic=Topic.DECORATORS,
        expected={"inside": "low, low, low", "after": "float32"},
    ),
    RegionCase(program="decorated_generator", topic=Topic.DECORATORS, expected={"inside": "low"}),
    RegionCase(program="decorated_coroutine", topic=Topic.DECORATORS, expected={"inside": "low"}),
    RegionCase(
        program="suspended_generator",
        topic=Topic.DECORATORS,
        expected={"inside": "low", "in the caller, while it is suspended": "float32"},
    ),
    RegionCase(
        program="awaiting_region",
        topic=Topic.DECORATORS,
        expected={"in another task, while one waits in a region": "float32"},
    ),
    RegionCase(
        program="new_thread",
        topic=Topic.THREADS,
        expected={
            "enabled in a new thread": False,
            "default dtype there": True,
            "product there": "float32",
            "product here": "low",
        },
        source="autocast state is thread-local, torch.amp documentation",
        real_only=_THREAD,
    ),
    RegionCase(
        program="thread_leaves_cache_alone",
        topic=Topic.THREADS,
        expected={"casts of the weight after another thread left a region": 0},
        source="a region's cache lives to the end of its outermost region",
        real_only=_THREAD,
    ),
    RegionCase(
        program="cache_hits",
        topic=Topic.CACHE,
        expected={
            "casts of a parameter used three times": 1,
            "in the next region": 1,
            "with the cache off": 3,
            "of a view": 3,
            "of a result": 3,
            "of a tensor without gradient": 3,
            "after an inner region": 0,
            "after clear_autocast_cache": 1,
        },
        source="comments of cached_cast in aten/src/ATen/autocast_mode.cpp",
    ),
    RegionCase(
        program="cache_after_update",
        topic=Topic.CACHE,
        expected={"in place: new weight used": True, "through .data: new weight used": True},
        source="a cache must not change results",
    ),
    RegionCase(
        program="cache_between_regions",
        topic=Topic.CACHE,
        expected={
            "alone: new weight used": True,
            "inside a disabled region: new weight used": True,
        },
        source="a cache must not change results",
    ),
    RegionCase(
        program="cache_across_dtypes",
        topic=Topic.CACHE,
        expected={
            "linear in a region of the other dtype inside": "other",
            "mm of two cached weights there": "other",
        },
        source="an op runs in the dtype of its region",
    ),
    RegionCase(program="cache_releases", topic=Topic.CACHE, expected={"parameter alive after its region": False}),
    RegionCase(
        program="no_grad_then_grad",
        topic=Topic.CACHE,
        expected={
            "after no_grad": True,
            "after inference_mode": True,
            "after set_grad_enabled(False)": True,
        },
        source="gradients as without autocast: pytorch issues 65766 and 112583",
    ),
    RegionCase(
        program="gradient_dtypes",
        topic=Topic.GRADIENTS,
        expected={
            "of a parameter": "float32",
            "of an input": "float32",
            "equal to those through casts by hand": True,
        },
        source="casting by hand with autocast off",
    ),
    RegionCase(program="backward_inside", topic=Topic.GRADIENTS, expected={"inside equals outside": True}),
    RegionCase(
        program="double_backward",
        topic=Topic.GRADIENTS,
        expected={"dtype": "float32", "equal to that through casts by hand": True},
        source="casting by hand with autocast off",
    ),
    RegionCase(
        program="checkpointed",
        topic=Topic.GRADIENTS,
        expected={"reentrant: gradient as without": True, "not reentrant: gradient as without": True},
        source="torch.utils.checkpoint restores the state of autocast when it recomputes",
        devices=("cuda", "cpu", "xpu", "mps", "mtia"),  # no torch has a module for maia, which checkpoint asks for
    ),
    RegionCase(
        program="state_in_backward",
        topic=Topic.GRADIENTS,
        expected={"enabled and dtype in a backward run inside a region": "True low"},
        source="pytorch issue 125186",
    ),
    RegionCase(
        program="custom_function",
        topic=Topic.FUNCTIONS,
        expected={"seen": "forward low of float32, backward low"},
        source="custom_bwd runs backward in the state of forward: pytorch issue 87979",
    ),
    RegionCase(
        program="custom_function_casting",
        topic=Topic.FUNCTIONS,
        expected={
            "inside": "forward float32 of float32, backward float32",
            "outside": "forward low of low, backward low",
        },
        source="custom_fwd(cast_inputs=): casts and disables autocast inside a region, does nothing outside",
    ),
    RegionCase(
        program="custom_function_containers",
        topic=Topic.FUNCTIONS,
        expected={
            "list": "list float32 float32",
            "dict": "dict float32",
            "OrderedDict": "OrderedDict float32",
            "namedtuple": "_Pair float32 float32",
        },
        source="custom_fwd(cast_inputs=) casts tensors in containers and keeps the containers",
    ),
    RegionCase(
        program="custom_function_setup_context",
        topic=Topic.FUNCTIONS,
        expected={"backward": "no exception", "attributes left on the input": False},
        source="pytorch issues 132388 and 137033",
    ),
    RegionCase(
        program="custom_function_errors",
        topic=Topic.FUNCTIONS,
        expected={"device object": "ValueError: Expected `device_type` of type `str`"},
    ),
    RegionCase(
        program="vmapped",
        topic=Topic.TRANSFORMS,
        expected={"mm": "low", "mm equals that of inputs cast by hand": True},
        source="casting by hand with autocast off",
    ),
    RegionCase(
        program="func_transforms",
        topic=Topic.TRANSFORMS,
        expected={
            "func.grad": "float32",
            "func.grad equals that through casts by hand": True,
            "jvp": "low low",
        },
        source="casting by hand with autocast off",
    ),
    RegionCase(
        program="vmapped_gradient_of_norms",
        topic=Topic.TRANSFORMS,
        expected={
            "layer_norm": "no exception",
            "group_norm": "no exception",
            "batch_norm": "no exception",
        },
        source="gradients as in a loop: pytorch issue 184890",
    ),
    RegionCase(
        program="compiled_parity",
        topic=Topic.COMPILED,
        expected={
            "linear, gelu, softmax": "as eager",
            "cat of low and float32": "as eager",
            "norm and loss": "as eager",
            "a region inside the function": "as eager",
        },
        source="torch.compile gives eager's results",
        real_only=_COMPILE,
        full=True,
    ),
    RegionCase(
        program="compiled_disabled_region",
        topic=Topic.COMPILED,
        expected={"disabled region inside": "as eager"},
        source="torch.compile gives eager's results: pytorch issue 179804",
        real_only=_COMPILE,
        full=True,
    ),
    RegionCase(
        program="compiled_default_dtype",
        topic=Topic.COMPILED,
        expected={"follows the default dtype": True},
        source="torch.compile gives eager's results: pytorch pull request 191110",
        real_only=_COMPILE,
        full=True,
    ),
    RegionCase(
        program="compiled_mismatch",
        topic=Topic.COMPILED,
        expected={"eager refuses": True, "aot_eager refuses": True, "inductor refuses": True},
        source="torch.compile refuses what eager refuses: pytorch issues 150993 and 171190",
        real_only=_COMPILE,
        full=True,
    ),
    RegionCase(
        program="generated_with_dynamic_shapes",
        topic=Topic.COMPILED,
        expected={"size 16": "as eager", "size 33": "as eager"},
        source="torch.compile gives eager's results: pytorch issue 194329",
        real_only=_COMPILE,
        machine="has-a-cpp-compiler",
        full=True,
    ),
    RegionCase(
        program="traced",
        topic=Topic.COMPILED,
        expected={"with the cache": "low", "without": "low"},
        source="pytorch issue 50231",
        real_only="torch.jit.trace looks at memory that emulated tensors do not have",
        full=True,
    ),
    RegionCase(
        program="graph_casts",
        topic=Topic.COMPILED,
        expected={"mm in the graph": "low", "softmax in the graph": "float32"},
        expected_on={"cpu": {"softmax in the graph": "low"}},
        source="the casts of a region are part of a graph that is traced inside it",
    ),
    RegionCase(
        program="low_into_float32",
        topic=Topic.MIXED,
        expected={
            "scatter_add": "float32",
            "index_add": "float32",
            "index_put": "float32",
            "assignment to an index": "float32",
        },
        source="a low result goes into a float32 tensor: pytorch issues 37735 and 51730",
    ),
    RegionCase(
        program="spectral_norm",
        topic=Topic.MIXED,
        expected={"a layer with spectral norm": "low"},
        source="pytorch issue 125544",
    ),
    RegionCase(
        program="float64_meets",
        topic=Topic.MIXED,
        expected={
            "mm of float64": "float64",
            "linear of float64 and float32": "RuntimeError",
            "mse_loss of low and float64": "float64",
        },
        source="autocast leaves float64 alone, torch.amp documentation",
    ),
    RegionCase(
        program="saturated_cross_entropy",
        topic=Topic.MIXED,
        expected={"with logits, loss of logit 12": 12.0, "of a probability": "RuntimeError"},
        source="binary_cross_entropy is unsafe after a 16-bit sigmoid: pytorch issue 61098",
    ),
)
