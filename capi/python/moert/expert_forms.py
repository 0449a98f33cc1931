"""What a module of experts computes, found by calling it with small weights of our own: so that
nothing is taken for a plain gated expert that is not one."""
import inspect
import itertools
import math
import re
import typing

import torch


class Layout(typing.NamedTuple):
    """How the parameters of a module hold the matrices of its experts."""
    count: int
    width: int
    hidden: int
    gated: bool
    biased: bool
    transposed: bool
    interleaved: bool
    first_count: int  # of the parameter that holds gate and up, which may have more
    apart: tuple = ()  # names of gate, up and down where each is a parameter of its own


class Form(typing.NamedTuple):
    """h = f(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset), silu being
    x * sigmoid(alpha * x); without a gate h = f(up). identity: ids from `count` on pass their input
    through."""
    activation: str
    alpha: float = 1.0
    limit: float = 0.0
    up_offset: float = 0.0
    identity: bool = False


_FUNCTIONS = {
    "silu": lambda x, alpha: x * torch.sigmoid(alpha * x),
    "gelu": lambda x, _: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda x, _: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu2": lambda x, _: torch.relu(x) ** 2,
}


def plain_forward(experts):
    """The module's own loop over experts, whatever implementation is chosen for its class."""
    return getattr(type(experts).forward, "__wrapped__", type(experts).forward)


def takes_routing(experts):
    takes = list(inspect.signature(plain_forward(experts)).parameters)[1:]
    if len(takes) < 3 or not re.search("index|indices|ids|experts", takes[1]):
        raise ValueError(f"its forward takes ({', '.join(takes)}), not hidden states, ids and "
                         "weights")


def layout(experts):
    """The Layout of a module. ValueError says why it has none."""
    if isinstance(experts, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        raise ValueError("its experts are modules one by one, not stacked parameters")
    takes_routing(experts)
    shapes = {name: tuple(p.shape) for name, p in experts.named_parameters()}
    names, biased = set(shapes), False
    if {n + "_bias" for n in names if not n.endswith("_bias")} <= names:
        biased, names = True, {n for n in names if not n.endswith("_bias")}
    if names == {"gate_up_proj", "down_proj"}:
        (first, *gate_up), (count, *down) = shapes["gate_up_proj"], shapes["down_proj"]
        turned = gate_up == [down[1], 2 * down[0]]
        hidden, width = down[::-1] if turned else down
        if sorted(gate_up) != sorted((2 * width, hidden)):
            raise ValueError(f"gate_up_proj is {gate_up}, down_proj {down}")
        return Layout(count, width, hidden, True, biased, turned,
                      not getattr(experts, "is_concatenated", True), first)
    if names == {"up_proj", "down_proj"}:
        count, hidden, width = shapes["down_proj"]
        if shapes["up_proj"] != (count, width, hidden):
            raise ValueError(f"up_proj is {shapes['up_proj']}, down_proj {shapes['down_proj']}")
        return Layout(count, width, hidden, False, biased, False, False, count)
    if names == {"mlp.w1", "mlp.v1", "mlp.w2"} and not biased:
        count = experts.num_experts
        rows, hidden = shapes["mlp.w1"]
        return Layout(count, rows // count, hidden, True, False, False, False, count,
                      ("mlp.w1", "mlp.v1", "mlp.w2"))
    raise ValueError(f"its parameters are {', '.join(sorted(shapes))}, not gate_up_proj or up_proj "
                     "and down_proj, with biases or without")


def stacks_wanted(lay):
    """{parameter: (experts, rows, cols)}, as the module has them."""
    n, w, h = lay.count, lay.width, lay.hidden
    if lay.apart:
        return {name: (n, w, h) for name in lay.apart}
    up = (lay.first_count, (1 + lay.gated) * w, h)
    turn = (lambda s: (s[0], s[2], s[1])) if lay.transposed else (lambda s: s)
    return {"gate_up_proj" if lay.gated else "up_proj": turn(up), "down_proj": turn((n, h, w))}


class _Loop(torch.nn.Module):
    """A module's own loop, as functional_call wants it."""

    def __init__(self, experts):
        super().__init__()
        self.experts = experts

    def forward(self, *arguments):
        return plain_forward(self.experts)(self.experts, *arguments)


def _called(experts, lay, matrices, x, weights):
    """What the module returns with small matrices in place of its parameters: x[i] goes to both of
    two experts, by weights[i]."""
    gate, up, down, biases = matrices

    def cat(g, u, dim):
        if not lay.gated:
            return u
        joined = torch.stack((g, u), dim + 1) if lay.interleaved else torch.cat((g, u), dim)
        return joined.flatten(dim, dim + 1) if lay.interleaved else joined
    if lay.apart:
        parameters = dict(zip(lay.apart, (gate.flatten(0, 1), up.flatten(0, 1),
                                          down.transpose(1, 2).flatten(0, 1))))
    else:
        turn = (lambda t: t.transpose(1, 2).contiguous()) if lay.transposed else (lambda t: t)
        first = "gate_up_proj" if lay.gated else "up_proj"
        parameters = {first: turn(cat(gate, up, 1)), "down_proj": turn(down)}
        if lay.biased:
            parameters |= {first + "_bias": cat(biases[0], biases[1], 1),
                           "down_proj_bias": biases[2]}
    ids = torch.stack((torch.arange(len(x)), torch.arange(len(x)) + 1), 1).remainder(2)
    named = {"experts." + name: value for name, value in parameters.items()}
    with torch.no_grad():
        out = torch.func.functional_call(_Loop(experts), named, (x, ids, weights))
    return out.reshape(x.shape)


def _candidates(experts, lay):
    """Forms that it may have, by the numbers that it carries."""
    numbers = {name: value for name, value in vars(experts).items()
               if isinstance(value, (int, float)) and not isinstance(value, bool)}
    limits = {float(v) for n, v in numbers.items() if "limit" in n and 0 < v < math.inf}
    alphas = {float(v) for n, v in numbers.items() if "alpha" in n}
    plain = itertools.product(_FUNCTIONS, [1.0], [0.0], [0.0])
    bent = itertools.product(["silu"], sorted(alphas | {1.0}), [0.0, *sorted(limits)], [0.0, 1.0])
    clamped = itertools.product(_FUNCTIONS, [1.0], sorted(limits), [0.0])
    return [Form(*c) for c in (*plain, *(itertools.chain(bent, clamped) if lay.gated else ()))]


def _expected(lay, candidate, matrices, x, weights):
    """The same, as the library computes it."""
    gate, up, down, biases = matrices
    f, limit = _FUNCTIONS[candidate.activation], candidate.limit or math.inf
    total = 0
    for e in range(2):
        def product(matrix, bias, rows):
            return rows @ matrix[e].t() + (bias[e] if lay.biased else 0)
        u = product(up, biases[1], x)
        if lay.gated:
            g = product(gate, biases[0], x).clamp(max=limit)
            u = f(g, candidate.alpha) * (u.clamp(-limit, limit) + candidate.up_offset)
        else:
            u = f(u, candidate.alpha)
        chosen = torch.arange(len(x)).remainder(2) != e  # which column of weights is this expert's
        weight = weights[torch.arange(len(x)), chosen.long()]
        total = total + weight[:, None] * product(down, biases[2], u)
    return total


def form(experts, lay):
    """The Form of a module. ValueError where it computes something else."""
    for hidden, width in ((8, 4), (lay.hidden, lay.width)):  # it may insist on its own sizes
        try:
            return _form(experts, lay, hidden, width)
        except ValueError:
            raise
        except Exception as error:  # of code that is not ours
            failed = error
    raise ValueError(f"its forward fails with two experts' weights: {type(failed).__name__}: {failed}")


def _form(experts, lay, hidden, width):
    random = torch.Generator("cpu").manual_seed(1)

    def normal(*shape, scale=1.0):
        return scale * torch.randn(shape, generator=random, dtype=torch.float64, device="cpu")

    candidates = _candidates(experts, lay)
    # Limits are met, and what lies far below them is as well.
    scale = max(2.0, *(c.limit for c in candidates)) / math.sqrt(hidden)
    matrices = (normal(2, width, hidden, scale=scale), normal(2, width, hidden, scale=scale),
                normal(2, hidden, width), [normal(2, width), normal(2, width), normal(2, hidden)])
    x, weights = normal(64, hidden), normal(64, 2).abs()
    with torch.device("cpu"):
        found = _called(experts, lay, matrices, x, weights)
        for candidate in candidates:
            expected = _expected(lay, candidate, matrices, x, weights)
            if (found - expected).abs().max() <= 1e-5 * expected.abs().max():
                return candidate._replace(identity=passes_on(experts, lay))
    act = getattr(experts, "act_fn", None)
    raise ValueError("what it computes between its products, or behind them, is none of silu, "
                     "gelu, gelu by tanh and relu squared, clamped or not; its activation is "
                     f"{type(act).__name__}")


def passes_on(experts, lay):
    """Whether there are experts behind the last that pass their input on."""
    total = getattr(experts, "total_experts", lay.count)
    return isinstance(total, int) and total > lay.count
