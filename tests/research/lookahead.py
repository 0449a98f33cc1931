#!/usr/bin/env python3
"""Would prefetching two layers ahead pay? Recall of gates on inputs of earlier layers, and what it could hide.

    tests/research/lookahead.py measure tiny-moe=examples/models/tiny-moe small-moe=DIR   (torch, transformers)

A bound, not a strategy: stock transformers decodes the first tokens of the evaluation texts. A small model of
the link, one transfer after another, demand loads first, and of a cache, LRU over all layers, replays the
routing. A layer may bring the experts that gates of the next layer, or of the next two, rank among their k
best, above a share of the k-th best score. Of two layers ahead the best share is taken in hindsight.
"""
import argparse
import collections
import pathlib

import quality_lib as lib
import report

STORED = report.DATA / "lookahead.json"
TOKENS, WINDOW = 512, 256
BUDGETS = (0.25, 0.5, 0.75)
WINDOWS = (0.5, 1, 2, 4)      # transfers in the time of a layer
RATIOS = (1.0, 1.5, 2.5, 4)   # of the k-th best score that a candidate two layers ahead must reach
AHEAD = 3


def decode(path, tokens):
    """[distance][layer][token]: the k experts that the layer's gate ranks best on the input so many layers before,
    best first, and their scores over the k-th best."""
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    layers = model.model.layers
    inputs = [None] * len(layers)
    for i, layer in enumerate(layers):
        layer.mlp.register_forward_pre_hook(lambda m, args, i=i: inputs.__setitem__(i, args[0].reshape(-1, args[0].shape[-1])))
    ranked = [[[] for _ in layers] for _ in range(AHEAD + 1)]
    with torch.no_grad():
        for at in range(0, len(tokens), WINDOW):
            model(torch.tensor([tokens[at:at + WINDOW]]))
            for i, layer in enumerate(layers):
                for d in range(min(i, AHEAD) + 1):
                    scores = torch.softmax(inputs[i - d] @ layer.mlp.gate.weight.T, -1)
                    top = torch.topk(scores, model.config.num_experts_per_tok)
                    ranked[d][i] += zip(top.indices.tolist(), (top.values / top.values[:, -1:]).tolist())
    return ranked, model.config.num_experts


class Link:
    """One transfer after another into an LRU cache; times in transfers."""

    def __init__(self, slots):
        self.slots, self.cache, self.coming = slots, collections.OrderedDict(), None
        self.pending = collections.deque()
        self.free = 0.0

    def insert(self, key):
        self.cache[key] = True
        while len(self.cache) > self.slots:
            self.cache.popitem(last=False)

    def run_until(self, now):
        """Starts what is pending while the link is free before `now`; lands what has arrived."""
        while True:
            if self.coming and self.free <= now:
                self.insert(self.coming)
                self.coming = None
            if self.coming or not self.pending or self.free >= now:
                return
            key, since = self.pending.popleft()
            self.coming, self.free = key, max(self.free, since) + 1

    def call(self, now, layer, needed):
        """A layer asks; when it has all. What was predicted for it and has not begun is forgotten."""
        self.run_until(now)
        self.pending = collections.deque(p for p in self.pending if p[0][0] != layer)
        ready = now
        keys = [(layer, e) for e in needed]
        if self.coming in keys:
            ready = max(ready, self.free)
        for key in keys:
            if key in self.cache:
                self.cache.move_to_end(key)
            elif key != self.coming:
                if self.coming and self.free > now:
                    self.insert(self.coming)
                    self.coming = None
                self.free = ready = max(ready, self.free, now) + 1
                self.insert(key)
        return ready


def replay(ranked, experts, budget, window, ahead, ratio):
    """Mean time of a token, in layers' times."""
    layers, tokens = len(ranked[0]), len(ranked[0][0])
    link, now, begin = Link(int(budget * layers * experts)), 0.0, 0.0
    warm = tokens // 4
    for t in range(tokens):
        if t == warm:
            begin = now
        for l in range(layers):
            now = link.call(now, l, ranked[0][l][t][0])
            for d in range(1, ahead + 1):
                if l + d >= layers:
                    break
                for e, over in zip(*ranked[d][l + d][t]):
                    key = (l + d, e)
                    wanted = d == 1 or over >= ratio
                    queued = key in link.cache or key == link.coming or any(p[0] == key for p in link.pending)
                    room = len(link.pending) + max(0.0, link.free - now) < d * window
                    if wanted and not queued and room:
                        link.pending.append((key, now))
            now += window
    return (now - begin) / (tokens - warm) / layers / window


def measure(models):
    import array
    data = {}
    for name, path in models.items():
        by_domain = []
        for domain in lib.DOMAINS:
            words = array.array("H")
            with open(report.ROOT / "tests" / "data" / "eval" / f"{domain}.tokens.u16", "rb") as f:
                words.frombytes(f.read())
            by_domain.append(decode(path, list(words[:TOKENS])))
        recall = {}
        for d in range(1, AHEAD + 1):
            hits = [len(set(true[0]) & set(guess[0])) / len(true[0]) for ranked, _ in by_domain
                    for l in range(d, len(ranked[0])) for true, guess in zip(ranked[0][l], ranked[d][l])]
            recall[str(d)] = round(lib.mean(hits), 4)
        times = {}
        for budget in BUDGETS:
            for window in WINDOWS:
                run = lambda ahead, ratio: lib.mean([replay(*made, budget, window, ahead, ratio) for made in by_domain])
                times[f"{budget} {window}"] = [round(v, 4) for v in (
                    run(0, 1), run(1, 1), min(run(2, r) for r in RATIOS))]
        data[name] = {"recall": recall, "times": times}
        print(name, recall, times)
    lib.save(STORED, data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure"])
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    args = parser.parse_args()
    measure({n: pathlib.Path(p) for n, p in (m.split("=", 1) for m in args.models)})


if __name__ == "__main__":
    main()
