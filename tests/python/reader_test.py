"""The library's own reader against transformers: the MoE layers of every model of the zoo, opened by
moert.Source.open, give what transformers' blocks give, or what their experts give where the host
routes.
  reader_test.py [MODEL...]"""
import re
import sys
import tempfile

import torch
import transformers
import zoo

import moert
from moert import _c

ROWS = 13
LIMIT = 2e-5  # of the largest output
EXTERNAL = 6  # moert_routing_kind
# {model: what the error says}
REFUSED = {
    "inkling2": "soft caps between their products",
    "inkling2_loop": "soft caps between their products",
    "muse_spark": "a norm behind each",
}


def blocks(model):
    """[(block, experts)] in the order of the model; JetMoe's experts are no module."""
    found, within = [], set()
    for module in model.modules():
        if hasattr(module, "text_moe"):  # pictures have experts of their own
            within |= {id(module.text_moe), id(module.vision_moe)}
            found.append((module, module.text_moe.experts))
        experts = getattr(module, "experts", None)
        if type(module).__name__ == "JetMoeMoE":
            found.append((module, None))
        elif isinstance(experts, torch.nn.Module) and id(module) not in within:
            if "Attention" not in type(module).__name__:
                found.append((module, experts))
    return found


def first(output):
    return output[0] if isinstance(output, tuple) else output


def shared_of(block):
    return next((child for name, child in block.named_children() if "shared" in name), None)


def routed_by_library(block, experts, spec, x, tokens):
    """What the layer is to give, the shared expert included if the library adds it."""
    kept, hooks = {}, []
    if experts is not None:
        hooks = [experts.register_forward_hook(lambda _, i, out: kept.update(out=first(out)))]
    norm = getattr(block, "post_mlp_layernorm", None)  # of the layer, in published files
    if norm is not None:
        hooks.append(norm.register_forward_hook(lambda _, i, out: kept.update(sum=i[0])))
    takes = (x[None], tokens[None]) if getattr(block, "is_hash", False) else (x[None],)
    out = first(block(*takes)).reshape(ROWS, -1)
    for hook in hooks:
        hook.remove()
    if norm is not None:
        return kept["sum"].reshape(ROWS, -1)
    if type(block).__name__ == "JetMoeMoE":
        return out - block.bias
    if shared_of(block) is not None and not spec.shared_intermediate:
        return kept["out"].reshape(ROWS, -1)
    return out


def examine(name):
    """The largest difference of a layer, as a part of its largest output."""
    model, worst = zoo.make(name), 0.0
    random = torch.Generator().manual_seed(3)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        model = type(model).from_pretrained(folder, dtype=torch.float32).eval()
        for module in model.modules():  # loops over experts, whatever is chosen for the class
            if hasattr(module, "config") and hasattr(module.config, "_experts_implementation"):
                module.config._experts_implementation = "eager"
        engine = moert.Engine(moert.Source.open(folder, mode="in_place"), numerics="f32")
        found = blocks(model)
        if len(found) != engine.layers:
            raise AssertionError(f"{engine.layers} layers read, {len(found)} in the model")
        tokens = torch.randint(3, 100, (ROWS,), generator=random)
        with engine.step("prefill", ROWS, token_ids=tokens.tolist()) as step:
            for layer, (block, experts) in enumerate(found):
                spec = engine.layer(layer)
                x = torch.randn(ROWS, spec.hidden, generator=random)
                out = torch.empty_like(x)
                if spec.routing == EXTERNAL:
                    ids = torch.stack([torch.randperm(spec.num_experts, generator=random)
                                       [:spec.top_k] for _ in range(ROWS)])
                    weights = torch.rand(ROWS, spec.top_k, generator=random)
                    expected = first(experts(x, ids, weights)).reshape(ROWS, -1)
                    if spec.shared_intermediate:
                        expected = expected + shared_of(block)(x)
                    step.forward_routed(layer, x, ids.int(), weights, out)
                else:
                    expected = routed_by_library(block, experts, spec, x, tokens)
                    step.forward(layer, x, out)
                worst = max(worst, ((out - expected).abs().max() / expected.abs().max()).item())
    return spec, worst


def main(names):
    transformers.logging.set_verbosity_error()
    failed = []
    for name in names or zoo.names():
        try:
            spec, worst = examine(name)
        except moert.Error as error:
            if not re.search(REFUSED.get(name, "$^"), str(error)):
                failed.append(f"{name}: {error}")
            print(name, "refused", str(error)[:150], sep=" | ", flush=True)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
            print(name, failed[-1], flush=True)
        else:
            who = "host" if spec.routing == EXTERNAL else "library"
            print(name, who, f"{worst:.1e}", sep=" | ", flush=True)
            if name in REFUSED or not worst <= LIMIT:
                failed.append(f"{name}: {worst}")
    print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
