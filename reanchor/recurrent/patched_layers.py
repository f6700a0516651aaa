"""The room inside transformers' models: while a tree is verified, a recurrent layer runs its own forward with our
convolution and our recurrence under the names of the functions that it calls; no modelling code is copied. Outside of a
pass nothing is changed, and other models of the same class never see any of it.

The layer is given a stand-in for the cache, which has no state and takes none: so the layer always takes its way for
several tokens, a tree of one node included, and whatever happens in a pass, what is committed stays as it was.

Where transformers' two forms of a layer differ, the one for a single token is the target: that is how it decodes. It
never clamps Mamba2's time steps, which the form for prompts does (nemotron_h to `time_step_min` at least), so neither
do we. Prompts go transformers' own way. Outputs are exact but for rounding, as sums come in another order.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from reanchor.recurrent import causal_convolution, solve
from reanchor.recurrent.lineage import Lineage
from reanchor.recurrent.recurrence import Kept, RecurrenceProblem

CONVOLVE = "causal_conv1d_fn"
DELTA, SCAN = "torch_chunk_gated_delta_rule", "mamba2_chunk_scan"
# The class of a recurrent layer and the function of its recurrence; a short convolution has none.
LAYERS: dict[str, str | None] = {
    "Qwen3NextGatedDeltaNet": DELTA,
    "Qwen3_5GatedDeltaNet": DELTA,
    "Qwen3_5MoeGatedDeltaNet": DELTA,
    "OlmoHybridGatedDeltaNet": DELTA,
    "Lfm2ShortConv": None,
    "Lfm2MoeShortConv": None,
    "GraniteMoeHybridMambaLayer": SCAN,
    "BambaMixer": SCAN,
    "NemotronHMamba2Mixer": SCAN,
    "FalconH1Mixer": SCAN,
    "Mamba2Mixer": SCAN,
}
KNOWN = (
    "known are Gated DeltaNet, short convolutions and Mamba2 as transformers has them in qwen3_next, qwen3_5, "
    "qwen3_5_moe, olmo_hybrid, lfm2, lfm2_moe, granitemoehybrid, bamba, nemotron_h, falcon_h1 and mamba2"
)
# Layer types of configs with a recurrent state, those with keys and values as well, and those with neither.
STATEFUL, BOTH, NEITHER = ("linear_attention", "conv", "mamba"), ("hybrid",), ("moe", "mlp")
TOUCHES_A_STATE = {"get_conv_state", "get_recurrent_state", "update_conv_state", "update_recurrent_state"}
CACHE_NAMES = ("cache", "cache_params", "past_key_values")  # of a layer's argument, by version


@dataclass(frozen=True)
class KeptLayer:
    """One recurrent layer's part of a verified tree."""

    rows: Tensor  # [N, C] what entered the convolution
    recurrence: Kept | None  # None: a convolution is all there is
    transposed: bool  # the cache has the state as [H, V, K]


def plain_forward(kind: type) -> Any:
    """A class's forward without what is wrapped around it."""
    return inspect.unwrap(kind.forward)  # type: ignore[attr-defined]


def names_of(kind: type) -> set[str]:
    """Names that a class's forward reads."""
    code = getattr(plain_forward(kind), "__code__", None)
    return set(code.co_names) if code is not None else set()


def recurrent_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Modules whose forward reads or writes a recurrent state of the cache, by their place in the model."""
    return {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__ in LAYERS or names_of(type(module)) & TOUCHES_A_STATE
    }


def refusal(model: nn.Module) -> str | None:
    """Why a model with recurrent layers cannot be verified by trees, naming the layer, or None. None as well for a
    model without any.
    """
    config: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
    types_ = list(getattr(config, "layer_types", None) or ())
    stateful = {place for place, kind in enumerate(types_) if kind in (*STATEFUL, *BOTH)}
    found = recurrent_modules(model)
    for name, module in found.items():
        reason = unknown(module)
        if reason is not None:
            return f"{name} is a {type(module).__name__}: {reason}"
    indexed = {int(getattr(module, "layer_idx", -1)) for module in found.values()}
    if indexed != stateful:
        strange = sorted({types_[place] for place in stateful - indexed}) or ["no recurrent type"]
        return f"layers of type {', '.join(strange)} that are not of a known kind; {KNOWN}"
    if not found and getattr(model, "_is_stateful", False):
        return f"a recurrent state that is not of a known kind; {KNOWN}"
    return None


def unknown(module: nn.Module) -> str | None:
    """Why a recurrent layer is none that we know, or None."""
    kind: Any = type(module)
    if kind.__name__ not in LAYERS or not kind.__module__.startswith("transformers.models."):
        return f"its recurrence is not known; {KNOWN}"
    bare = plain_forward(kind)
    if bare.__globals__["__name__"] != kind.__module__ or (
        "forward" in vars(module) and place_of(module) == "forward"
    ):
        return "its forward is not transformers' own"
    function = LAYERS[kind.__name__]
    missing = {CONVOLVE, *([function] if function else [])} - names_of(kind)
    if missing or bare.__closure__ or not {*CACHE_NAMES} & {*bare.__code__.co_varnames}:
        return (
            f"this version of transformers computes it in another way ({', '.join(sorted(missing)) or 'its cache'}); "
            "use the newest version that reanchor is tested with"
        )
    return None


def place_of(module: nn.Module) -> str:
    """The attribute that a module's forward is looked up by: accelerate keeps the one that it wraps apart."""
    return "_old_forward" if "_old_forward" in vars(module) else "forward"


@dataclass(frozen=True)
class Sizes:
    """Numbers that a recurrent layer holds."""

    state: int  # of the recurrence
    columns: int  # of the convolution
    kept: int  # for each node of a verified tree


def sizes_of(module: nn.Module) -> Sizes:
    """Read from a recurrent layer's attributes; its state is [H, K, V] in any order."""
    convolution_: Any = getattr(module, "conv1d", None) or module.conv
    channels, width = convolution_.weight.shape[0], convolution_.weight.shape[-1]
    function = LAYERS.get(type(module).__name__)
    made: Any = module
    if function == DELTA:
        heads, keys, key, value = made.num_v_heads, made.num_k_heads, made.head_k_dim, made.head_v_dim
    elif function == SCAN:
        heads, keys, key, value = made.num_heads, made.n_groups, made.ssm_state_size, made.head_dim
    else:
        return Sizes(0, channels * width, channels)
    return Sizes(heads * key * value, channels * width, channels + keys * key + heads * value)


class Stateless:
    """What a layer is given for its cache while a tree is verified: it holds no state and keeps none."""

    def get_conv_state(self, *args: Any, **kwargs: Any) -> None:
        return None

    get_recurrent_state = get_conv_state

    def has_previous_state(self, *args: Any, **kwargs: Any) -> bool:
        return False

    is_recording_past = has_previous_state

    def update_conv_state(self, conv_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return conv_states

    def update_recurrent_state(self, *args: Any, **kwargs: Any) -> None:
        """The state after all nodes would be no node's."""


class Layer:
    """One recurrent layer of a model, and its forward bound to our functions."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.index = int(module.layer_idx)  # type: ignore[arg-type]
        bare = plain_forward(type(module))
        ours: dict[str, Any] = {CONVOLVE: self.convolve}
        if (function := LAYERS[type(module).__name__]) is not None:
            ours[function] = {DELTA: self.delta, SCAN: self.scan}[function]
        self.code = types.FunctionType(
            bare.__code__, {**bare.__globals__, **ours}, bare.__name__, bare.__defaults__
        )
        self.code.__kwdefaults__ = bare.__kwdefaults__
        self.cache_name = next(name for name in CACHE_NAMES if name in bare.__code__.co_varnames)
        self.class_forward = type(module).forward
        self.place = place_of(module)
        self.before = vars(module).get(self.place)
        self.forget()
        self.lineage: Lineage | None = None
        self.kept: dict[int, KeptLayer] = {}

    def current(self) -> bool:
        """Is the module's forward still the one that we have the code of?"""
        found = vars(self.module).get(self.place)
        same = found is self.before and place_of(self.module) == self.place
        return same and type(self.module).forward is self.class_forward

    def begin(self, lineage: Lineage, kept: dict[int, KeptLayer]) -> None:
        self.lineage, self.kept = lineage, kept
        vars(self.module)[self.place] = self.forward

    def end(self) -> None:
        if self.before is None:
            vars(self.module).pop(self.place, None)
        else:
            vars(self.module)[self.place] = self.before
        self.lineage, self.kept = None, {}
        self.forget()

    def forget(self) -> None:
        self.committed: Any = None
        self.rows: Tensor | None = None
        self.recurrence: Kept | None = None

    def forward(self, hidden_states: Tensor, *args: Any, **keywords: Any) -> Tensor:
        """The layer's own forward over a tree: hidden_states [1, N, hidden size]."""
        cache = keywords.get(self.cache_name, args[0] if args else None)
        if cache is None or hidden_states.shape[0] != 1:
            raise ValueError(f"{type(self.module).__name__} verifies a tree of one text behind a cache")
        if not cache.has_previous_state(self.index):
            raise ValueError(
                f"{type(self.module).__name__} verifies a tree behind a prompt, and the cache is empty"
            )
        self.forget()
        self.committed = cache.layers[self.index]
        output = self.code(self.module, hidden_states, **{self.cache_name: Stateless()})
        assert self.rows is not None, "a layer convolves what it keeps"
        transposed = LAYERS[type(self.module).__name__] == SCAN
        self.kept[self.index] = KeptLayer(self.rows, self.recurrence, transposed)
        self.forget()
        return output

    def over(self, device: torch.device) -> Lineage:
        assert self.lineage is not None, "a layer is called inside a pass"
        return self.lineage.on(device)

    def convolve(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **keywords: Any,
    ) -> Tensor:
        """transformers' `causal_conv1d_fn`: [1, C, N] of [1, C, N]."""
        self.rows = hidden_states[0].T
        committed = self.committed.conv_states[0][0]
        out = causal_convolution.verify(self.rows, weight, bias, committed, self.over(weight.device))
        if activation is not None:
            out = ACT2FN[activation](out)
        return out.to(hidden_states.dtype).T[None]

    def delta(
        self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **keywords: Any
    ) -> tuple[Tensor, None]:
        """transformers' gated delta rule: [1, N, H, V] of queries and keys [1, N, Hk, K] and values [1, N, H, V]."""
        work = torch.promote_types(value.dtype, torch.float32)
        query, key = query[0].to(work), key[0].to(work)
        if keywords.get("use_qk_l2norm_in_kernel"):
            query, key = unit(query), unit(key)
        problem = RecurrenceProblem(
            queries=query * query.shape[-1] ** -0.5,
            keys=key,
            values=value[0].to(work),
            decay=g[0],
            strength=beta[0],
            state=self.committed.recurrent_states[0][0],
            lineage=self.over(value.device),
        )
        outputs, self.recurrence = solve.verify(problem)
        return outputs.to(value.dtype)[None].contiguous(), None

    def scan(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        return_final_states: bool = False,
        **keywords: Any,
    ) -> Any:
        """transformers' Mamba2 scan: outputs [1, N, H, P] of hidden_states [1, N, H, P], dt [1, N, H], B and C
        [1, N, Hk, state size], time steps as its form for one token makes them.
        """
        work = torch.promote_types(hidden_states.dtype, torch.float32)
        if dt_bias is not None:
            dt = dt + dt_bias.to(dt.dtype)
        steps = (F.softplus(dt) if dt_softplus else dt)[0].to(work)  # [N, H]
        values = hidden_states[0].to(work)
        problem = RecurrenceProblem(
            queries=C[0],
            keys=B[0],
            values=values * steps[:, :, None],
            decay=steps * A.to(work),
            strength=None,
            state=self.committed.recurrent_states[0][0].mT,
            lineage=self.over(dt.device),
        )
        outputs, self.recurrence = solve.verify(problem)
        if D is not None:
            outputs = outputs + values * D.to(work)[:, None]
        outputs = outputs.to(hidden_states.dtype)[None].contiguous()
        return (outputs, None) if return_final_states else outputs


def unit(rows: Tensor) -> Tensor:
    """Rows over their length as transformers' `l2norm` has it."""
    return rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + 1e-6)


class Scope:
    """The recurrent layers of a model, ready to verify trees."""

    def __init__(self, model: nn.Module) -> None:
        reason = refusal(model)
        if reason is not None:
            raise ValueError(f"{type(model).__name__} has {reason}")
        self.layers = [Layer(module) for module in recurrent_modules(model).values()]

    def current(self) -> bool:
        """False where a layer was given another forward since."""
        return all(layer.current() for layer in self.layers)

    @contextmanager
    def verifying(self, lineage: Lineage) -> Iterator[dict[int, KeptLayer]]:
        """While the context lasts, passes of the model are over this tree; yields what each layer keeps of it."""
        kept: dict[int, KeptLayer] = {}
        begun: list[Layer] = []
        try:
            for layer in self.layers:
                begun.append(layer)
                layer.begin(lineage, kept)
            yield kept
        finally:
            for layer in begun:
                layer.end()
