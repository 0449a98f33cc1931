#!/usr/bin/env python3
"""Puts the tables of digest.py between the marks of README.md and docs.

    tests/research/pages.py            rewrites what stands between <!-- generated:NAME --> and its end
    tests/research/pages.py --check    fails if a page is not what docs/results/data says
"""
import argparse
import re
import sys

import decoder_page
import digest
import envelope_h200
import frontier_page
import grouped_core
import proof_page
import quality_moving_plan
import quality_rank
import report
import served_h200
import several_gpus
import transformers_page

MODELS = ("tiny-moe", "small-moe")
COLUMNS = ["model", "transfers in the window", "recall before the cut", "after, 25 %", "after, 75 %"]
ALPHAS = ["loss, % (slots replaced, %)", "alpha 0.1", "alpha 0.2", "alpha 0.3", "alpha 0.6", "largest within 0.5 %"]
HITS = ["model", "window", "prefetch", "cache", "25 %", "50 %", "75 %"]
TABLES = {
    "readme": digest.readme, "architecture": digest.architecture,
    "rivals-grouped": lambda: digest.stored("rivals", "The grouped product, prompts included"),
    "rivals-decoders": lambda: digest.stored("rivals", "Whole decoders"),
    "rivals-whole": decoder_page.table, "beside-four": proof_page.table,
    "rivals-ours": lambda: digest.stored("rivals", "Ours, extrapolated to 48 layers"),
    "rivals-budget": lambda: digest.stored("rivals", "Decoding under a budget"),
    "plug-in-gpu": lambda: digest.stored("rivals", "llama.cpp with the plug-in, on a GPU"),
    "plug-in-prompts": lambda: digest.stored("rivals", "llama.cpp with the plug-in, prompts on a GPU"),
    "rivals-served": lambda: digest.stored("rivals", "Misses served by the device"),
    "rivals-prefetch": lambda: digest.stored("rivals", "Prefetches served by the device"),
    "fate-decode": digest.fate_decode, "fate-multiples": digest.fate_multiples,
    "score-eviction": digest.score_eviction,
    "importance-summary": digest.importance_summary,
    "importance-parts": lambda: digest.h200.importance_parts(digest.h200.load("importance")),
    "offload": digest.offload,
    "offload-converged": digest.offload_converged,
    "dynaexq-adapt": lambda: digest.adaptation(),
    "dynaexq-ttft": digest.adaptation_prompts,
    "dynaexq-bounds": lambda: digest.h200.bounds(digest.h200.load("dynaexq")),
    "loads": lambda: digest.h200.loads(digest.h200.load("loads")),
    "transformers": transformers_page.table,
    "cross-layer": lambda: digest.stored("fate-replay", "cross-layer"),
    "window-cut": lambda: digest.stored("fate-replay", "window-cut", COLUMNS, lambda r: r[1] in ("0.5", "2", "8")),
    "hit-ratio": lambda: digest.stored("fate-replay", "hit-ratio", HITS, lambda r: r[:2] == ["small-moe", "2"] and r[3] != "arc"),
    "rho": lambda: digest.stored("fate-replay", "rho"),
    "rho-held-out": lambda: digest.stored("fate-replay", "rho-held-out"),
    "fate-today": lambda: digest.stored("fate-replay", "today"),
    "disk": lambda: digest.fate_disk(),
    "alpha": lambda: digest.stored("importance-quality", "Loss by alpha", ALPHAS),
    "alpha-held-out": lambda: digest.stored("importance-quality", "Held out"),
    "substitutes": lambda: digest.stored("importance-quality", "Against other substitutes",
                                         rows=lambda r: "displaced" not in r[0]),
    "simulated-paper": lambda: digest.stored("importance-simulated", "Beside the paper"),
    "envelope-exact": digest.envelope_exact, "envelope-rivals": digest.envelope_rivals,
    "envelope-before": digest.envelope_before, "envelope-h200": envelope_h200.stored_table,
    "envelope-h200-recorded": envelope_h200.stored_recorded, "envelope-h200-bounded": envelope_h200.stored_bounded,
    "envelope-behind": digest.envelope_behind, "envelope-bounded": digest.envelope_bounded,
    "envelope-auto": digest.envelope_auto, "envelope-auto-behind": digest.envelope_auto_behind,
    "graded-loss": digest.graded_loss, "rank-by-loss": quality_rank.table,
    "moving-plan": quality_moving_plan.table,
    "moving-plan-shift": quality_moving_plan.shift_table,
    "importance-served": served_h200.rule_table, "graded-served": served_h200.graded_table, "fate-served": served_h200.served_table, "fate-window": served_h200.window_table,
    "lookahead-recall": digest.lookahead_recall, "lookahead-times": digest.lookahead_times,
    "frontier-versions": frontier_page.versions, "frontier-best": frontier_page.best,
    "frontier-auto": frontier_page.verdicts, "frontier-behind-exact": frontier_page.behind_exact,
    "frontier-behind-loss": frontier_page.behind_loss, "frontier-missing": frontier_page.missing,
    "frontier-beyond-loss": frontier_page.beyond_loss,
    "uniform": digest.uniform_perplexity,
    **{f"equal-{m}": (lambda m=m: digest.equal_bytes(m)) for m in MODELS},
    "schemes": digest.scheme_losses, "plans": digest.plan_gains, "choices": digest.plan_choices,
    **{f"below-{part}": (lambda p=part: digest.stored("below-2.5-bits", p)) for part in ("uniform", "plans")},
    "activations": digest.plan_activations, "references": lambda: digest.stored(
        "quantizer-references", "Quantizers against their packages"),
    "core-set": grouped_core.core, "core-zipf": grouped_core.zipf, "core-64k": grouped_core.longest,
    "core-plans": grouped_core.plans, "core-fp4": grouped_core.few_fp4,
    "core-profile": grouped_core.profile, "rivals-marlin": grouped_core.marlin,
    "gemm-few": digest.gemm_shares, "gemm-many": digest.gemm_many, "gemm-zipf": digest.gemm_zipf,
    "two-gpus": several_gpus.two_gpus, "gpus-placed": several_gpus.placed, "gpus-copies": several_gpus.copies,
    "predictions": digest.predictions, "four-shapes": digest.four_shapes,
    **{f"cpu-{mark}": (lambda t=table: digest.stored("cpu-kernels", t)) for mark, table in (
        ("streaming", "streaming, 16 cores"), ("ggml", "ggml, 16 cores"), ("repacked", "ggml repacked, 16 cores"), ("sets", "sets by tokens per call"),
        ("imported", "imported schemes, one thread"))},
}


def made(text, used):
    def part(match):
        name = match[1]
        if name not in TABLES:
            sys.exit(f"no table {name}; there are {', '.join(TABLES)}")
        used.add(name)
        return f"<!-- generated:{name} -->\n{TABLES[name]().strip()}\n<!-- /generated:{name} -->"
    return re.sub(r"<!-- generated:([\w-]+) -->\n.*?<!-- /generated:\1 -->", part, text, flags=re.S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale, used = [], set()
    for path in [report.ROOT / "README.md", *sorted((report.ROOT / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        new = made(text, used)
        if new != text:
            stale.append(str(path.relative_to(report.ROOT)))
            if not args.check:
                path.write_text(new, encoding="utf-8")
    unused = set(TABLES) - used
    if unused:
        print(f"in no page: {', '.join(sorted(unused))}")
    if args.check and (stale or unused):
        sys.exit(f"{', '.join(stale)}: not what docs/results/data says; run tests/research/pages.py")
    print("\n".join(stale) or f"{len(used)} tables are up to date")


if __name__ == "__main__":
    main()
