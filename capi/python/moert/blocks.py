"""MoE blocks of a torch model, found by what they are made of, and what takes their place."""
import inspect
import re
import typing

import torch

from . import torch_ops
from .checkpoint_experts import Shape

_ACTIVATIONS = {"SiLUActivation": "silu", "SiLU": "silu", "Silu": "silu", "silu": "silu",
                "GELUActivation": "gelu", "GELU": "gelu", "GELUTanh": "gelu_tanh",
                "NewGELUActivation": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh"}


class Found(typing.NamedTuple):
    """A sparse MoE block: `module` is `parent.attribute`, `name` its path in the model."""
    name: str
    parent: torch.nn.Module
    attribute: str
    module: torch.nn.Module

    @property
    def layer(self):
        """Its layer's number in the model, or None."""
        numbers = re.findall(r"\blayers\.(\d+)\b", self.name)
        return int(numbers[-1]) if numbers else None


def find(model):
    """Every sparse MoE block, in order: a module with experts and a gate or router."""
    found = []
    for path, module in model.named_modules():
        for name, child in module.named_children():
            if hasattr(child, "experts") and (hasattr(child, "gate") or hasattr(child, "router")):
                found.append(Found(f"{path}.{name}".lstrip("."), module, name, child))
    return found


def _refusal(experts):
    """Why a module of experts cannot be computed here, or None. What is looked at is what
    transformers 5 says of its fused experts."""
    parameters = {name for name, _ in experts.named_parameters()}
    takes = list(inspect.signature(type(experts).forward).parameters)
    wraps = getattr(type(experts).forward, "__wrapped__", None)
    if wraps is not None:
        takes = list(inspect.signature(wraps).parameters)
    if len(takes) < 4 or not re.search("index|indices|ids", takes[2]):
        return f"its forward takes ({', '.join(takes[1:])}), not hidden states, ids and weights"
    if not getattr(experts, "has_gate", True):
        return "its experts have no gate"
    if parameters != {"gate_up_proj", "down_proj"}:
        return (f"its parameters are {', '.join(sorted(parameters))}, not gate_up_proj and "
                "down_proj alone")
    if not getattr(experts, "is_concatenated", True):
        return "gate and up are interleaved"
    gate = getattr(type(experts), "_apply_gate", None)
    if gate is not None and gate.__module__ != "transformers.integrations.moe":
        return "its gate is a formula of its own"
    if _activation(experts) is None:
        return f"its activation is {type(getattr(experts, 'act_fn', None)).__name__}"
    return None


def _activation(experts):
    act = getattr(experts, "act_fn", None)
    return _ACTIVATIONS.get(getattr(act, "__name__", None) or type(act).__name__)


def shape(found):
    """The Shape of a block's fused experts, and their activation. ValueError for experts that are
    not gated ones summed by weight."""
    experts = found.module.experts
    why = _refusal(experts)
    if why is not None:
        raise ValueError(f"{found.name}: {type(experts).__name__} cannot be given to libmoert by "
                         f"its structure: {why}")
    transposed = bool(getattr(experts, "is_transposed", False))
    count, *size = experts.down_proj.shape
    hidden, width = size[::-1] if transposed else size
    return Shape(count, width, hidden, transposed), _activation(experts)


def top_k(found):
    """Experts a token, as the block or its router says."""
    block = found.module
    router = getattr(block, "gate", None) or getattr(block, "router", None)
    for owner in (block, router, getattr(block, "config", None), getattr(router, "config", None)):
        for name in ("top_k", "num_experts_per_tok", "moe_top_k", "moe_k"):
            value = getattr(owner, name, None)
            if isinstance(value, int):
                return value
    raise ValueError(f"{found.name}: {type(block).__name__} does not say how many experts a token "
                     "uses; pass top_k=")


# Compiled calls of up to so many rows are recorded into CUDA graphs, where the engine allows it:
# decoding. A recorded call whose misses the device serves reads an expert again for every 16 rows.
_GRAPH_ROWS = 64


class _Replacement(torch.nn.Module):
    """Without parameters or state: what it computes with is the engine's. ranks: a
    distributed.Ranks whose engines hold parts of each layer, or None."""

    def __init__(self, passes, layer, ranks):
        super().__init__()
        self._passes, self._layer, self._ranks = passes, layer, ranks
        self._last = layer + 1 == passes.engine.layers
        self._graphs = passes.engine.graph_safe

    def _compiled(self, operators, x, sequences, *routing):
        """The call as torch.compile sees it. operators: (on the host, in a graph)."""
        on_host, in_graph = operators
        number = self._passes.number
        if not self._graphs or x.shape[0] > _GRAPH_ROWS:
            return on_host(x, *routing, number, self._layer, sequences)
        if self._layer == 0:
            x = torch_ops.hold(x, number, sequences)
        out = in_graph(x, *routing, number, self._layer, sequences)
        return torch_ops.release(out, number) if self._last else out

    @property
    def engine(self):
        return self._passes.engine

    def extra_repr(self):
        return f"layer={self._layer}, engine={self.engine.strategy} on {self.engine.backend}"

    def __deepcopy__(self, memo):
        raise TypeError("a model with libmoert's experts cannot be copied: they are one engine's")


class MoeBlock(_Replacement):
    """Stands where a sparse MoE block stood; the library routes."""

    def forward(self, hidden_states, *_, **__):
        torch_ops.refuse_gradients(hidden_states)
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        sequences = hidden_states.shape[0] if hidden_states.dim() == 3 else 1
        if torch.compiler.is_compiling():
            out = self._compiled((torch_ops.block, torch_ops.block_in_graph), x, sequences)
        else:
            out = self._passes.forward(self._layer, x.detach(), sequences)
        if self._ranks is not None:
            out = self._ranks.sum(out)
        return out.reshape(hidden_states.shape)


class Experts(_Replacement):
    """Stands where a block's experts stood; the block's router and shared experts stay."""

    def __init__(self, passes, layer, ranks, batch):
        super().__init__(passes, layer, ranks)
        self._batch = batch

    def forward(self, hidden_states, top_k_index, top_k_weights):
        torch_ops.refuse_gradients(hidden_states, top_k_weights)
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        ids, weights = (t.reshape(x.shape[0], -1) for t in (top_k_index, top_k_weights))
        if torch.compiler.is_compiling():
            out = self._compiled((torch_ops.experts, torch_ops.experts_in_graph), x, 0, ids,
                                 weights)
        else:
            out = self._passes.forward(self._layer, x.detach(), self._batch.sequences,
                                       (ids.detach(), weights.detach()))
        if self._ranks is not None:
            out = self._ranks.sum(out)
        return out.reshape(hidden_states.shape)


class Batch:
    """How many sequences the pass under way has: blocks flatten them before their experts see
    them."""
    sequences = 0  # not known

    def watch(self, model):
        """Looks at what the model is called with."""
        def look(_, arguments, named):
            if not torch.compiler.is_compiling():
                ids = named.get("input_ids", named.get("inputs_embeds",
                                                       arguments[0] if arguments else None))
                self.sequences = ids.shape[0] if isinstance(ids, torch.Tensor) else 0
        model.register_forward_pre_hook(look, with_kwargs=True)
        return self
