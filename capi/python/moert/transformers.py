"""The MoE blocks of a transformers model, computed by libmoert.

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    engine = moert.transformers.attach(model, path, budget_fraction=0.25)

The model is then used as before (generate, Trainer's evaluation, lm-evaluation-harness); attention,
embeddings and the head stay torch's. For transformers 5, on the CPU, without gradients.
"""
import torch

from . import Engine, Source


class MoeBlock(torch.nn.Module):
    """Stands where a sparse MoE block stood. A step spans the layers of one forward pass; a pass
    with more rows than the engine takes is several steps side by side."""

    def __init__(self, shared, layer):
        super().__init__()
        self._shared, self._layer = shared, layer

    def forward(self, hidden_states, *_, **__):
        return self._shared.forward(self._layer, hidden_states)


class _Steps:
    def __init__(self, engine):
        self.engine, self.open = engine, []

    def forward(self, layer, hidden_states):
        if torch.is_grad_enabled() and hidden_states.requires_grad:
            raise RuntimeError("libmoert does not compute gradients: use torch.no_grad()")
        x = hidden_states.detach().reshape(-1, hidden_states.shape[-1]).contiguous()
        out = torch.empty_like(x)
        if layer == 0:
            self.begin(hidden_states.shape)
        try:
            row = 0
            for step in self.open:
                step.forward(layer, x[row:row + step.rows], out[row:row + step.rows])
                row += step.rows
        except BaseException:
            self.abandon()
            raise
        if layer + 1 == self.engine.layers:
            steps, self.open = self.open, []
            for step in steps:
                step.end()
        return out.reshape(hidden_states.shape)

    def begin(self, shape):
        self.abandon()  # of a pass that died on its way
        batch, length = (shape[0], shape[1]) if len(shape) == 3 else (1, shape[0])
        requests = [b for b in range(batch) for _ in range(length)]
        limit = self.engine.max_tokens
        for first in range(0, len(requests), limit):
            part = requests[first:first + limit]
            self.open.append(self.engine.step("decode" if length == 1 else "prefill", len(part),
                                              part))

    def abandon(self):
        steps, self.open = self.open, []
        for step in steps:
            step.__exit__(RuntimeError, None, None)


def moe_blocks(model):
    """[(parent module, attribute, block)] of every sparse MoE block, in order."""
    found = []
    for module in model.modules():
        for name, child in module.named_children():
            if hasattr(child, "experts") and (hasattr(child, "gate") or hasattr(child, "router")):
                found.append((module, name, child))
    return found


def attach(model, experts, **options):
    """Replaces the MoE blocks of `model`; their weights in torch are freed. `experts`: the model's
    directory, or a Source (a pack's, say). options: those of Engine. Returns the engine."""
    source = experts if isinstance(experts, Source) else Source.open(experts)
    engine = Engine(source, **options)
    blocks = moe_blocks(model)
    if len(blocks) != engine.layers:
        raise ValueError(f"the model has {len(blocks)} MoE blocks, the experts are of "
                         f"{engine.layers}")
    if model.config.hidden_size != engine.layer(0).hidden:
        raise ValueError(f"the model's hidden size is {model.config.hidden_size}, that of the "
                         f"experts {engine.layer(0).hidden}")
    shared = _Steps(engine)
    for layer, (parent, name, _) in enumerate(blocks):
        setattr(parent, name, MoeBlock(shared, layer))
    return engine
