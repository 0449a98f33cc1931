"""Experts of any other mathematics than the library's: it holds their matrices under the budget, and
the module's own code multiplies what a call needs. On the CPU."""
import copy
import ctypes
import inspect
import re
import typing

import torch

from . import expert_forms, torch_ops
from .errors import Error
from .source import Source

_NAMES = {torch.bfloat16: 2, torch.float16: 2, torch.float32: 4}


class Experts(typing.NamedTuple):
    """A module of experts. stacked: {parameter: shape}, those with a matrix of every expert; sorted:
    its forward takes rows that are sorted by expert, and how many there are of each."""
    name: str
    module: torch.nn.Module
    stacked: dict
    sorted: bool
    top_k: int

    @property
    def count(self):
        return next(iter(self.stacked.values()))[0]


def of_block(name, experts, top_k):
    """Experts that are called with hidden states, ids and weights. ValueError where they are not, or
    do not only use those that the ids name."""
    if isinstance(experts, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        raise ValueError("its experts are modules one by one, not stacked parameters")
    expert_forms.takes_routing(experts)
    stacked = {n: tuple(p.shape) for n, p in experts.named_parameters(recurse=False)
               if p.dim() == 3}
    if not stacked or len({shape[0] for shape in stacked.values()}) != 1:
        raise ValueError("it has no parameters that hold a matrix of every expert")
    found = Experts(name, experts, stacked, False, top_k)
    _check_that_few_do(found)
    return found


def sorted_ones(model):
    """Modules that multiply rows sorted by expert with one matrix each, in order."""
    found = []
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        takes = list(inspect.signature(module.forward).parameters)
        if isinstance(weight, torch.nn.Parameter) and weight.dim() == 3 and \
                takes == ["inputs", "expert_size"] and hasattr(module, "num_experts"):
            found.append(Experts(name, module, {"weight": tuple(weight.shape)}, True, 1))
    return found


def source(parameters, experts, name):
    """A source of records that hold the stacked parameters as the checkpoint has them, and the
    parts of a record: of each layer (parameter, shape, dtype)."""
    stacks, layers, parts, kinds = [], [], [], []
    for number, one in enumerate(experts):
        mine = [parameters.stack(f"{one.name}.{n}", shape) for n, shape in one.stacked.items()]
        types = [next(iter(s.dtypes)) if len(s.dtypes) == 1 else torch.float32 for s in mine]
        layers.append(Source.layer(model_layer=number, routing="external", num_experts=one.count,
                                   top_k=one.top_k, hidden=1, intermediate=1))  # are not looked at
        parts += [Source.part(number, s.shape[1] * s.shape[2] * _NAMES[t], alignment=64)
                  for s, t in zip(mine, types)]
        stacks.append(list(zip(mine, types)))
        kinds.append([(n, s.shape[1:], t) for n, (s, t) in zip(one.stacked, stacks[-1])])

    def read(layer, expert, part):
        stack, kind = stacks[layer][part]
        rows = stack.rows(expert, 0, stack.shape[1]).to(kind).contiguous()
        return rows.view(torch.uint8).numpy()
    return Source.from_records(name, layers, parts, read=read), kinds


class _Held:
    """Comes before a module's class: its stacked parameters are the engine's."""

    @torch.compiler.disable
    def forward(self, hidden_states, *rest, **named):
        torch_ops.refuse_gradients(hidden_states)
        passes, layer, batch, one = self._moert
        if one.sorted:
            sizes = torch.tensor(*rest, *named.values())
            ids = torch.repeat_interleave(torch.arange(one.count), sizes)[:, None]
            weights = None
        else:
            ids, weights = sorted((*rest, *named.values()), key=lambda t: t.is_floating_point())
        x = hidden_states.reshape(-1, hidden_states.shape[-1]).detach()
        if len(x) == 0:
            width = next(iter(one.stacked.values()))[1] if one.sorted else x.shape[1]
            return hidden_states.new_zeros(*hidden_states.shape[:-1], width)
        ids = ids.reshape(len(x), -1)
        weights = None if weights is None else weights.reshape(ids.shape).detach()

        def product(step, rows):
            return self._product(step, *(t if rows is None or t is None else t[rows]
                                         for t in (x, ids, weights)))
        out = passes.products(layer, x, batch.sequences, product)
        return out.reshape(*hidden_states.shape[:-1], out.shape[-1])

    def _product(self, step, x, ids, weights):
        """One step's rows by all their experts at once, or by as many as fit."""
        _, layer, _, one = self._moert
        used = ids.unique()
        used = used[(used >= 0) & (used < one.count)].tolist()
        out, first, many = 0, 0, max(1, len(used))
        while first < max(1, len(used)):
            some = used[first:first + many]
            chosen = torch.isin(ids, torch.tensor(some, dtype=ids.dtype))
            try:
                slots = step.fetch(layer, ids.masked_fill(~chosen, -1).int().contiguous())
            except Error as error:
                if error.code != "RESOURCE_EXHAUSTED" or many == 1:
                    raise
                many = many // 2
                continue
            with slots:
                out = out + self._of_few(self._loaded(slots, some), some, x, ids, weights, chosen)
            first += many
        return out

    def _loaded(self, slots, experts):
        """{parameter: its matrices of these experts}."""
        found = {}
        for part, (name, shape, kind) in enumerate(self._moert_parts):
            base, stride, size = slots.region(part)
            where = (base + slots.slot(e) * stride for e in experts)
            each = [torch.frombuffer((ctypes.c_char * size).from_address(a), dtype=kind)
                    for a in where]
            stack = torch.stack(each) if each else torch.empty(0, size // kind.itemsize, dtype=kind)
            found[name] = stack.view(-1, *shape).to(self._moert_dtype)
        return found

    def _of_few(self, parameters, experts, x, ids, weights, chosen):
        """What these experts add."""
        few = _with(self, parameters)
        if weights is None:
            few.num_experts = len(experts)
            rows = chosen[:, 0]
            sizes = [(ids == e).sum().item() for e in experts]
            part = self._moert_forward(few, x[rows], sizes)
            out = part.new_zeros(len(x), part.shape[-1])
            out[rows] = part
            return out
        if not experts:
            return torch.zeros_like(x)
        place = torch.zeros(max(experts) + 1, dtype=torch.long)
        place[torch.tensor(experts)] = torch.arange(len(experts))
        rows = chosen.any(-1)
        own = torch.where(chosen, ids, experts[0])[rows].long()
        part = self._moert_forward(few, x[rows], place[own], (weights * chosen)[rows])
        out = x.new_zeros(len(x), part.shape[-1])
        out[rows] = part.to(x.dtype)
        return out


def _with(module, parameters):
    """A shallow copy with other stacked parameters; calls of several threads do not meet."""
    few = copy.copy(module)
    few.__dict__["_parameters"] = {**module._parameters, **parameters}
    return few


def _check_that_few_do(one):
    """Calls the module with two small experts of its, as a call that needs no more will."""
    generator = torch.Generator("cpu").manual_seed(1)
    parameters = {n: torch.randn(2, *shape[1:], generator=generator, device="cpu")
                  for n, shape in one.stacked.items()}
    few = _with(one.module, parameters)
    for name, module in list(few.named_modules()):
        if any(p.is_meta for p in module.parameters()):
            return  # the rest of it has no values yet
    hidden = next(iter(one.stacked.values()))[-1]
    x = torch.randn(3, hidden, generator=generator, device="cpu")
    ids, weights = torch.tensor([[0, 1], [1, 0], [1, 0]]), torch.ones(3, 2)
    try:
        with torch.no_grad(), torch.device("cpu"):
            expert_forms.plain_forward(one.module)(few, x, ids, weights)
    except Exception as error:  # of code that is not ours
        raise ValueError("its forward does not do with the experts that a call needs: "
                         f"{type(error).__name__}: {error}") from error


def take(one, passes, layer, batch, parts):
    """Turns a module into one whose stacked parameters are the engine's."""
    module, kind = one.module, type(one.module)
    module._moert_forward = expert_forms.plain_forward(module)
    module._moert_dtype = module.get_parameter(parts[0][0]).dtype
    for name in one.stacked:
        delattr(module, name)
    module._moert, module._moert_parts = (passes, layer, batch, one._replace(module=None)), parts
    module._is_hf_initialized = True
    module.__class__ = type(kind.__name__, (_Held, kind), {})


def prefixes(experts):
    """Of names of tensors that are not the model's any more."""
    return {re.escape(one.name) + r"\." for one in experts}
