"""Ways of transformers and torch to run a MoE model whose experts do not fit. Each takes a model on
the GPU and keeps the experts of its first layers there; those of the others lie in host memory.
Weights of the layers that are not on the GPU are one copy in host memory, used by all of them: what
they hold does not matter to the time. Each returns the GiB that as many copies would take."""
import torch


def _host_copy(model, pinned):
    """{name: tensor} of one layer's experts, in host memory."""
    experts = model.model.layers[-1].mlp.experts
    copies = {}
    for name, parameter in experts.named_parameters():
        copies[name] = torch.empty(parameter.shape, dtype=parameter.dtype, pin_memory=pinned)
        copies[name].copy_(parameter if parameter.is_cuda else torch.randn(1) / 50)
    return copies


def _gib(copies, layers):
    return layers * sum(t.numel() * t.element_size() for t in copies.values()) / 2**30


class _Ahead:
    """Copies a layer's experts in while the layer in front of it computes: two buffers on the
    device, pinned memory, a stream of its own."""

    def __init__(self, layers, copies):
        self._layers, self._copies = layers, copies
        self._stream = torch.cuda.Stream()
        self._buffers = [{name: torch.empty_like(t, device="cuda") for name, t in copies.items()}
                         for _ in range(2)]
        self._arrived = [torch.cuda.Event() for _ in layers]
        self._used = [torch.cuda.Event() for _ in range(2)]
        self._begun = -1  # the last layer whose copy was begun
        self._handles = []
        for index, layer in enumerate(layers):
            for name in copies:
                getattr(layer, name).data = self._buffers[index % 2][name]
            self._handles.append(layer.register_forward_pre_hook(
                lambda *_, i=index: self._before(i)))
            self._handles.append(layer.register_forward_hook(lambda *_, i=index: self._after(i)))

    def _begin(self, index):
        if index >= len(self._layers) or index <= self._begun:
            return
        self._begun = index
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._used[index % 2])
            for name, source in self._copies.items():
                self._buffers[index % 2][name].copy_(source, non_blocking=True)
            self._arrived[index].record(self._stream)

    def _before(self, index):
        if index == 0:
            self._begun = -1
        self._begin(index)
        self._begin(index + 1)
        torch.cuda.current_stream().wait_event(self._arrived[index])

    def _after(self, index):
        self._used[index % 2].record()

    def remove(self):
        for handle in self._handles:
            handle.remove()


def offload(model, here):
    """torch alone: pinned memory, and a copy of the next layer on a stream of its own."""
    copies = _host_copy(model, pinned=True)
    layers = [layer.mlp.experts for layer in model.model.layers[here:]]
    model.offloaded_ahead = _Ahead(layers, copies)
    torch.cuda.empty_cache()
    return _gib(copies, len(layers))


def accelerate(model, here):
    """accelerate's dispatch_model moves the experts of whole layers in for each call."""
    import accelerate as package
    ahead = getattr(model, "offloaded_ahead", None)
    if ahead is not None:
        ahead.remove()
        del model.offloaded_ahead
    copies = _host_copy(model, pinned=False)
    device = model.device.index if model.device.type == "cuda" else "cpu"
    places = dict.fromkeys(("lm_head", "model.embed_tokens", "model.norm", "model.rotary_emb"),
                           device)
    for l, layer in enumerate(model.model.layers):
        for part in ("self_attn", "input_layernorm", "post_attention_layernorm", "mlp.gate"):
            places[f"model.layers.{l}.{part}"] = device
        places[f"model.layers.{l}.mlp.experts"] = device if l < here else "cpu"
        if l >= here:
            for name, copy in copies.items():
                getattr(layer.mlp.experts, name).data = copy
    torch.cuda.empty_cache()
    package.dispatch_model(model, places, main_device=device, force_hooks=True)
    return _gib(copies, len(model.model.layers) - here)
