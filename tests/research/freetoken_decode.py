#!/usr/bin/env python3
"""Tokens a second of FreeToken's own decode loop, as JSON on stdout.

    freetoken_decode.py MODEL --strategy hybrid|offload --rate 0.25 [--batch 1,8] [--steps 64] [--repeats 3]

MODEL is a GGUF file or a checkpoint. FreeToken is driven through its offline class, without HTTP, with CUDA graphs
of each batch. A sequence begins with one random token, and a temperature of 100 draws each next token nearly at
random, as llama-bench does. A repetition is the time of `steps + 32` tokens less that of 32 tokens.
"""
import argparse
import contextlib
import json
import random
import sys
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--strategy", default="hybrid")
    parser.add_argument("--rate", type=float, required=True, help="experts of all layers that GPU memory holds, 0 to 1")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    return parser.parse_args()


class NoTokenizer:
    """Made-up files have no vocabulary."""
    eos_token_id = None
    chat_template = None

    def decode(self, _):
        return ""


def engine(options):
    import freetoken.scheduler.scheduler as scheduler
    scheduler.load_tokenizer = lambda _: NoTokenizer()
    scheduler.load_eos_token_ids = lambda *_: frozenset()
    from freetoken.llm import LLM
    return LLM(options.model, moe_strategy=options.strategy, moe_cache_rate=options.rate, moe_collect_stats=True,
               moe_cpu_threads=options.threads, max_running_req=max(options.batch), cuda_graph_bs=options.batch,
               max_seq_len_override=2048, num_token_override=4096 * max(options.batch), cache_type="naive")


def seconds(llm, batch, tokens):
    from freetoken.core import SamplingParams
    drawn = SamplingParams(temperature=100.0, ignore_eos=True, max_tokens=tokens)
    begin = time.perf_counter()
    out = llm.generate([[random.randrange(100, 100000)] for _ in range(batch)], drawn)
    if any(len(one["token_ids"]) != tokens for one in out):
        raise SystemExit(f"{[len(one['token_ids']) for one in out]} tokens came, not {tokens}")
    return time.perf_counter() - begin


def rates(llm, batch, options):
    seconds(llm, batch, 128)  # warms kernels, graphs and the cache
    found = []
    for _ in range(options.repeats):
        short, long = seconds(llm, batch, 32), seconds(llm, batch, 32 + options.steps)
        found.append(options.steps * batch / (long - short))
    return found


def main():
    options = parse()
    with contextlib.redirect_stdout(sys.stderr):
        llm = engine(options)
        told = {batch: {"tokens_per_s": rates(llm, batch, options), "cache": llm.engine.moe_offload_cache.decode_stats_line()}
                for batch in options.batch}
    print(json.dumps({key: {batch: of[key] for batch, of in told.items()} for key in ("tokens_per_s", "cache")}))


if __name__ == "__main__":
    main()
