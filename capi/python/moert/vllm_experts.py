"""vLLM's MoE layers with libmoert's experts. Written against vLLM 0.33's sources; vLLM routes,
shares experts and reduces, and drops the experts of a checkpoint unread: the engine opens it
itself."""
import re

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from . import pack_cache, torch_ops
from .checkpoint_experts import CheckpointExperts, Shape
from .engine import Engine
from .passes import Passes

_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_tanh"}
_OPTIONS = ("budget", "strategy", "max_tokens", "threads", "io_threads", "host_budget", "numerics",
            "link_gbps", "cpus", "kernels", "profile", "promise")


def register():
    register_quantization_config("moert")(MoertConfig)


class MoertConfig(QuantizationConfig):
    """Of a whole model: its MoE layers share one engine. `options`: budget, experts (a scheme to
    quantize to; None keeps them as stored), cache_dir, and moert.Engine's."""

    def __init__(self, options):
        super().__init__()
        for name in options:
            if name not in (*_OPTIONS, "experts", "cache_dir", "model"):
                raise ValueError(f"quantization_config of moert has no '{name}', legal are "
                                 f"{', '.join((*_OPTIONS, 'experts', 'cache_dir', 'model'))}")
        self._options, self._layers, self._passes = dict(options), [], None
        self._model = options.get("model")

    @classmethod
    def get_name(cls):
        return "moert"

    def get_supported_act_dtypes(self):
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls):
        return 80

    @staticmethod
    def get_config_filenames():
        return []

    @classmethod
    def from_config(cls, config):
        return cls({k: v for k, v in config.items() if k != "quant_method"})

    def maybe_update_config(self, model_name, hf_config=None, revision=None):
        self._model = self._model or model_name

    def get_quant_method(self, layer, prefix):
        if isinstance(layer, RoutedExperts):
            return MoertMethod(layer.moe_config, self)
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None

    def add(self, layer):
        """A layer that will need experts; returns its place among the engine's."""
        if self._passes is not None:
            raise RuntimeError(f"{layer.layer_name} came after the engine was made")
        self._layers.append(layer)
        return len(self._layers) - 1

    def passes(self, device):
        """Of the engine of all layers that were added; made at the first call."""
        if self._passes is None:
            options = {k: v for k, v in self._options.items() if k in _OPTIONS}
            self._passes = Passes(Engine(self._source(), backend=device.type,
                                         device=device.index or 0, shard=_shard(self._layers),
                                         **options))
        return self._passes

    def _source(self):
        if self._model is None:
            raise ValueError("quantization_config of moert: pass model, the checkpoint's folder")
        folder = pack_cache.checkpoint_folder(self._model)
        found = [_describe(layer) for layer in self._layers]
        scheme = self._options.get("experts")
        if scheme:
            source = pack_cache.quantized(folder, scheme, self._options.get("cache_dir"))
            if source.layers != len(found):
                raise NotImplementedError(f"experts={scheme!r}: this process has {len(found)} of "
                                          f"{source.layers} MoE layers")
            return source
        shapes = {number: shape for number, shape, *_ in found}
        if len(shapes) != len(found):
            raise ValueError("two MoE layers have the same number")
        found.sort(key=lambda layer: layer[0])
        return CheckpointExperts(folder, shapes).source(
            str(folder), [k for *_, k, _ in found], [activation for *_, activation in found])


def _describe(layer):
    """(layer number, Shape, experts a token, activation) of a whole RoutedExperts of vLLM."""
    moe, parallel = layer.moe_config, layer.moe_config.moe_parallel_config
    numbers = re.findall(r"\blayers\.(\d+)\b", layer.layer_name)
    activation = getattr(layer.activation, "value", layer.activation)
    for wrong, why in (
            (not numbers, "its name has no layer number"),
            (activation not in _ACTIVATIONS, f"its activation is {activation}"),
            (moe.has_bias, "its experts have biases"),
            (layer.apply_router_weight_on_input, "weights enter the experts' inputs"),
            (layer.swiglu_limit is not None, "its gate is clamped"),
            (moe.num_experts != moe.num_logical_experts, "it has redundant experts")):
        if wrong:
            raise NotImplementedError(f"{layer.layer_name} cannot be given to libmoert: {why}")
    width = moe.intermediate_size_per_partition * (1 if parallel.use_ep else parallel.tp_size)
    return (int(numbers[-1]), Shape(moe.num_experts, width, layer.hidden_size),
            moe.experts_per_token, _ACTIVATIONS[activation])


def _shard(layers):
    """This rank's part, as vLLM has dealt it. Shared experts are vLLM's."""
    parallel = layers[0].moe_config.moe_parallel_config
    if layers[0].expert_map is not None:
        maps = [layer.expert_map.tolist() for layer in layers]
        return {"shared_experts": False,
                "experts": [[e for e, local in enumerate(m) if local >= 0] for m in maps]}
    width = layers[0].moe_config.intermediate_size_per_partition
    if parallel.tp_size > 1:
        return {"shared_experts": False, "first_channel": parallel.tp_rank * width,
                "num_channels": width}
    return {"shared_experts": False}


class MoertMethod(FusedMoEMethodBase):
    """Of one layer. Has no weights in vLLM."""

    def __init__(self, moe, config):
        super().__init__(moe)
        self._config, self._passes = config, None

    def create_weights(self, layer, num_experts, hidden_size, intermediate_size_per_partition,
                       params_dtype, **extra_weight_attrs):
        self._index = self._config.add(layer)
        layer.load_weights = _drop

    def maybe_roundup_sizes(self, hidden_size, intermediate_size_per_partition, act_dtype,
                            moe_parallel_config):
        return hidden_size, intermediate_size_per_partition

    def get_fused_moe_quant_config(self, layer):
        return None

    @property
    def topk_indices_dtype(self):
        return torch.int32

    def process_weights_after_loading(self, layer):
        device = torch.device(self.moe.device)
        self._passes = self._config.passes(device)

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
        call = torch_ops.experts if torch.compiler.is_compiling() else torch_ops.forward_experts
        return call(x, topk_ids, topk_weights, self._passes.number, self._index, 0)


def _drop(weights):
    """In place of RoutedExperts.load_weights: names that were seen, and nothing kept."""
    for name, _ in weights:
        yield name
