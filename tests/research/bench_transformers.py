#!/usr/bin/env python3
"""One sequence of a Qwen3-30B-A3B-shaped model in transformers on one GPU: its experts in
transformers (resident, offloaded) and in libmoert at several budgets.

  bench_transformers.py theirs [--modes eager grouped_mm batched_mm compiled offload accelerate]
  bench_transformers.py ours [--scheme w4a16_g128] [--modes compiled eager] [--budgets 1 .5 .25 .1]
  common: [--layers 48] [--json FILE] [--turns FILE]

Weights are random: the share of hits is not that of a trained model. Per mode:
- Decoding: forward passes over random tokens behind a prompt of 64, batch 1, bf16. Passes
  that warm up run first, then `--repeats` times `--tokens` of them, the device awaited behind
  each repeat. Tokens a second: median of the repeats, smallest, largest.
- Prompts: one forward pass of 512 and of 2,048 tokens, logits of the last, the device awaited; ms,
  median of 3.
- Memory of the device: torch's most reserved bytes since the mode began, and what the engine's
  budget pays for, without the CUDA context. Of the host: what of the process is resident, at most,
  pinned memory included; beside it weights that are offloaded, which here lie there once for all
  layers.
"compiled" is a static cache and torch.compile(mode="reduce-overhead"), as generate() does it.

Two processes may build and compile at once: with the same --turns FILE they time in turn, while
nobody builds. A figure of fewer than 48 layers is of that model, not of Qwen3-30B-A3B.
--device cpu rehearses a run: times and memory say nothing there.
"""
import argparse
import contextlib
import fcntl
import gc
import json
import platform
import statistics
import sys
import tempfile
import time
import traceback

import torch
import torch_device
import transformers
import transformers_rivals as rivals

import moert
import moert.pack_cache
import moert.transformers

transformers.logging.set_verbosity_error()
PROMPT, LENGTH = 64, 512  # of decoding; room of the static cache
GIB = 2**30


class Turns:
    """Building is done by many at once, timing by one while nobody builds."""

    def __init__(self, path):
        self._file = open(path, "w") if path else None

    @contextlib.contextmanager
    def held(self, how):
        if self._file is not None:
            fcntl.flock(self._file, how)
        try:
            yield
        finally:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def building(self):
        return self.held(fcntl.LOCK_SH)

    def timing(self):
        return self.held(fcntl.LOCK_EX)


class Bench:
    """Times what `forward` computes, and reports a line for each mode."""

    def __init__(self, args):
        self.args, self.turns, self.begin = args, Turns(args.turns), time.perf_counter()
        self.device = torch_device.Device(args.device)
        self._random = torch.Generator(args.device).manual_seed(1)
        self._static = None  # a graph is recorded for one static cache

    def tokens(self, *shape):
        return torch.randint(0, self.args.vocabulary, shape, device=self.args.device,
                             generator=self._random)

    def _timed(self, forward, tokens, cache):
        self.device.wait()
        begin = time.perf_counter()
        for token in tokens:
            out = forward(token, past_key_values=cache).logits
        self.device.wait()
        assert torch.isfinite(out).all()
        return len(tokens) / (time.perf_counter() - begin)

    def decode(self, model, compiled=None, tokens=None, warm=2, repeats=None):
        """Tokens a second of each repeat. compiled: what runs the passes behind the prompt."""
        count, repeats = tokens or self.args.tokens, repeats or self.args.repeats
        with self.turns.building():
            cache = self._cache(model, static=compiled)
            model(self.tokens(1, PROMPT), past_key_values=cache, logits_to_keep=1)
            if compiled:
                self._timed(compiled, self.tokens(4, 1, 1), cache)
        with self.turns.timing():
            if warm:
                self._timed(compiled or model, self.tokens(warm, 1, 1), cache)
            return [self._timed(compiled or model, self.tokens(count, 1, 1), cache)
                    for _ in range(repeats)]

    def _cache(self, model, static):
        if not static:
            return transformers.DynamicCache(config=model.config)
        if self._static is None:
            self._static = transformers.StaticCache(config=model.config, max_cache_len=LENGTH)
        self._static.reset()
        return self._static

    def prompt(self, model, length, repeats):
        """ms of each repeat; of one alone, without a warm-up."""
        def once():
            ids = self.tokens(1, length)
            self.device.wait()
            begin = time.perf_counter()
            model(ids, logits_to_keep=1)
            self.device.wait()
            return 1e3 * (time.perf_counter() - begin)
        with self.turns.timing():
            if repeats > 1:
                once()
            return [once() for _ in range(repeats)]

    def mode(self, name, decode=None, prompts=None, engine=None, **fields):
        """Runs and reports one mode. A mode that fails says so, and the others go on."""
        gc.collect()
        self.device.begin_peak()
        row = {"mode": name, "layers": self.args.layers, **fields}
        try:
            with torch.no_grad():
                before = engine and engine.metrics()
                if decode:
                    row["tokens_per_s"] = spread(decode())
                if engine:
                    row.update(grown(before, engine.metrics()))
                for length, times in (prompts or {}).items():
                    row[f"prompt_{length}_ms"] = spread(times())
        except Exception as failed:
            row["failed"] = f"{type(failed).__name__}: {str(failed)[-300:]}"
            traceback.print_exc(limit=-6)
        row["device_gib"] = self.device.peak_bytes() / GIB + row.pop("spared", 0)
        if engine:
            row["device_gib"] += engine.memory().budget_bytes / GIB
        row["resident_gib"] = resident_gib()
        row["at_s"] = time.perf_counter() - self.begin
        self.report(row)

    def report(self, row):
        row = {k: [float(f"{x:.4g}") for x in v] if isinstance(v, list) else
               float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
        print(json.dumps(row), flush=True)
        if self.args.json:
            with open(self.args.json, "a") as file:
                file.write(json.dumps(row) + "\n")

    def prompts(self, model, lengths=(512, 2048), repeats=3):
        return {length: (lambda n=length: self.prompt(model, n, repeats)) for length in lengths}


def spread(values):
    return [statistics.median(values), min(values), max(values)]


def grown(before, after):
    """What an engine counted meanwhile."""
    grown = {k: after[k] - before[k] for k in after}
    lookups = grown["moert_lookups_total"]
    hits = grown["moert_hits_resident_total"] + grown["moert_hits_prefetched_total"]
    return {"hits": hits / lookups if lookups else 1.0,
            "host_waits": grown["moert_host_syncs_total"]}


def resident_gib():
    with open("/proc/self/status") as status:
        kib = {line.split(":")[0]: line.split()[1] for line in status if line.startswith("VmHWM")}
    return int(kib["VmHWM"]) * 1024 / GIB


def config(args, **changes):
    return transformers.Qwen3MoeConfig(**{**dict(
        vocab_size=args.vocabulary, hidden_size=args.hidden, intermediate_size=6144,
        num_hidden_layers=args.layers, num_attention_heads=32, num_key_value_heads=4,
        head_dim=128, num_experts=args.experts, num_experts_per_tok=8,
        moe_intermediate_size=args.width, norm_topk_prob=True, max_position_embeddings=4096),
        **changes})


def build(args, **changes):
    """On the GPU, where random weights are made fastest."""
    torch.manual_seed(0)
    with torch.device(args.device):
        model = transformers.AutoModelForCausalLM.from_config(config(args, **changes),
                                                              dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def compiled_call(model):
    how = {"mode": "reduce-overhead"} if model.device.type == "cuda" else {"backend": "aot_eager"}
    return torch.compile(model.__call__, **how)


def small_model(args, folder):
    """A checkpoint of one layer with 8 experts of the model's size."""
    small = config(args, num_hidden_layers=1, num_experts=8, vocab_size=64)
    transformers.AutoModelForCausalLM.from_config(small, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


class Records:
    """Experts in one scheme, packed from a small model. A few different ones stand for all: what
    they hold does not matter to the time."""

    def __init__(self, args, scheme):
        with tempfile.TemporaryDirectory() as folder:
            if args.pack:
                source = moert.Source.open_pack(args.pack)
            else:
                small = small_model(args, folder)
                source = (moert.pack_cache.opened(small, folder + "/cache") if scheme == "bf16" else
                          moert.pack_cache.quantized(small, scheme, folder + "/cache"))
            self.scheme = scheme
            with moert.Engine(source, budget=1.0).step("decode", 1) as step:
                with step.fetch(0, torch.arange(8, dtype=torch.int32)) as slots:
                    self._records = [torch.frombuffer(bytearray(slots.part(e)), dtype=torch.uint8)
                                     for e in range(8)]

    @property
    def bytes(self):
        return self._records[0].numel()

    def source(self, model, args):
        spec = config(args)
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


def share_weights(model, layers):
    """The experts of the last layers become those of the first ones: room for other processes.
    What they hold does not matter to the time. Returns the GiB that were spared."""
    spared = 0
    for here, there in zip(model.model.layers, list(model.model.layers)[-layers:] if layers else ()):
        for name, parameter in there.mlp.experts.named_parameters():
            spared += parameter.numel() * parameter.element_size()
            parameter.data = getattr(here.mlp.experts, name).data
    torch.cuda.empty_cache()
    return spared / GIB


def theirs(bench, args):
    with bench.turns.building():
        model = build(args)
        spared = share_weights(model, args.shared_layers)
    for mode in args.modes or ("compiled", "grouped_mm", "batched_mm", "eager", "offload",
                               "accelerate"):
        if mode in ("grouped_mm", "batched_mm", "eager"):
            model.set_experts_implementation(mode)
            few = dict(tokens=3 if mode == "eager" else args.few, repeats=3)
            bench.mode(f"transformers, {mode}", lambda: bench.decode(model, **few),
                       bench.prompts(model) if mode == "grouped_mm" else None, spared=spared)
        elif mode == "compiled":  # generate() decodes with batched_mm
            model.set_experts_implementation("batched_mm")
            bench.mode("transformers, compiled", lambda: bench.decode(model, compiled_call(model)),
                       spared=spared)
        else:
            model.set_experts_implementation("grouped_mm")
            here = round(args.offloaded * args.layers)
            with bench.turns.building():
                gib = getattr(rivals, mode)(model, here)
            few = dict(tokens=1, warm=1 if mode == "offload" else 0, repeats=2)
            bench.mode(f"transformers, {mode}, experts of {here} of {args.layers} layers resident",
                       lambda: bench.decode(model, **few),
                       bench.prompts(model, repeats=1), offloaded_gib=gib)


def replayed(bench, model):
    """Without torch.compile: one CUDA graph of a decode step, recorded by hand."""
    engine, token, cache = model.moert, bench.tokens(1, 1), bench._cache(model, static=True)
    model(bench.tokens(1, PROMPT), past_key_values=cache, logits_to_keep=1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(token, past_key_values=cache)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(token, past_key_values=cache)

    def forward(new, past_key_values):
        token.copy_(new)
        with engine.step("decode", 1, stream=torch.cuda.current_stream().cuda_stream):
            graph.replay()
        return out
    return forward


def ours(bench, args):
    with bench.turns.building():
        records = Records(args, args.scheme)
        # Its own experts, which are not used, are as small as they can be.
        model = build(args, moe_intermediate_size=8)
        source = records.source(model, args)
        options = dict(host_budget="all") if min(args.budgets) < 1 else dict(host_budget="1GiB")
        engine = moert.attach(model, source, budget=max(args.budgets), device=args.device,
                              max_tokens=2048, strategy=args.strategy, **options)
        pinned = args.layers * args.experts * records.bytes / GIB if min(args.budgets) < 1 else 1
    print(f"{engine.strategy}, graph-safe: {engine.graph_safe}, "
          f"{time.perf_counter() - bench.begin:.0f} s", file=sys.stderr, flush=True)
    modes = {"compiled": lambda: bench.decode(model, compiled, warm=args.tokens),
             "replayed": lambda: bench.decode(model, replayed(bench, model)),
             "eager": lambda: bench.decode(model, tokens=args.few, repeats=3)}
    compiled = compiled_call(model)
    for budget in args.budgets:
        if budget != max(args.budgets):
            engine.set_budget(float(budget))
        with torch.no_grad(), bench.turns.building():  # what the budget holds is there before
            for _ in range(2):
                model(bench.tokens(1, 512), logits_to_keep=1)
        for mode in args.modes:
            if mode != "compiled" and budget not in args.all_at:
                continue
            prompts = bench.prompts(model) if mode == "compiled" and budget in args.all_at else None
            bench.mode(f"libmoert, {args.scheme}, {mode}", modes[mode], prompts, engine,
                       budget=budget, strategy=engine.strategy, pinned_gib=pinned)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("who", choices=["theirs", "ours"])
    parser.add_argument("--modes", nargs="+", help="of libmoert also replayed")
    parser.add_argument("--all-at", type=float, nargs="+", default=[1, 0.25],
                        help="budgets of prompts, and of modes other than compiled")
    parser.add_argument("--shared-layers", type=int, default=0,
                        help="theirs: so many layers share their weights with others")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--scheme", default="w4a16_g128")
    parser.add_argument("--budgets", type=float, nargs="+", default=[1, 0.5, 0.25, 0.1])
    parser.add_argument("--pack", help="ours: a pack of small_model() in that scheme, where "
                                       "moert-pack does not run")
    parser.add_argument("--strategy", help="None: by the budget")
    parser.add_argument("--offloaded", type=float, default=0.25,
                        help="share of the layers whose experts stay on the device, offloaded")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--few", type=int, default=8, help="tokens of modes that are not compiled")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json")
    parser.add_argument("--turns")
    args = parser.parse_args()
    if args.who == "ours":
        args.modes = args.modes or ["compiled", "eager"]
    bench = Bench(args)
    print(f"{bench.device.name}, {platform.processor() or platform.machine()}, "
          f"{torch.get_num_threads()} threads, torch {torch.__version__}, transformers "
          f"{transformers.__version__}, moert {moert.version()}", file=sys.stderr, flush=True)
    (theirs if args.who == "theirs" else ours)(bench, args)
    print(f"took {time.perf_counter() - bench.begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
