"""The layer calls as torch operators, so that torch.compile passes them by. Eager code calls Passes
directly: an operator's dispatch costs more than a small layer call's own bookkeeping.

Where an engine's layers can be recorded into CUDA graphs (Engine.graph_safe), inductor may do so
with the operators named *_in_graph. hold and release are the step's part on the host: they stay
outside, in front of the first layer and behind the last."""
import torch

from . import passes as _passes

# Inductor has to leave these out of CUDA graphs: the host has a part in every call.
_ON_HOST = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()


def forward_block(x: torch.Tensor, passes: int, layer: int, sequences: int) -> torch.Tensor:
    """What a whole MoE block adds for x [rows, hidden]: the library routes."""
    return _passes.named(passes).forward(layer, x, sequences)


def forward_experts(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, passes: int,
                    layer: int, sequences: int) -> torch.Tensor:
    """The weighted sum of routed experts for x [rows, hidden], ids and weights [rows, top_k]."""
    return _passes.named(passes).forward(layer, x, sequences, (ids, weights))


def _hold(x: torch.Tensor, passes: int, sequences: int) -> torch.Tensor:
    _passes.named(passes).hold(x, sequences)
    return x.clone()


def _release(out: torch.Tensor, passes: int) -> torch.Tensor:
    _passes.named(passes).release()
    return out.clone()


def _operator(name, function, tags=_ON_HOST):
    made = torch.library.custom_op(f"moert::{name}", function, mutates_args=(), tags=tags)
    made.register_fake(lambda x, *_: x.new_empty(x.shape))
    return made


block = _operator("block", forward_block)
experts = _operator("experts", forward_experts)
block_in_graph = _operator("block_in_graph", forward_block, tags=())
experts_in_graph = _operator("experts_in_graph", forward_experts, tags=())
hold = _operator("hold", _hold)  # the input of the first layer, with its pass opened
release = _operator("release", _release)  # the output of the last, with its pass ended


def refuse_gradients(*tensors):
    """Raises where autograd would record a call."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise RuntimeError(
            "libmoert computes no gradients: its experts are not torch parameters. Call the model "
            "under torch.no_grad() or torch.inference_mode(), or freeze what lies before the first "
            "MoE layer with requires_grad_(False)")
