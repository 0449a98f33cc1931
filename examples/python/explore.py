#!/usr/bin/env python3
"""A model that does not fit, looked at: what a budget pays for, how decoding goes token by token,
and which strategy serves it best. Cells (# %%) run one by one in editors that know them.

    explore.py MODEL_DIR [--budgets 25% 50%] [--strategies on-demand fate] [--plot explore.png]
"""
# %% What to look at
import argparse
import sys
import time

import torch
import transformers

import moert
from moert.sizes import text as size

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("model", help="folder of a checkpoint")
parser.add_argument("--budgets", nargs="+", default=["25%", "50%", "100%"])
parser.add_argument("--strategies", nargs="+", default=["on-demand", "on-demand+fate.prefetch", "fate"])
parser.add_argument("--experts", help="a scheme to quantize experts to, such as w4a16_g128")
parser.add_argument("--device", default="cpu")
parser.add_argument("--tokens", type=int, default=64, help="to generate")
parser.add_argument("--prompt", default="Question: A farmer has 12 cows and buys 7 more. How many "
                                        "cows does he have now?\nAnswer:")
parser.add_argument("--plot", help="a PNG to write (matplotlib)")
args = parser.parse_args()


# %% What a budget pays for: the plan allocates nothing
def show_plan(source):
    name, record = source.versions()[0]
    layers = [source.spec(layer) for layer in range(source.layers)]
    experts = sum(layer.num_experts for layer in layers)
    print(f"{args.model}: {source.layers} MoE layers, {experts} experts of {size(record)} in "
          f"{name}, {size(experts * record)} on disk\n")
    print(f"{'budget':>8} {'fast tier':>11} {'gates, shared':>14} {'tables':>10} {'workspace':>10} "
          f"{'experts':>10}  resident")
    for budget in args.budgets:
        m = moert.plan(source, budget=budget, max_tokens=256)
        pool = m.slots * m.block_bytes + m.low_slots * m.low_block_bytes + m.own_bytes
        print(f"{budget:>8} {size(m.budget_bytes):>11} {size(m.constant_bytes):>14} "
              f"{size(m.table_bytes):>10} {size(m.workspace_bytes):>10} {size(pool):>10}  "
              f"{m.slots} of {m.total_experts}")
    print()


# %% Decoding, watched: a criterion that never stops is called once a token
class Watch(transformers.StoppingCriteria):
    """Samples the engine after every token and keeps a line up to date."""

    def __init__(self, engine, label):
        self.engine, self.label = engine, label
        self.hits, self.stalls, self.seconds = [], [], []
        self.last, self.clock = engine.stats(), time.perf_counter()

    def __call__(self, ids, scores, **_):
        now, clock = self.engine.stats(), time.perf_counter()
        lookups = now.lookups - self.last.lookups
        hits = (now.hits_resident + now.hits_prefetched - self.last.hits_resident -
                self.last.hits_prefetched)
        self.hits.append(hits / lookups if lookups else 1.0)
        self.stalls.append((now.stalled_ns - self.last.stalled_ns) / 1e6)
        self.seconds.append(clock - self.clock)
        self.last, self.clock = now, clock
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{self.label}: token {len(self.hits)}, hits "
                             f"{self.hits[-1]:.0%}, stalled {self.stalls[-1]:.1f} ms, "
                             f"{1 / self.seconds[-1]:.1f} tokens/s")
            sys.stderr.flush()
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)


def watch(strategy, budget):
    model = moert.from_pretrained(args.model, budget=budget, strategy=strategy, max_tokens=256,
                                  experts=args.experts, device=args.device)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    prompt = tokenizer(args.prompt, return_tensors="pt").to(args.device)
    seen = Watch(model.moert, f"{strategy} at {budget}")
    out = model.generate(**prompt, max_new_tokens=args.tokens, do_sample=False,
                         stopping_criteria=transformers.StoppingCriteriaList([seen]))
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    return seen, tokenizer.decode(out[0][prompt["input_ids"].shape[1]:])


# %% Strategies compared. The first sample has the prompt in it: it is left out
def compare(runs):
    print(f"{'strategy':<20} {'budget':>7} {'hits':>6} {'stalled a token':>16} {'tokens/s':>9}")
    for (strategy, budget), (seen, _) in runs.items():
        count = len(seen.hits) - 1
        print(f"{strategy:<20} {budget:>7} {sum(seen.hits[1:]) / count:>6.1%} "
              f"{sum(seen.stalls[1:]) / count:>13.2f} ms {count / sum(seen.seconds[1:]):>9.1f}")
    texts = {text for _, text in runs.values()}
    print(f"\n{'the same text everywhere' if len(texts) == 1 else 'texts differ'}: "
          f"{texts.pop()!r}")


# %% The same as a picture
def plot(runs, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(9, 6), layout="constrained")
    for (strategy, budget), (seen, _) in runs.items():
        top.plot(seen.hits[1:], label=f"{strategy}, {budget}", linewidth=1.2)
        bottom.plot(seen.stalls[1:], linewidth=1.2)
    top.set_ylabel("hit ratio")
    top.set_ylim(0, 1.05)
    bottom.set_ylabel("stalled, ms a token")
    bottom.set_xlabel("token")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*top.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


# %% All of it
def main():
    show_plan(moert.open_experts(args.model, args.experts))
    runs = {(strategy, budget): watch(strategy, budget)
            for strategy in args.strategies for budget in args.budgets}
    compare(runs)
    if args.plot:
        plot(runs, args.plot)


if __name__ == "__main__":
    main()
