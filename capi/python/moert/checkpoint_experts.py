"""Experts of a checkpoint as the parameters of a model have them, row by row as they are asked for.
For blocks whose router stays the model's."""
import typing

import torch

from . import expert_forms
from .expert_forms import Form, Layout
from .source import Source
from .stacks import Rows, Turned

_BIASES = {"gate_bias": "gate_proj", "up_bias": "up_proj", "down_bias": "down_proj"}
_NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


class Layer(typing.NamedTuple):
    """One module of experts: its path in the model, what it computes, and which number it has."""
    path: str
    layout: Layout
    form: Form
    number: int
    top_k: int


class CheckpointExperts:
    """layers: Layers in the order of the model; every expert's shape has to be as they say."""

    def __init__(self, parameters, layers):
        self._layers = layers
        self._stacks = [matrices(parameters, layer.path, layer.layout) for layer in layers]
        stored = frozenset.union(*(s.dtypes for some in self._stacks for s in some.values()))
        # Widening is exact, so that one type stands for several.
        self._dtype = next(iter(stored)) if len(stored) == 1 else torch.float32

    def read(self, layer, expert, part, first_row, rows, cols):
        """As Source.from_weights wants it."""
        if part in _BIASES:
            bias = self._stacks[layer][part].block(expert, range(cols), range(1))
            return bias.to(torch.float32).contiguous()
        return self._stacks[layer][part].rows(expert, first_row, rows).to(self._dtype).contiguous()

    def source(self, name):
        """A source without routers: the host brings every layer's routing."""
        specs = []
        for layer in self._layers:
            lay, form = layer.layout, layer.form
            specs.append(Source.layer(
                model_layer=layer.number, routing="external", top_k=layer.top_k,
                activation=form.activation, num_experts=lay.count, hidden=lay.hidden,
                intermediate=lay.width, ungated=int(not lay.gated), expert_bias=int(lay.biased),
                activation_alpha=form.alpha, activation_limit=form.limit,
                up_offset=form.up_offset))
        return Source.from_weights(name, specs, self.read, _NAMES[self._dtype])


def matrices(parameters, path, lay):
    """{part: Stack} of a module's experts; a part is as Source.from_weights names it. Biases are
    stacks of one column."""
    found = {name: parameters.stack(f"{path}.{name}", shape)
             for name, shape in expert_forms.stacks_wanted(lay).items()}
    if lay.apart:
        gate, up, down = (found[name] for name in lay.apart)
        return {"gate_proj": gate, "up_proj": up, "down_proj": Turned(down)}
    if lay.transposed:
        found = {name: Turned(stack) for name, stack in found.items()}
    first = "gate_up_proj" if lay.gated else "up_proj"
    parts = {"down_proj": found["down_proj"], **_halves(lay, found[first], "proj")}
    if lay.biased:
        rows = (1 + lay.gated) * lay.width
        bias = parameters.stack(f"{path}.{first}_bias", (lay.first_count, rows, 1))
        parts["down_bias"] = parameters.stack(f"{path}.down_proj_bias", (lay.count, lay.hidden, 1))
        parts |= _halves(lay, bias, "bias")
    return parts


def _halves(lay, stack, what):
    if not lay.gated:
        return {f"up_{what}": stack}
    if lay.interleaved:
        return {f"gate_{what}": Rows(stack, 0, lay.width, 2),
                f"up_{what}": Rows(stack, 1, lay.width, 2)}
    return {f"gate_{what}": Rows(stack, 0, lay.width),
            f"up_{what}": Rows(stack, lay.width, lay.width)}
