#!/usr/bin/env python3
"""Puts the tables of digest.py between the marks of README.md and docs.

    tests/research/pages.py            rewrites what stands between <!-- generated:NAME --> and its end
    tests/research/pages.py --check    fails if a page is not what docs/results/data says

Below every table stands where its figures come from; a table that mixes commits or machines without a word is refused.
"""
import argparse
import re
import sys

import cpu_rivals
import decoder_page
import digest
import envelope_h200
import first_evening
import frontier_page
import grouped_core
import offload_h200
import one_card
import opening_ways
import papers_page
import readme_page
import report
import several_gpus
import sharing_h200
import side_by_side
import transformers_page
from origins import Refused, Table, caption

CLOCK = "A replay on the virtual clock, the same on any machine; no commit is kept"
TRAINED = "Perplexity of trained models on CPUs; no commit is kept"
ENVELOPE = "df7f4a8: `fate`; 0dc91f2: `auto`, `graded`, and `fate` with batches of 8 at 10 and 25 %; 7e633e4: the others"
SHAPES = "Arithmetic over published shapes"
TABLES = {
    "readme": Table(readme_page.table, word="in the rows", shown=False),
    "architecture": Table(digest.architecture, word="in its head", shown=False),
    # Beside other programs
    "sittings": Table(side_by_side.tables, word="A sitting has one commit and one device, an NVIDIA H200"),
    "rivals-grouped": Table(grouped_core.beside, (("gemm-core", "runs", "beside"),), "Rivals in the same call of the machine"),
    "rivals-fp8": Table(grouped_core.by_fp8, ("grouped-fp8",), "In turns"),
    "rivals-whole": Table(decoder_page.table, ("decoder",)),
    "opening-ways": Table(opening_ways.table, ("opening-ways",)),
    "transformers": Table(transformers_page.table, word="No commit is kept. One H200; accelerate, and bf16 of ours below 100 %, on another H200"),
    # The grouped product
    "core-set": Table(grouped_core.core, tuple(("gemm-core", "runs", r) for r in (
        "q30", grouped_core.FP8, "qwen1.5-moe", "deepseek-v2-lite", "qwen3-next-80b", "mixtral"))),
    "core-plans": Table(grouped_core.plans, tuple(("gemm-core", "runs", r) for r in ("q30-plans", "q30-plan-5-a8", "q30-plans2")),
                        "`-two` and `-4.25-a8` are of bea63d51, the others of 78ce6196; ratios are within a commit"),
    "mma": Table(grouped_core.mma, ("gemm-mma",), word="The last two rows at 4439b5a5, the others' few tokens at c6d2d415, their prompts at 3d7ab7a6"),
    # Papers
    "papers": Table(papers_page.headlines, word="From the tables below and those of plans, which name their commits, and from `h200-importance.json`, "
                    "which mixes ccc9a9c0 and eb2a7808"),
    "fate-served": Table(papers_page.served_table, (("h200-served", "runs", "qwen3-30b:12 1 graph"), ("h200-served", "device"))),
    "fate-window": Table(papers_page.window_table, (("h200-served", "runs", "qwen3-30b:12 1 window"), ("h200-served", "device"))),
    "cross-layer": Table(papers_page.cross_layer, word=CLOCK),
    "alpha": Table(papers_page.alpha, word=CLOCK),
    "offload-converged": Table(lambda: offload_h200.table("converged"), ("h200-offload",)),
    "offload-batch-32": Table(lambda: offload_h200.table("batch-32"), ("h200-offload-32",)),
    "sharing": Table(sharing_h200.table, (("h200-sharing", "runs"),)),
    "sharing-pinned": Table(sharing_h200.pinned_table, (("h200-pinned", "runs"),)),
    # The envelope and the frontier
    "envelope-exact": Table(digest.envelope_exact, ("envelope",), ENVELOPE),
    "envelope-h200": Table(envelope_h200.stored_table, (lambda: envelope_h200.origin("cells"),)),
    "envelope-h200-recorded": Table(envelope_h200.stored_recorded, (lambda: envelope_h200.origin("recorded"),)),
    "envelope-h200-bounded": Table(envelope_h200.stored_bounded, (lambda: envelope_h200.origin("bounded"),)),
    "frontier-best": Table(frontier_page.best, ("frontier",)),
    "frontier-auto": Table(frontier_page.verdicts, ("frontier",)),
    # Quantization
    "schemes": Table(digest.scheme_losses, word=TRAINED), "plans": Table(digest.plan_gains, word=TRAINED),
    # One card
    "one-card-bytes": Table(one_card.bytes_table, word=SHAPES), "one-card-share": Table(one_card.share_table, word=SHAPES),
    "one-card-speed": Table(one_card.speed_table, word="Arithmetic, not measured: no consumer card was at hand"),
    "first-evenings": Table(first_evening.table, ("first-evenings",),
                            word="llama-server at 6e7ed894, our tools at 7331ad05"),
    # The rest
    "two-gpus": Table(several_gpus.two_gpus, ("several-gpus",), "Two devices"),
    "resident-ranks": Table(several_gpus.resident, ("resident-ranks",), "Two devices"),
    "cpu-rivals": Table(cpu_rivals.table, ("cpu-rivals",)),
    "cpu-formats": Table(cpu_rivals.formats, ("cpu-rivals",)),
}


def spans(table):
    """`1.2 to 1.4` as `1.2-1.4`, in rows."""
    return re.sub(r"^\|.*$", lambda row: re.sub(r"(?<=\d) to (?=\d)", "-", row[0]), table, flags=re.M)


def made(text, used, refused):
    def part(match):
        name = match[1]
        if name not in TABLES:
            sys.exit(f"no table {name}; there are {', '.join(TABLES)}")
        used.add(name)
        try:
            below = caption(name, TABLES[name])
        except Refused as error:
            refused.append(str(error))
            return match[0]
        below = f"\n\n{below}" if TABLES[name].shown else ""
        return f"<!-- generated:{name} -->\n{spans(TABLES[name].make().strip())}{below}\n<!-- /generated:{name} -->"
    return re.sub(r"<!-- generated:([\w-]+) -->\n.*?<!-- /generated:\1 -->", part, text, flags=re.S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale, used, refused = [], set(), []
    for path in [report.ROOT / "README.md", *sorted((report.ROOT / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        new = made(text, used, refused)
        if new != text:
            stale.append(str(path.relative_to(report.ROOT)))
            if not args.check:
                path.write_text(new, encoding="utf-8")
    unused = set(TABLES) - used
    if unused:
        print(f"in no page: {', '.join(sorted(unused))}")
    if refused:
        sys.exit("\n".join(refused))
    if args.check and (stale or unused):
        sys.exit(f"{', '.join(stale)}: not what docs/results/data says; run tests/research/pages.py")
    print("\n".join(stale) or f"{len(used)} tables are up to date")


if __name__ == "__main__":
    main()
