"""Compares a model with the folder that its experts come from, and with what the library reads."""
import torch

from . import blocks

# Fields of a config that no layer's numbers depend on.
_WITHOUT_EFFECT = {"dtype", "torch_dtype", "transformers_version", "architectures", "use_cache",
                   "quantization_config", "return_dict", "name_or_path", "output_attentions",
                   "output_hidden_states", "output_router_logits", "router_aux_loss_coef",
                   "attn_implementation", "bos_token_id", "eos_token_id", "pad_token_id",
                   "auto_map", "problem_type"}
# A parameter may have been rounded to the model's type, or to two of them one after another.
_ROUNDED = 0.02


def changed_fields(config, folder):
    """["num_experts_per_tok is 4, in config.json 2", ...] of a model's config."""
    raw, _ = type(config).get_config_dict(str(folder))
    kinds = [raw, *(v for v in raw.values() if isinstance(v, dict) and "model_type" in v)]
    mine = config.model_type
    stored = next((kind for kind in kinds if kind.get("model_type") == mine), None)
    if stored is None:
        raise ValueError(f"the model is a {mine}, {folder} holds a {raw.get('model_type')}")
    now, then = config.to_dict(), type(config).from_dict(stored).to_dict()
    return [f"{name} is {now.get(name)}, in config.json {then.get(name)}"
            for name in sorted({*now, *then} - _WITHOUT_EFFECT)
            if not name.startswith("_") and now.get(name) != then.get(name)]


def layers(found, source, layouts, top_k):
    """Compares blocks with the layers that a source has. layouts: of each block, None where it
    cannot be told. ValueError names what differs."""
    if len(found) != source.layers:
        raise ValueError(f"the model has {len(found)} MoE blocks, the experts are of "
                         f"{source.layers}")
    for index, (block, lay) in enumerate(zip(found, layouts)):
        spec = source.spec(index)
        pairs = [] if lay is None else [("experts", lay.count, spec.num_experts),
                                        ("hidden size", lay.hidden, spec.hidden),
                                        ("width of an expert", lay.width, spec.intermediate)]
        if block.layer is not None:
            pairs.append(("layer", block.layer, spec.model_layer))
        pairs.append(("experts a token", top_k or blocks.top_k(block), spec.top_k))
        for what, model, experts in pairs:
            if model != experts:
                raise ValueError(f"{block.name}: {what}: the model has {model}, the experts' "
                                 f"source {experts}")


def whole(found, source):
    """ValueError where the library, which reads this source, computes less than a block does."""
    for index, block in enumerate(found):
        spec, shared, others = source.spec(index), False, []
        for name, child in block.module.named_children():
            if next(child.parameters(), None) is None or name in ("experts", "gate", "router"):
                continue
            shared = shared or "shared" in name
            if "shared" not in name:
                others.append(name)
        why = ("token ids choose its experts" if spec.hash_vocab else
               "the library leaves its shared expert to the model"
               if shared and not spec.shared_intermediate else
               f"it has {', '.join(others)}, too" if others else None)
        if why:
            raise ValueError(f"{block.name} cannot be replaced as a whole: {why}; routing='host' "
                             "keeps it")


def weights(model, found, parameters, stacks):
    """Compares routers, and some rows of experts, of a model in memory with a folder's. stacks: of
    each block {parameter: Stack}, or None."""
    for block, some in zip(found, stacks):
        name, router = block.router
        for inner, value in router.named_parameters():
            stored = parameters.one(f"{name}.{inner}")
            if stored is None or isinstance(stored, str):
                if parameters.names(f"{name}.{inner}"):
                    continue  # of several, or of a type of its own
                raise ValueError(f"the checkpoint has no tensor for {name}.{inner}: it is of "
                                 "another architecture")
            if tuple(stored.shape) != tuple(value.shape):
                raise ValueError(f"{name}.{inner} is {list(value.shape)} in the model, "
                                 f"{list(stored.shape)} in the checkpoint")
            _same(f"{name}.{inner}", value, stored.values())
        for inner, stack in (some or {}).items():
            value = block.module.experts.get_parameter(inner)
            if value.dim() != 3 or value.is_meta:
                continue
            for expert in {0, value.shape[0] - 1}:
                _same(f"{block.name}.experts.{inner}", value[expert, :1], stack.rows(expert, 0, 1))


def _same(name, mine, stored):
    mine, stored = mine.detach().cpu().float(), stored.float().reshape(mine.shape)
    if not torch.isfinite(stored).all():
        return
    difference, size = (mine - stored).abs().max(), stored.abs().max()
    if difference > _ROUNDED * size:
        raise ValueError(f"{name} of the model is not the checkpoint's: the largest value is "
                         f"{size:.3g}, the largest difference {difference:.3g}. attach() wants the "
                         "folder that the model was loaded from")


def refuse_rounding(parts):
    """Records hold bf16: ValueError where a stack of fp32 or fp16 has values that would be
    rounded. A row of each expert is looked at."""
    for what, stack in parts:
        if stack.dtypes == {torch.bfloat16}:
            continue
        for expert in range(stack.shape[0]):
            row = stack.rows(expert, 0, 1).float()
            if not torch.equal(row.bfloat16().float(), row):
                raise ValueError(
                    f"numerics is 'f32', and {what} of expert {expert} holds values that bf16 does "
                    "not: experts are bf16 in memory, so they would be rounded. Take "
                    "numerics='bf16', or a checkpoint saved in bf16")
