#!/usr/bin/env python3
"""Decoding of a Qwen3-30B-A3B-shaped model by transformers on one GPU: experts in transformers
(resident, offloaded by accelerate) and in libmoert at several budgets.

  bench_transformers.py [--layers 8] [--budgets 1 0.5 0.25 0.1] [--tokens 24] [--repeats 3]

Weights are random: the share of hits is not that of a trained model. One line a
configuration: median over repeats of tokens a second, smallest and largest, device memory, and for
libmoert hits and waits. A figure of fewer than 48 layers is of that model, not of Qwen3-30B-A3B.
"""
import argparse
import gc
import pathlib
import platform
import statistics
import tempfile
import time

import torch
import transformers

import moert
import moert.pack_cache
import moert.transformers

transformers.logging.set_verbosity_error()
PROMPT = 64


def config(args, layers=None):
    return transformers.Qwen3MoeConfig(
        vocab_size=args.vocabulary, hidden_size=args.hidden, intermediate_size=6144,
        num_hidden_layers=layers or args.layers, num_attention_heads=32, num_key_value_heads=4,
        head_dim=128, num_experts=args.experts, num_experts_per_tok=8,
        moe_intermediate_size=args.width, norm_topk_prob=True, max_position_embeddings=4096)


def build(args, implementation="eager"):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config(args), dtype=torch.bfloat16, experts_implementation=implementation)
    return model.eval().requires_grad_(False)


class Records:
    """Experts in one scheme, quantized from a small model. A few different ones stand for all: what
    they hold does not matter to the time."""

    def __init__(self, args, scheme, folder):
        small = argparse.Namespace(**{**vars(args), "experts": 8, "vocabulary": 64})
        model = transformers.AutoModelForCausalLM.from_config(config(small, 1),
                                                              dtype=torch.bfloat16)
        model.save_pretrained(folder)
        if scheme == "bf16":
            source = moert.pack_cache.opened(folder, folder + "/cache")
        else:
            source = moert.pack_cache.quantized(folder, scheme, folder + "/cache")
        self.scheme = scheme
        with moert.Engine(source, budget=1.0).step("decode", 1) as step:
            with step.fetch(0, torch.arange(8, dtype=torch.int32)) as slots:
                self._records = [torch.frombuffer(bytearray(slots.part(e)), dtype=torch.uint8)
                                 for e in range(8)]

    def source(self, model):
        spec = config_of(model)
        layers = [moert.Source.layer(
            model_layer=l, num_experts=spec.num_experts, hidden=spec.hidden_size,
            intermediate=spec.moe_intermediate_size, top_k=spec.num_experts_per_tok,
            routing="softmax_topk", renormalize=True) for l in range(spec.num_hidden_layers)]
        gates = [layer.mlp.gate.weight.float().cpu() for layer in model.model.layers]

        def read(layer, expert, part, first, rows, cols):
            if part == "router":
                return gates[layer][first:first + rows]
            return self._records[expert % 8]
        return moert.Source.from_weights("records", layers, read, schemes=self.scheme)


def config_of(model):
    return model.config.get_text_config()


def decode(model, args):
    """Tokens a second of each repeat, greedy decoding's forward passes over random tokens."""
    generator = torch.Generator("cuda").manual_seed(1)
    draw = lambda *shape: torch.randint(0, args.vocabulary, shape, device="cuda",
                                        generator=generator)
    cache = transformers.DynamicCache(config=model.config)
    rates = []
    with torch.no_grad():
        model(draw(1, PROMPT), past_key_values=cache)
        for repeat in range(args.repeats + 1):  # the first warms up
            tokens = draw(args.tokens, 1, 1)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for token in tokens:
                logits = model(token, past_key_values=cache).logits
            assert torch.isfinite(logits).all()
            rates.append(args.tokens / (time.perf_counter() - begin))
    return rates[1:]


def free():
    gc.collect()
    torch.cuda.empty_cache()


def report(name, rates, extra=""):
    memory = (torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]) / 2**30
    print(f"{name:38} {statistics.median(rates):8.1f} tok/s ({min(rates):.1f} to {max(rates):.1f}), "
          f"{memory:.1f} GiB of the device in use{extra}", flush=True)


def resident(args):
    model = build(args)
    for implementation in ("eager", "grouped_mm"):
        model.set_experts_implementation(implementation)
        report(f"transformers, {implementation} experts", decode(model, args))
    del model
    free()


def offloaded(args):
    """accelerate moves the experts of whole layers in for each call."""
    try:
        import accelerate
    except ImportError:
        print("accelerate is not installed")
        return
    model = build(args)
    few = argparse.Namespace(**{**vars(args), "tokens": 1})
    here = round(args.offloaded * args.layers)
    places = dict.fromkeys(("lm_head", "model.embed_tokens", "model.norm", "model.rotary_emb"), 0)
    for l, layer in enumerate(model.model.layers):
        for part in ("self_attn", "input_layernorm", "post_attention_layernorm", "mlp.gate"):
            places[f"model.layers.{l}.{part}"] = 0
        places[f"model.layers.{l}.mlp.experts"] = 0 if l < here else "cpu"
        if l >= here:
            layer.mlp.experts.to("cpu")
    torch.cuda.empty_cache()
    accelerate.dispatch_model(model, places, main_device=0, force_hooks=True)
    report(f"accelerate, experts of {here} of {args.layers} layers", decode(model, few))


def ours(args, scheme):
    with tempfile.TemporaryDirectory() as folder:
        records = Records(args, scheme, folder)
    model = build(args)
    source = records.source(model)
    engine = moert.attach(model, source, budget=1.0, strategy=args.strategy, device="cuda")
    free()
    for budget in args.budgets:
        engine.set_budget(float(budget))
        # What the budget holds is there before the clock runs.
        with torch.no_grad():
            for seed in range(2):
                torch.manual_seed(seed)
                model(torch.randint(0, args.vocabulary, (1, 512), device="cuda"))
        before = engine.metrics()
        rates = decode(model, args)
        after = engine.metrics()
        grown = {k: after[k] - before[k] for k in after}
        memory = engine.memory()
        extra = (f", budget {memory.budget_bytes / 2**30:.2f} GiB, "
                 f"{int(grown['moert_host_syncs_total'])} waits for the device")
        lookups = grown["moert_lookups_total"]
        if lookups:
            hits = (grown["moert_hits_resident_total"] +
                    grown["moert_hits_prefetched_total"]) / lookups
            extra += f", {100 * hits:.0f} % hits"
        report(f"libmoert, {scheme}, {100 * budget:.0f} % of the experts", rates, extra)
    del model, engine, source
    free()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--budgets", type=float, nargs="+", default=[1, 0.5, 0.25, 0.1])
    parser.add_argument("--offloaded", type=float, default=0.25,
                        help="share of the layers whose experts accelerate keeps on the device")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--strategy", default="on-demand")
    parser.add_argument("--schemes", nargs="+", default=["bf16", "w4a16_g128"])
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=151936)
    args = parser.parse_args()
    begin = time.perf_counter()
    name = torch.cuda.get_device_name()
    print(f"{name}, {platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, "
          f"torch {torch.__version__}, transformers {transformers.__version__}, moert "
          f"{moert.version()}; {args.layers} of 48 layers, decoding one sequence, "
          f"{args.repeats} x {args.tokens} tokens", flush=True)
    resident(args)
    for scheme in args.schemes:
        ours(args, scheme)
    offloaded(args)
    print(f"took {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
