"""The layer calls as torch operators, so that torch.compile passes them by. Eager code calls Passes
directly: an operator's dispatch costs more than a small layer call's own bookkeeping."""
import torch

from . import passes as _passes

# The host's part of a step happens at every call: inductor has to leave these out of CUDA graphs.
_TAGS = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()


@torch.library.custom_op("moert::block", mutates_args=(), tags=_TAGS)
def block(x: torch.Tensor, passes: int, layer: int, sequences: int) -> torch.Tensor:
    """What a whole MoE block adds for x [rows, hidden]: the library routes."""
    return _passes.named(passes).forward(layer, x, sequences)


@block.register_fake
def _(x, passes, layer, sequences):
    return x.new_empty(x.shape)


def forward_experts(x, ids, weights, passes, layer, sequences):
    return _passes.named(passes).forward(layer, x, sequences, (ids, weights))


@torch.library.custom_op("moert::experts", mutates_args=(), tags=_TAGS)
def experts(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, passes: int, layer: int,
            sequences: int) -> torch.Tensor:
    """The weighted sum of routed experts for x [rows, hidden], ids and weights [rows, top_k]."""
    return forward_experts(x, ids, weights, passes, layer, sequences)


@experts.register_fake
def _(x, ids, weights, passes, layer, sequences):
    return x.new_empty(x.shape)


def refuse_gradients(*tensors):
    """Raises where autograd would record a call."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise RuntimeError(
            "libmoert computes no gradients: its experts are not torch parameters. Call the model "
            "under torch.no_grad() or torch.inference_mode(), or freeze what lies before the first "
            "MoE layer with requires_grad_(False)")
