"""What bench_h200.py measures: the runs of each part, what matters most first."""
W4, W2, W8 = "w4a16_g128", "w2a16_g64_asym", "w8a16_g128"


def run_of(key, bench, shape, strategies, **flags):
    return {"key": key, "bench": bench, "shape": shape, "strategies": strategies, "flags": flags}


def dynaexq_runs():
    """What adaptation costs, its bounds, offloading at the same bytes (DynaExq); some five minutes. Of
    variants that begin with `hot=before` the warm-up costs nothing; what matters most comes first."""
    hi_lo = f"hi=bf16,lo={W4}"
    # Finds the hot experts in a few steps; the others begin with them.
    first = f"dynaexq:{hi_lo},spare=64,interval_ms=20"
    live, frozen = f"dynaexq:{hi_lo},hot=before", f"static-mixed:{hi_lo},hot=before"
    # No hysteresis and ten times the usual rate: about as many transitions as the pipeline takes.
    churn = f"dynaexq:{hi_lo},margin=0,noise=0,interval_ms=20,hot=before"
    low, high = f"resident:scheme={W4}@100%", "resident:scheme=bf16@100%"
    flags = {"schemes": f"bf16,{W4}", "budget": "45%", "warm": 128, "steps": 64, "repeats": 4}
    for batch in (1, 8, 32):
        # 512 steps, so that the P99 is the sixth greatest.
        yield run_of(f"adapt-{batch}", "decode", "qwen3-30b", [first, live, frozen, churn],
                     workload="steady", **dict(flags, batch=batch, repeats=8))
    for prompt, warm, steps, repeats in ((128, 48, 16, 8), (512, 24, 8, 6), (2048, 10, 4, 5)):
        yield run_of(f"ttft-{prompt}", "prefill", "qwen3-30b", [first, live, frozen, churn, low],
                     workload="steady", schemes=f"bf16,{W4}", budget="45%", prompt=prompt, warm=warm,
                     steps=steps, repeats=repeats)
    # As many steps of warm-up as the first needs to find the hot ones, and a cache to fill; of four engines, as
    # five do not fit on the device.
    for batch, warm in ((1, 128), (8, 48), (32, 40)):
        yield run_of(f"offload-{batch}", "decode", "qwen3-30b",
                     [first, live, "on-demand:scheme=bf16", "expertflow-like:scheme=bf16"],
                     workload="mixed", **dict(flags, batch=batch, warm=warm, steps=8, repeats=3))
    yield run_of("offload-low", "decode", "qwen3-30b", [f"graded:wait=0,hi=bf16,lo={W4}"], workload="mixed",
                 **dict(flags, batch="1,8,32", steps=8, repeats=3))
    for batch in (1, 8, 32):
        yield run_of(f"bounds-{batch}", "decode", "qwen3-30b", [first, frozen, low, high], workload="steady",
                     **dict(flags, batch=batch, graph=True, repeats=3))
    yield run_of("shift-8", "decode", "qwen3-30b", [first, live, frozen, low], workload="shift",
                 **dict(flags, batch=8, steps=96))


SHAPES = {"qwen1.5-moe": 24, "deepseek-v2-lite": 26}  # layers
LINKS = (16, 4, 0)  # GB/s; 0: as it is


def fate_runs():
    """Fate against its rivals, links paced, in decode and prefill; what tells most comes first. Where the
    link is slower there are fewer layers and steps: a step there is mostly waiting, the same in every layer."""
    s = f"scheme={W4}"
    rivals = [f"on-demand:{s}", f"activation-path:{s}", f"activation-path:{s}+fate.residency"]
    nothing_kept = [f"load-on-demand:{s}"]  # as fast at any budget

    def flags_of(bench, link):
        flags = {"schemes": W4, "workload": "mixed"}
        if link:
            flags["link_gbps"] = link
        if bench == "prefill":
            return dict(flags, schemes=f"{W4},{W2}", prompt=128, warm=2, steps=2, repeats=3)
        return dict(flags, warm=64 if link == 4 else 128, steps=16, repeats=4 if link else 5)

    def compared(shape, link, bench, key, budget, more):
        layers = SHAPES[shape]
        if bench == "decode":
            n, mine = {0: layers, 16: layers // 2, 4: 8}[link], [f"fate:{s}"]
        else:
            n, mine = {0: layers // 2, 16: 8, 4: 4}[link], [f"fate:{s}", f"fate:{s},low={W2}"]
        return run_of(f"{shape}-{link}-{bench}{key}", bench, f"{shape}:{n}", mine + rivals + more, budget=budget,
                      **flags_of(bench, link))

    def ablation(shape, bench):
        # The same bytes: 25 % of the experts in bf16 are 97 % of them in w4.
        chain = ["load-on-demand:scheme=bf16", "load-on-demand:scheme=bf16+fate.prefetch", "fate:scheme=bf16",
                 f"fate:{s}@97%", f"fate:{s},low={W2},miss_bits=low@97%"]
        how = dict(flags_of(bench, 16), schemes=f"bf16,{W4},{W2}", budget="25%", repeats=3)
        return run_of(f"{shape}-ablation-{bench}", bench, f"{shape}:{6 if bench == 'decode' else 4}", chain,
                      **dict(how, warm=min(how["warm"], 64)))

    for bench in ("decode", "prefill"):
        for key, budgets, more in (("-25", "25%", nothing_kept), ("", "10%,40%,60%", [])):
            for link in LINKS:
                for shape in SHAPES:
                    yield compared(shape, link, bench, key, budgets, more)
        for shape in SHAPES:
            yield ablation(shape, bench)


# Scheme, layers. The runs that tell most come first; layers are alike.
IMPORTANCE_SHAPES = {"deepseek-moe-16b": ("bf16", 6), "qwen2-57b": (W8, 4), "xverse-moe": ("bf16", 6)}
IMPORTANCE_RIVALS = ["on-demand", "activation-path", "fate", "cpu-split", "hybrimoe-like",
                     "hybrimoe-like:balancer=1"]
OURS, ALGORITHM2 = "importance:alpha=0.3", "importance:alpha=0.3,balancer=1"
FILLED_RIVAL = "hybrimoe-like:fill=1"
# Added one by one to the on-demand default.
IMPORTANCE_PARTS = [("on-demand (LRU)", "on-demand"), ("+ eviction", "on-demand+importance.residency"),
                    ("+ router", "on-demand+importance.residency+importance.routing:alpha=0.3"),
                    ("+ prefetch", "importance:alpha=0.3,balancer=0"),
                    ("+ balancer, Algorithm 2", ALGORITHM2),
                    ("+ by completion instead", "importance:alpha=0.3,fill=0"),
                    ("+ fill behind the CPU", OURS)]


IMPORTANCE_PREFILL = ["on-demand", "fate", "hybrimoe-like", ALGORITHM2, OURS]


def importance_runs():
    """Importance against its rivals, batch 1 and 3, CPU experts beside the device. On a link of 16 GB/s it takes
    some 150 steps until every cache is full."""
    # The best of the other rivals, given the fill, too.
    others = [FILLED_RIVAL, "importance"]

    def flags_of(shape, link):
        flags = {"schemes": IMPORTANCE_SHAPES[shape][0], "workload": "mixed", "budget": "40%"}
        return dict(flags, link_gbps=link) if link else flags

    def of(shape):
        return f"{shape}:{IMPORTANCE_SHAPES[shape][1]}"

    def decode(shape, link):
        # The parts one by one where steps without a CPU are short enough.
        all_parts = shape == "deepseek-moe-16b" or (shape == "xverse-moe" and link == 0)
        parts = [spec for _, spec in IMPORTANCE_PARTS] if all_parts else [ALGORITHM2]
        return run_of(f"{shape}-{link}", "decode", of(shape),
                      list(dict.fromkeys(IMPORTANCE_RIVALS + [OURS] + parts + others)), batch="1,3", warm=192,
                      steps=16, repeats=4, **flags_of(shape, link))

    for link in (16, 0):
        for shape in IMPORTANCE_SHAPES:
            yield decode(shape, link)
        for shape in IMPORTANCE_SHAPES:
            yield run_of(f"{shape}-{link}-prefill", "prefill", of(shape), IMPORTANCE_PREFILL, prompt=128, warm=1,
                         steps=2, repeats=3, **flags_of(shape, link))


def loads_runs():
    """Demand loads back to back: every expert of every layer call is missing; a few seconds."""
    schemes = [W2, W4, W8, "bf16"]
    yield run_of("loads", "decode", "qwen3-30b:4", [f"load-on-demand:scheme={s}" for s in schemes], workload="uniform",
                 schemes=",".join(reversed(schemes)), budget="60%", batch=32, attention_us=0, warm=4, steps=8, repeats=5)


PARTS = {"dynaexq": dynaexq_runs, "fate": fate_runs, "importance": importance_runs, "loads": loads_runs}
