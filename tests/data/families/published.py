#!/usr/bin/env python3
"""Writes published.json: facts of published config.json files, and what models of them have.

    pip install torch==2.15.0 transformers==5.24.0 && python3 published.py [SOURCE FOLDER]...

FOLDER has copies of published files, ORGANIZATION--MODEL_config.json each; SOURCE says where they
come from. They are added to those that published.json has. Left out is what no reader needs:
pictures, sound, lists of layers that are not quantized, fields that the source added. Expected
numbers, of all files, are those of the model that transformers makes of the file without its
weights, and products of its sizes where transformers has no such model.
"""
import copy
import json
import os
import re
import sys

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
LEFT_OUT = ("vision_config", "audio_config", "auto_map", "id2label", "label2id", "ignore",
            "modules_to_not_convert", "exclude_modules", "targets", "image_grid_pinpoints")
# The error of files that are not read, in part.
REFUSED = {"moonshotai/Kimi-K3": 'model_type is "kimi_k3"', "Qwen/Qwen3.5-27B": '"qwen3_5"',
           "meta-models/Muse-Glimmer-30B": '"muse_glimmer"',
           "poolside/Laguna-XS.2-FP8": "transform_config is",
           "nvidia/Gemma-4-31B-IT-NVFP4": "num_experts is missing",
           "nvidia/MiniMax-M3-NVFP4": "modelopt MXFP8",
           "nvidia/Nemotron-H-56B-Base-8K": "n_routed_experts is missing",
           "deepseek-ai/deepseek-vl2-tiny": 'model_type is "deepseek_vl_v2"',
           "inclusionAI/Ming-Lite-Omni": 'model_type is "bailingmm"',
           "openbmb/MiniCPM-MoE-8x2B": 'model_type is "minicpm"'}
# Fields that are not of the published file.
ADDED = {"databricks/dbrx-base": ("move_model_to_device", "pretraining_tp")}


def facts(value):
    if isinstance(value, list):
        return [facts(v) for v in value]
    if not isinstance(value, dict):
        return value
    kept = {k: facts(v) for k, v in value.items() if k not in LEFT_OUT}
    layers = kept.get("quantized_layers")
    if isinstance(layers, dict):  # one of each kind
        kinds = {json.dumps(v, sort_keys=True): k for k, v in reversed(layers.items())}
        kept["quantized_layers"] = {k: layers[k] for k in sorted(kinds.values())}
    return kept


def of_transformers(config):
    """Layers, experts of each and their weights, or None where transformers has no such model."""
    fields = copy.deepcopy(config)
    fields.pop("quantization_config", None)
    for nested in ("text_config", "thinker_config"):
        if isinstance(fields.get(nested), dict):
            fields = fields[nested]
            fields.pop("quantization_config", None)
    model = None
    for kind in (transformers.AutoModelForCausalLM, transformers.AutoModel):
        try:
            made = transformers.AutoConfig.for_model(**fields)
            with torch.device("meta"):
                model = model or kind.from_config(made)
        except (ValueError, KeyError):
            continue
    if model is None:
        return None
    weights, layers, experts = 0, set(), set()
    for name, p in model.named_parameters():
        found = re.search(r"layers\.(\d+)\..*experts\.(gate_up_proj|up_proj|down_proj)$", name)
        if not found or p.dim() != 3:
            continue
        layers.add(int(found[1]))
        experts.add(p.shape[0])
        weights += p.numel()
    if not layers:
        return None
    return dict(layers=len(layers), experts=experts.pop(), weights=weights)


def of_sizes(config):
    c = config.get("text_config", config)

    def first(*names):
        return next(c[n] for n in names if n in c)

    if "ffn_config" in c:  # dbrx
        layers, hidden, width = c["n_layers"], c["d_model"], c["ffn_config"]["ffn_hidden_size"]
        experts = c["ffn_config"]["moe_num_experts"]
    else:
        layers = c["num_hidden_layers"] - c.get("first_k_dense_replace", 0)
        hidden, width = c["hidden_size"], first("moe_intermediate_size", "intermediate_size")
        width = width[0] if isinstance(width, list) else width
        experts = first("n_routed_experts", "num_experts", "num_local_experts")
    return dict(layers=layers, experts=experts, weights=layers * experts * 3 * hidden * width)


def read(source, folder):
    added = {}
    for file in sorted(os.listdir(folder)):
        name = file.removesuffix("_config.json").replace("--", "/")
        with open(os.path.join(folder, file)) as f:
            config = facts(json.load(f))
        for field in ADDED.get(name, ()):
            del config[field]
        added[name] = dict(source=source, config=config)
    return added


def main(*arguments):
    with open(os.path.join(HERE, "published.json")) as f:
        models = json.load(f)
    for source, folder in zip(arguments[::2], arguments[1::2], strict=True):
        models.update(read(source, folder))
    published = {}
    for name, model in sorted(models.items()):
        config = model["config"]
        made = of_transformers(config) if name not in REFUSED else dict(refused=REFUSED[name])
        numbers = made or of_sizes(config)
        print(name, numbers, "" if made else "(of its sizes)")
        published[name] = dict(source=model["source"], **numbers, config=config)
    with open(os.path.join(HERE, "published.json"), "w") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(v, separators=(',', ':'))}"
                                   for n, v in published.items()) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
