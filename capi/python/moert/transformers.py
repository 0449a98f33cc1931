"""The experts of transformers models (transformers 5), held by libmoert.

    model = moert.from_pretrained("model-dir", budget="8GiB")
    model.generate(**tokenizer("...", return_tensors="pt"))

The config and all dense weights are transformers' own; experts are never materialized in torch. The
model is then used as any other: generate (batches, streaming, assisted decoding), torch.compile,
lm-evaluation-harness. It computes no gradients, its state_dict() has the dense weights only, and
save_pretrained refuses.
"""
import copy
import importlib.util
import logging
import os
import re

import torch
import transformers
from transformers.core_model_loading import WeightConverter
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import (AutoHfQuantizer, register_quantization_config,
                                          register_quantizer)
from transformers.utils.quantization_config import QuantizationConfigMixin

from . import blocks, dense_forms, own_products, pack_cache, planning, tensor_files
from .engine import Engine
from .passes import Passes
from .source import Source

__all__ = ["MoertConfig", "attach", "from_pretrained"]

_log = logging.getLogger("moert")

_ENGINE = ("budget", "strategy", "max_tokens", "threads", "io_threads", "host_budget", "numerics",
           "virtual_clock", "link_gbps", "cpus", "kernels", "profile", "trace_path", "timeline_path",
           "trace_replace", "numa_node", "promise")
_HUB = ("revision", "token", "local_files_only", "force_download")
_OURS = ("experts", "routing", "top_k", "cache_dir", "progress", "group", "parallel")


def from_pretrained(path, *, device="cpu", auto_class=None, **options):
    """A model whose experts libmoert holds; `model.moert` is their engine.

    path: a folder, or a name on the Hugging Face Hub. budget: bytes ("8GiB") of everything the
    engine holds in the fast tier, or a share of the experts ("25%"). experts: None keeps them as
    stored; a scheme ("w4a16_g128", or several with commas) quantizes them into the cache folder,
    the first time with a progress line. device: where the dense part and the engine are. routing:
    "library", "host", or None, which chooses (attach). group: a torch.distributed process group
    whose ranks share the experts, parallel: "expert" (each rank some of them) or "tensor" (each a
    part of every one); the dense part is whole on every rank. Other options are those of
    moert.Engine, and of the auto class's from_pretrained (auto_class: default
    AutoModelForCausalLM)."""
    device = torch.device(device)
    mine = {name: options.pop(name) for name in (*_ENGINE, *_OURS) if name in options}
    hub = {name: options.pop(name) for name in _HUB if name in options}
    folder = pack_cache.checkpoint_folder(path, **hub)
    if quantization := pack_cache.quantization(folder):
        options = _without_quantization(folder, options)
        mine["dense"] = quantization
    config = MoertConfig(device=str(device), **mine)
    if device.type != "cpu" and importlib.util.find_spec("accelerate"):  # transformers wants it
        options.setdefault("device_map", {"": device})
    options.setdefault("dtype", "auto")
    auto_class = auto_class or transformers.AutoModelForCausalLM
    model = auto_class.from_pretrained(folder, quantization_config=config, **options)
    if "device_map" not in options:
        torch.nn.Module.to(model, device)
    return model.requires_grad_(False)


def attach(model, experts, *, scheme=None, routing=None, top_k=None, device=None, cache_dir=None,
           progress=None, group=None, parallel="expert", **options):
    """Gives the experts of a model that is in memory to libmoert; their weights in torch are freed.
    Returns the engine.

    experts: the model's folder; or a Source, such as Source.open_pack(dir). scheme: quantizes the
    folder's experts into the cache folder ("w4a16_g128"). routing: "library" replaces whole MoE
    blocks, so that routing and the prediction of the next layer happen beside the experts; "host"
    replaces the experts alone, with the block's own router and shared experts. None: "library" for
    architectures that the library reads, else "host". Other options: moert.Engine's."""
    device = torch.device(device or _device(model))
    if scheme is not None and isinstance(experts, Source):
        raise ValueError("scheme is for the experts of a folder; a Source has its own")
    ours = {"experts": scheme, "routing": routing, "top_k": top_k, "cache_dir": cache_dir,
            "progress": progress, "group": group, "parallel": parallel}
    plan = planning.make(model, experts, ours, device, options.get("numerics"))
    engine = _replace(model, plan, _engine_options(options, device))
    model.hf_quantizer = MoertQuantizer(MoertConfig(device=str(device)))  # refuses save_pretrained
    return engine


def _without_quantization(folder, options):
    """Options with a config that says nothing of quantization: else transformers would have it done
    by a quantizer of its own alone, experts included."""
    kept = {name: options.pop(name) for name in ("dtype", "torch_dtype", "device_map",
                                                 "attn_implementation") if name in options}
    config = options.pop("config", None)
    if config is None:
        trust = {name: options[name] for name in ("trust_remote_code",) if name in options}
        config, options = transformers.AutoConfig.from_pretrained(
            folder, return_unused_kwargs=True, **options)
        options |= trust
    config = copy.deepcopy(config)
    for part in (config, config.get_text_config()):
        if hasattr(part, "quantization_config"):
            del part.quantization_config
    return {**options, **kept, "config": config}


def _device(model):
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _engine_options(options, device):
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device}; libmoert runs on cpu and cuda")
    return {"backend": device.type, "device": device.index or 0, **options}


def _with_strategy(options):
    """The options of an engine. On CUDA, if no strategy was named, a budget that holds every expert
    is filled when the engine opens: then nothing can be missing, and no layer needs the host. Else
    what is missing is predicted and shared with the CPU, as far as `promise` lets it."""
    if options["backend"] != "cuda" or options.get("strategy") is not None:
        return options
    return {**options, "strategy": "auto"}


def _replace(model, plan, engine_options):
    """Creates the engine and puts its modules in place."""
    shard = plan.ranks.shard(plan.source) if plan.ranks else {}
    if plan.routing == "host":
        shard["shared_experts"] = False  # the blocks keep theirs
    engine = Engine(plan.source, **_with_strategy({**engine_options, "shard": shard}))
    passes = Passes(engine)
    model.moert = engine
    if plan.routing == "library":
        blocks.refuse_router_logits(model)
    else:
        batch = blocks.Batch().watch(model)
    if plan.routing == "own":
        for layer, (one, parts) in enumerate(zip(plan.own, plan.parts)):
            own_products.take(one, passes, layer, batch, parts)
        return engine
    for layer, block in enumerate(plan.found):
        if plan.routing == "host":
            block.module.experts = blocks.Experts(passes, layer, plan.ranks, batch,
                                                  plan.identities[layer])
        else:
            setattr(block.parent, block.attribute,
                    blocks.MoeBlock(passes, layer, plan.ranks, plan.values[layer]))
    return engine


@register_quantization_config("moert")
class MoertConfig(QuantizationConfigMixin):
    """For an auto class's own from_pretrained(..., quantization_config=MoertConfig(budget="8GiB")).
    Options: those of moert.from_pretrained that are not transformers' own."""

    def __init__(self, device="cpu", **options):
        self.quant_method, self.device = "moert", device
        legal = {*_ENGINE, *_OURS, "dense"}
        for name in options:
            if name not in legal and name != "quant_method":
                raise TypeError(f"MoertConfig has no option '{name}', legal are "
                                f"{', '.join(sorted(legal))}")
        self._options = {name: options[name] for name in options if name in legal}

    def __deepcopy__(self, memo):  # options may hold a process group or a callback
        return MoertConfig(self.device, **self._options)

    def to_dict(self):
        plain = {k: v for k, v in self._options.items() if isinstance(v, (str, int, float))}
        return {"quant_method": "moert", "device": self.device, **plain}

    @property
    def dense(self):
        """How the checkpoint is quantized, or None."""
        return self._options.get("dense")

    def split(self):
        """(what finds and opens experts, what the engine takes)."""
        ours = {name: self._options.get(name) for name in _OURS}
        return ours, {k: v for k, v in self._options.items() if k in _ENGINE}


@register_quantizer("moert")
class MoertQuantizer(HfQuantizer):
    """Takes the experts out of a model before transformers loads its weights. Where what is left of
    the model is quantized, it is given to transformers' own quantizer, or dequantized."""

    def __init__(self, quantization_config, **kwargs):
        super().__init__(quantization_config, **kwargs)
        self._engine, self._dense = None, None

    def _take_dense(self, model, files, device_map=None, **kwargs):
        """Decides who reads the dense part where more than experts are quantized: transformers'
        quantizer on a device that it supports, else Dequantize."""
        config = self.quantization_config.dense
        codes = tensor_files.quantized_beside_experts(files) if config else {}
        if not codes:
            return
        self.pre_quantized = True
        dense = self._dense_of_transformers(config, codes, device_map)
        if dense is not None:
            dense._process_model_before_weight_loading(model, checkpoint_files=files,
                                                       device_map=device_map, **kwargs)
            self._dense = dense
            return
        method = config.get("quant_method")
        if method not in dense_forms.NAMES:
            raise ValueError(f"{next(iter(codes))} and other dense weights are quantized by "
                             f"{method!r}, which neither libmoert nor transformers reads here; "
                             f"libmoert reads {', '.join(dense_forms.NAMES)}")
        self.serialized_names = {"weight": list(dense_forms.NAMES[method])}

    def _dense_of_transformers(self, config, codes, device_map):
        """Its quantizer, or None where it or its package is not there, or reads them wrongly."""
        if self.quantization_config.device == "cpu":
            return None
        for name, shape in codes.items():
            block = config.get("weight_block_size") or (1, 1)
            if name.endswith("weight") and any(n > b and n % b for n, b in zip(shape, block)):
                return None  # it divides the size by the number of scales to find the block's
        try:
            dense = AutoHfQuantizer.from_config(copy.deepcopy(config), pre_quantized=True)
            dense.validate_environment(device_map=device_map)
        except (ImportError, RuntimeError, ValueError) as error:
            _log.info("dense weights become plain ones: transformers' quantizer: %s", error)
            return None
        return dense

    def get_load_operations(self):
        return {"dequantize": dense_forms.Dequantize} if self.serialized_names else {}

    def get_weight_conversions(self):
        return [WeightConverter(names, name, [dense_forms.Dequantize(self)])
                for name, names in self.serialized_names.items()]

    def _by_dense(name):
        def call(self, *arguments, **named):
            owner = self._dense or super(MoertQuantizer, self)
            return getattr(owner, name)(*arguments, **named)
        return call

    param_needs_quantization = _by_dense("param_needs_quantization")
    get_quantize_ops = _by_dense("get_quantize_ops")
    get_new_dtype = _by_dense("get_new_dtype")
    update_weight_conversions = _by_dense("update_weight_conversions")
    _process_model_after_weight_loading = _by_dense("_process_model_after_weight_loading")

    def _process_model_before_weight_loading(self, model, checkpoint_files=None, **kwargs):
        if not checkpoint_files or not checkpoint_files[0].endswith(".safetensors"):
            raise ValueError("libmoert reads experts from safetensors files; this checkpoint has "
                             "none")
        ours, engine_options = self.quantization_config.split()
        device = torch.device(self.quantization_config.device)
        with torch.device("cpu"):  # transformers builds the model on the meta device
            plan = planning.make(model, os.path.dirname(checkpoint_files[0]), ours, device,
                                 engine_options.get("numerics"), checkpoint_files)
        with torch.device("cpu"):
            self._engine = _replace(model, plan, _engine_options(engine_options, device))
        for block in plan.found:  # it has no weights of its own, and its experts none to be set
            block.module._is_hf_initialized = True
        self._take_dense(model, checkpoint_files, **kwargs)
        # Tensors that the engine reads are not missing from the model: no report about them.
        prefixes = own_products.prefixes(plan.own) or {
            re.escape(block.name) + (r"\." if plan.routing == "library" else r"\.experts\.")
            for block in plan.found}
        model._keys_to_ignore_on_load_unexpected = {
            *(model._keys_to_ignore_on_load_unexpected or ()), *prefixes}

    def is_serializable(self):  # asked by save_pretrained
        raise ValueError("this model's experts are libmoert's, not torch's, so save_pretrained "
                         "would lose them: copy the checkpoint's folder instead")

    @property
    def is_trainable(self):
        return False

    @property
    def is_compileable(self):
        return True
