#!/usr/bin/env python3
"""Writes routing.json: router logits with the experts and weights that the published formulas give.

    pip install numpy && python3 generate_routing.py

Each routing kind is written down in numpy, fp32, from the published model code (transformers 5.23,
modeling_{qwen2_moe,qwen3_moe,mixtral,deepseek_v2,deepseek_v3,phimoe,ernie4_5_moe}.py, inference
branches). No library code is involved. Ties are left to the unit tests: frameworks break them at
will.
"""
import json
import os

import numpy as np

F = np.float32


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True), dtype=F)
    return e / e.sum(-1, keepdims=True, dtype=F)


def sigmoid(x):
    return (F(1) / (F(1) + np.exp(-x, dtype=F))).astype(F)


def top(x, k):
    return np.argsort(-x, axis=-1, kind="stable")[:, :k]


def take(x, ids):
    return np.take_along_axis(x, ids, axis=-1)


def finish(weights, spec):
    if spec["renormalize"]:
        weights = weights / (weights.sum(-1, keepdims=True, dtype=F) + F(1e-20))
    return (weights * F(spec["scaling"])).astype(F)


def limit_groups(choice, spec, rank):
    tokens, experts = choice.shape
    groups = choice.reshape(tokens, spec["num_groups"], -1)
    chosen = top(rank(groups), spec["top_groups"])
    mask = np.zeros(groups.shape[:2], bool)
    np.put_along_axis(mask, chosen, True, axis=-1)
    return np.where(mask[:, :, None], groups, F(-np.inf)).reshape(tokens, experts)


def softmax_topk(logits, bias, spec):
    scores = softmax(logits)
    choice = limit_groups(scores + bias, spec, lambda g: g.max(-1))
    ids = top(choice, spec["top_k"])
    return scores, ids, finish(take(scores, ids), spec)


def topk_softmax(logits, bias, spec):
    ids = top(logits, spec["top_k"])
    return softmax(logits), ids, (softmax(take(logits, ids)) * F(spec["scaling"])).astype(F)


def sigmoid_grouped(logits, bias, spec):
    scores = sigmoid(logits)
    choice = limit_groups(scores + bias, spec, lambda g: np.sort(g, -1)[:, :, -2:].sum(-1, dtype=F))
    ids = top(choice, spec["top_k"])
    return scores, ids, finish(take(scores, ids), spec)


def sparsemixer(logits, bias, spec):
    eps = F(2 * spec["sparsemixer_eps"])

    def pick(masked):
        best = masked.max(-1, keepdims=True)
        factor = np.maximum(np.abs(logits), best)
        far = (best - logits) / factor > eps
        ids = top(masked, 1)
        return ids, take(softmax(np.where(far, F(-np.inf), masked)), ids)

    first, first_weight = pick(logits)
    masked = logits.copy()
    np.put_along_axis(masked, first, F(-np.inf), axis=-1)
    second, second_weight = pick(masked)
    ids = np.concatenate([first, second], -1)
    return softmax(logits), ids, np.concatenate([first_weight, second_weight], -1)


KINDS = {f.__name__: f for f in (softmax_topk, topk_softmax, sigmoid_grouped, sparsemixer)}


def case(name, kind, experts, top_k, tokens=4, renormalize=False, scaling=1.0, groups=(1, 1),
         bias=0.0, spread=1.5, sparsemixer_eps=0.01):
    return {"name": name, "kind": kind, "num_experts": experts, "top_k": top_k, "tokens": tokens,
            "renormalize": renormalize, "scaling": scaling, "num_groups": groups[0],
            "top_groups": groups[1], "bias_scale": bias, "spread": spread,
            "sparsemixer_eps": sparsemixer_eps}


CASES = [
    case("qwen1.5-moe", "softmax_topk", 60, 4),
    case("qwen3-moe", "softmax_topk", 128, 8, tokens=3, renormalize=True),
    case("olmoe", "softmax_topk", 64, 8),
    case("deepseek-v1", "softmax_topk", 64, 6),
    case("deepseek-v2", "softmax_topk", 160, 6, tokens=3, scaling=16.0, groups=(8, 3)),
    case("ernie4.5", "softmax_topk", 64, 6, renormalize=True, bias=0.02),
    case("mixtral", "topk_softmax", 8, 2, tokens=6),
    case("deepseek-v3", "sigmoid_grouped", 256, 8, tokens=3, renormalize=True, scaling=2.5,
         groups=(8, 4), bias=0.1),
    case("sigmoid without groups", "sigmoid_grouped", 32, 4, renormalize=True, bias=0.2),
    case("sigmoid without normalization", "sigmoid_grouped", 32, 3, scaling=1.5, groups=(4, 2),
         bias=0.1),
    # Bias far above the scores: biased keys of every sign, so that masking by 0 would go wrong.
    case("sigmoid, negative biases", "sigmoid_grouped", 32, 6, renormalize=True, groups=(4, 2),
         bias=-3.0),
    case("phi-3.5-moe", "sparsemixer", 16, 2, tokens=6),
    # Logits within a few percent of each other: several experts pass the threshold.
    case("sparsemixer, close", "sparsemixer", 16, 2, tokens=6, spread=0.03, sparsemixer_eps=0.02),
    case("sparsemixer, all negative", "sparsemixer", 8, 2, tokens=6, spread=-0.05,
         sparsemixer_eps=0.05),
]


def main():
    rng = np.random.default_rng(20240717)
    out = []
    for c in CASES:
        shape = (c.pop("tokens"), c["num_experts"])
        spread, bias_scale = c.pop("spread"), c.pop("bias_scale")
        logits = rng.normal(size=shape) * abs(spread)
        if c["kind"] == "sparsemixer" and abs(spread) < 1:
            logits += np.sign(spread)
        # Few digits keep the file small; they are read back exactly.
        logits = np.round(logits, 5).astype(F)
        bias = np.round(bias_scale * rng.uniform(-0.1 if bias_scale < 0 else -1, 1, shape[1]),
                        5).astype(F)
        scores, ids, weights = KINDS[c["kind"]](logits, bias, c)
        text = lambda a: [[float(str(F(v))) for v in row] for row in a]
        c["bias"] = text([bias])[0] if bias_scale else []
        c["logits"], c["ids"], c["weights"] = text(logits), ids.tolist(), text(weights)
        # Scores are simple functions of the logits: the first token's are enough.
        c["scores"] = text(scores[:1])[0]
        out.append(c)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "routing.json")
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in out) + "\n]\n")


main()
