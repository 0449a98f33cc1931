#!/usr/bin/env bash
# What docs/internals/cuda.md says of whole models on a device: perplexity and greedy tokens of the
# bundled model beside the reference's, and decode rates, eager and as CUDA graphs.
#   tests/gpu/host_figures.sh build/cuda
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
run=$(cd "$1" && pwd)/bin/moert-run
export ROOT=$root RUN=$run
python3 - <<'PY'
import json, os, subprocess

root, tool = os.environ["ROOT"], os.environ["RUN"]
model = root + "/examples/models/tiny-moe"
reference = json.load(open(root + "/tests/data/eval/reference.json"))


def run(*args):
    out = subprocess.run([tool, *args, "--model", model, "--backend", "cuda", "--quiet", "--json", "-"],
                         stdout=subprocess.PIPE, check=True)
    return json.loads(out.stdout)


print("perplexity, prefill of windows of 512: nll | reference fp32 | reference bf16")
for domain, numbers in reference["domains"].items():
    tokens = f"{root}/tests/data/eval/{domain}.tokens.u16"
    got = run("ppl", "--tokens", tokens)
    print(f"  {domain}: {got['nll']:.6f} | {numbers['nll']:.6f} | {numbers['nll_bf16']:.6f}")

print("greedy tokens equal to the reference's, of 64")
for strategy, budget in (("resident", "100%"), ("on-demand", "25%")):
    for entry in reference["greedy"]:
        got = run("generate", "--prompt", entry["prompt"], "--max-tokens", "64",
                  "--strategy", strategy, "--budget", budget)["tokens"]
        want = entry["continuation_ids"]
        same = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        print(f"  {strategy} {budget}, {entry['prompt'][:24]!r}: {same}")

print("decode, milliseconds a step (median, 99th percentile), tokens/s by the median; host waits of the engine")
tokens = root + "/tests/data/eval/wikitext2.tokens.u16"
for strategy, budget in (("resident", "100%"), ("on-demand", "100%"), ("on-demand", "25%")):
    for graphs in ("off", "auto"):
        if graphs == "auto" and strategy != "resident":
            continue
        for batch in (1, 8, 32):
            rows = []
            for _ in range(3):
                got = run("ppl", "--tokens", tokens, "--step-tokens", "1", "--batch", str(batch),
                          "--limit", str(512 * batch), "--strategy", strategy, "--budget", budget,
                          "--graphs", graphs)
                rows.append((got["tpot_ms"]["p50"], got["tpot_ms"]["p99"], got["host_syncs"]))
            rows.sort()
            p50, p99, syncs = rows[1]
            print(f"  {strategy} {budget} graphs {graphs} batch {batch}: {p50:.3f} {p99:.3f} ms "
                  f"(runs {rows[0][0]:.3f} to {rows[2][0]:.3f}), {batch / p50 * 1e3:.0f} tokens/s, "
                  f"host_syncs {syncs}")
prompt = reference["greedy"][2]["prompt"]
for graphs in ("off", "auto"):
    rows = sorted(run("generate", "--prompt", prompt, "--max-tokens", "400", "--strategy", "resident",
                      "--graphs", graphs)["tpot_ms"]["p50"] for _ in range(3))
    print(f"  generate, resident, graphs {graphs}: {rows[1]:.3f} ms a token "
          f"({rows[0]:.3f} to {rows[2]:.3f}), {1e3 / rows[1]:.0f} tokens/s")
PY
