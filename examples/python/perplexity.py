#!/usr/bin/env python3
"""Perplexity of a transformers model, as it is and with its MoE blocks computed by libmoert.

    perplexity.py MODEL_DIR TOKENS.u16 [--limit N] [--window 512] [--strategy SPEC] [--budget 0.25]
"""
import argparse
import array
import math

import torch
import transformers

import moert.transformers


def perplexity(model, tokens, window):
    """exp of the mean negative log-likelihood over non-overlapping windows, all but the first token
    of each scored (as moert-run ppl)."""
    total, scored = 0.0, 0
    with torch.no_grad():
        for first in range(0, len(tokens) - window + 1, window):
            ids = torch.tensor([tokens[first:first + window]])
            logp = torch.log_softmax(model(ids).logits[0, :-1].float(), dim=-1)
            total -= logp.gather(1, ids[0, 1:, None]).double().sum().item()
            scored += window - 1
    return math.exp(total / scored)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--strategy", default="on-demand")
    parser.add_argument("--budget", type=float, default=0.25)
    a = parser.parse_args()
    tokens = array.array("H", open(a.tokens, "rb").read())
    tokens = tokens[:a.limit or None].tolist()

    model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    model.eval()
    plain = perplexity(model, tokens, a.window)
    engine = moert.transformers.attach(model, a.model, strategy=a.strategy,
                                       budget=a.budget)
    ours = perplexity(model, tokens, a.window)
    stats = engine.stats()
    print(f"transformers {plain:.6f}, with libmoert ({engine.strategy}, {a.budget:.0%} of the "
          f"experts in memory) {ours:.6f}: {100 * (ours / plain - 1):+.4f} %")
    print(f"lookups {stats.lookups}, hit ratio {engine.hit_ratio():.3f}, peak {stats.peak_bytes} "
          f"of {stats.budget_bytes} bytes")


if __name__ == "__main__":
    main()
