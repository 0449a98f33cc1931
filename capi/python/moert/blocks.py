"""MoE blocks of a torch model, found by what they are made of, and what takes their place."""
import ast
import inspect
import re
import textwrap
import typing

import torch

from . import torch_ops


class Found(typing.NamedTuple):
    """What has experts: `module` is `parent.attribute`, `name` its path in the model."""
    name: str
    parent: torch.nn.Module
    attribute: str
    module: torch.nn.Module

    @property
    def layer(self):
        """Its layer's number in the model, or None."""
        numbers = re.findall(r"\b(?:layers|blocks|h)\.(\d+)\b", self.name)
        return int(numbers[-1]) if numbers else None

    @property
    def router(self):
        """(name, module) of its router, or None."""
        for name in ("gate", "router"):
            if isinstance(getattr(self.module, name, None), torch.nn.Module):
                return f"{self.name}.{name}", getattr(self.module, name)
        return None


def find(model):
    """Every module with experts and a gate or router, in order."""
    found = []
    for path, module in model.named_modules():
        for name, child in module.named_children():
            if isinstance(getattr(child, "experts", None), torch.nn.Module):
                one = Found(f"{path}.{name}".lstrip("."), module, name, child)
                if one.router is not None:
                    found.append(one)
    return found


def top_k(found):
    """Experts a token, as the block or its router says."""
    block = found.module
    router = getattr(block, "gate", None) or getattr(block, "router", None)
    for owner in (block, router, getattr(block, "config", None), getattr(router, "config", None)):
        for name in ("top_k", "num_experts_per_tok", "moe_top_k", "moe_k", "top_k_experts"):
            value = getattr(owner, name, None)
            if isinstance(value, int):
                return value
    raise ValueError(f"{found.name}: {type(block).__name__} does not say how many experts a token "
                     "uses; pass top_k=")


def returns(block):
    """How many values a block's forward returns, 1 for a tensor alone: what takes its place has to
    return as many. ValueError where that, or that it is all that the block does, cannot be told."""
    if any(re.search("attn|attention|norm", name) for name, _ in block.named_children()):
        raise ValueError("its experts stand in the decoder layer itself")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(block).forward)))
    except (OSError, TypeError, SyntaxError) as e:
        raise ValueError(f"the source of its forward cannot be read ({e})") from e
    takes = tree.body[0].args
    if len(takes.posonlyargs) + len(takes.args) - len(takes.defaults) > 2:
        raise ValueError("its forward takes more than hidden states")
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    counts = {len(v.elts) if isinstance(v, ast.Tuple) else 1 for v in values}
    if len(counts) != 1:
        raise ValueError("its forward returns now more values, now fewer")
    return counts.pop()


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
        needs = passes.engine.graph_needs()  # a compiled call is replayed at every step
        graphs = bool(needs.capturable) and needs.eager_every == 0
        self._graph_rows = min(_GRAPH_ROWS, needs.max_rows or _GRAPH_ROWS) if graphs else 0

    def _compiled(self, operators, x, sequences, *routing):
        """The call as torch.compile sees it. operators: (on the host, in a graph)."""
        on_host, in_graph = operators
        number = self._passes.number
        if x.shape[0] > self._graph_rows:
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
    """Stands where a sparse MoE block stood; the library routes. values: how many the block
    returned; those behind the first are None, since no router's logits are there."""

    def __init__(self, passes, layer, ranks, values):
        super().__init__(passes, layer, ranks)
        self._values = values

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
        out = out.reshape(hidden_states.shape)
        return out if self._values == 1 else (out, *[None] * (self._values - 1))


class Experts(_Replacement):
    """Stands where a block's experts stood; the block's router and shared experts stay. identity:
    ids from this number on pass their input through, None: there are none."""

    def __init__(self, passes, layer, ranks, batch, identity):
        super().__init__(passes, layer, ranks)
        self._batch, self._identity = batch, identity

    def forward(self, hidden_states, *routing, **named):
        ids, weights = self._routing((*routing, *named.values()))
        torch_ops.refuse_gradients(hidden_states, weights)
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        ids, weights = (t.reshape(x.shape[0], -1) for t in (ids, weights))
        own = None
        if self._identity is not None:
            beyond = ids >= self._identity
            own = x * (weights * beyond).sum(-1, keepdim=True).to(x.dtype)
            ids = ids.masked_fill(beyond, -1)
        if torch.compiler.is_compiling():
            out = self._compiled((torch_ops.experts, torch_ops.experts_in_graph), x, 0, ids,
                                 weights)
        else:
            out = self._passes.forward(self._layer, x.detach(), self._batch.sequences,
                                       (ids.detach(), weights.detach()))
        if self._ranks is not None:
            out = self._ranks.sum(out)
        if own is not None:
            out = out + own
        return out.reshape(hidden_states.shape)

    @staticmethod
    def _routing(tensors):
        """(ids, weights), in whatever order the block gives them."""
        if len(tensors) != 2 or any(not isinstance(t, torch.Tensor) for t in tensors):
            raise TypeError("experts are called with hidden states, ids and weights")
        return sorted(tensors, key=lambda t: t.is_floating_point())


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


def refuse_router_logits(model):
    """Where the library routes, nobody has them."""
    model.register_forward_pre_hook(_without_router_logits, with_kwargs=True)


def _without_router_logits(model, _, named):
    asked = named.get("output_router_logits")
    if asked or (asked is None and getattr(model.config, "output_router_logits", False)):
        raise ValueError("output_router_logits: the library routes, and gives no logits; load the "
                         "model with routing='host'")
