#!/usr/bin/env python3
"""The quality table: every width by every quantizer, plain and in the Hadamard domain.

    tests/research/quality_schemes.py measure --tiny DIR --small DIR --calib DIR --eval DIR [--work DIR]
                                       [--jobs N]
    tests/research/quality_schemes.py page

measure fills docs/results/data/quality-schemes.json (what is there already is not measured again), with --jobs
by so many processes of one thread; page writes build/report/schemes.md from it.
"""
import argparse
import pathlib
import shutil
import threading
from concurrent import futures

import quality_lib as lib
import report

SCHEMES = ["w8a16_g128", "w4a16_g128", "w3a16_g128_asym", "w2a16_g128_asym"]
METHODS = ["rtn", "hqq", "gptq"]
JSON = report.DATA / "quality-schemes.json"


def measure(args):
    tools = lib.Tools(args.binaries, args.work)
    threads = ["--threads", 1] if args.jobs > 1 else []
    lock = threading.Lock()
    # A pack is made by several threads, a file of one domain scored by one: with many jobs there is
    # always enough of either.
    with futures.ThreadPoolExecutor(args.jobs) as scorers, \
            futures.ThreadPoolExecutor(max(1, args.jobs // 2)) as groups:

        def score(model, *extra):
            return {d: scorers.submit(
                lambda d=d: lib.rounded(tools.window_nll(
                    model, pathlib.Path(args.eval) / f"{d}.tokens.u16", *threads, *extra)))
                    for d in lib.DOMAINS}

        def keep(name, key, stored_bits, nll):
            value = {"stored_bits": stored_bits, "nll": {d: f.result() for d, f in nll.items()}}
            with lock:
                data = lib.load(JSON)
                data.setdefault(name, {})[key] = value
                lib.save(JSON, data)
                print(name, key, {d: round(lib.perplexity(v), 3)
                                  for d, v in value["nll"].items()}, flush=True)

        def group(name, model, method, hadamard):
            label = method + ("+hadamard" if hadamard else "")
            done = lib.load(JSON).get(name, {})
            todo = [s for s in SCHEMES if f"{s} {label}" not in done]
            if not todo:
                return
            pack = tools.work / f"{name}-{label}"
            shutil.rmtree(pack, ignore_errors=True)
            shutil.rmtree(str(pack) + ".partial", ignore_errors=True)
            command = ["quantize", "--model", model, "--out", pack, "--schemes", ",".join(todo),
                       "--method", method, "--quiet"]
            command += ["--threads", max(2, args.jobs // 4)] if args.jobs > 1 else []
            command += ["--hadamard"] if hadamard else []
            if method == "gptq":
                command += ["--tokens", lib.calibration_files(args.calib)]
            tools.run("moert-pack", *command)
            bits = {v["name"]: v["stored_bits"] for v in tools.info(pack)["versions"]}
            cells = {s: score(model, "--experts", pack, "--strategy", f"resident:scheme={s}")
                     for s in todo}
            for scheme, nll in cells.items():
                keep(name, f"{scheme} {label}", round(bits[scheme], 4), nll)
            shutil.rmtree(pack)

        waiting = []
        for name, model in [("small-moe", args.small), ("tiny-moe", args.tiny)]:
            if not model:
                continue
            if "bf16" not in lib.load(JSON).get(name, {}):
                keep(name, "bf16", 16.0, score(model, "--strategy", "resident"))
            waiting += [groups.submit(group, name, model, method, hadamard)
                        for method in reversed(METHODS) for hadamard in [True, False]]
        for w in waiting:
            w.result()


def relation(entry, scheme, better, worse):
    """By how much `better` lowers the loss, over the windows of all domains."""
    m, half = lib.difference(lib.pooled(entry[f"{scheme} {better}"]["nll"]),
                             lib.pooled(entry[f"{scheme} {worse}"]["nll"]))
    word = "yes" if m + half < 0 else "no" if m - half > 0 else "within noise"
    return m, half, word


def table(name, entry):
    base = entry["bf16"]["nll"]
    lines = [f"### {name}", "", "| scheme | stored bits | quantizer | " + " | ".join(lib.DOMAINS) +
             " | loss over bf16, all windows |", "|---|---|---|" + "---|" * (len(lib.DOMAINS) + 1),
             "| bf16 | 16.00 | - | " + " | ".join(f"{lib.perplexity(base[d]):.3f}"
                                                   for d in lib.DOMAINS) + " | 0 |"]
    for scheme in SCHEMES:
        for hadamard in ["", "+hadamard"]:
            for method in METHODS:
                e = entry.get(f"{scheme} {method}{hadamard}")
                if not e:
                    continue
                m, half = lib.difference(lib.pooled(e["nll"]), lib.pooled(base))
                lines.append(f"| {scheme} | {e['stored_bits']:.2f} | {method}{hadamard} | " +
                             " | ".join(f"{lib.perplexity(e['nll'][d]):.3f}" for d in lib.DOMAINS) +
                             f" | {m:+.4f} ± {half:.4f} |")
    return lines + [""]


def relations(data):
    lines = ["### What should hold, and does it", "",
             "Differences of the mean loss over the windows of all domains, paired, with the 95 % "
             "interval.", "", "| model | expected | measured | holds |", "|---|---|---|---|"]
    for name, entry in data.items():
        if len(entry) < 2:
            continue
        base = lib.pooled(entry["bf16"]["nll"])
        worst = 0
        for method in METHODS:
            for hadamard in ["", "+hadamard"]:
                e = entry.get(f"w8a16_g128 {method}{hadamard}")
                if e:
                    worst = max([worst] + [abs(lib.perplexity(e["nll"][d]) /
                                               lib.perplexity(entry["bf16"]["nll"][d]) - 1)
                                           for d in lib.DOMAINS])
        lines.append(f"| {name} | w8 within 0.3 % of bf16's perplexity in every domain | worst "
                     f"{100 * worst:.3f} % | {'yes' if worst < 0.003 else 'no'} |")
        for better, worse, schemes in [("hqq", "rtn", SCHEMES[2:]), ("gptq", "hqq", SCHEMES[1:]),
                                       ("rtn+hadamard", "rtn", SCHEMES[1:]),
                                       ("hqq+hadamard", "hqq", SCHEMES[1:]),
                                       ("gptq+hadamard", "gptq", SCHEMES[1:])]:
            for scheme in schemes:
                if f"{scheme} {better}" in entry and f"{scheme} {worse}" in entry:
                    m, half, word = relation(entry, scheme, better, worse)
                    lines.append(f"| {name} | {scheme}: {better} loses less than {worse} | "
                                 f"{m:+.4f} ± {half:.4f} | {word} |")
    return lines + [""]


def page():
    data = lib.load(JSON)
    lines = ["## Widths and quantizers", "",
             "Perplexity of the whole evaluation files (63 windows of 512 tokens a domain; "
             "`moert-run ppl`, CPU backend, bf16 activations), routed experts quantized, "
             "everything else bf16. `gptq` is calibrated on 65,536 tokens of training text, a "
             "third of each domain, never on what is scored. Stored bits include scales, "
             "zeros and padding.", "",
             "    tests/research/quality_schemes.py measure --tiny DIR --small DIR --calib DIR --eval DIR",
             "    tests/research/quality_schemes.py page", ""]
    for name, entry in data.items():
        if len(entry) > 1:
            lines += table(name, entry)
    lines += relations(data)
    report.write("schemes", "\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "page"])
    parser.add_argument("--tiny", default=str(lib.ROOT / "examples" / "models" / "tiny-moe"))
    parser.add_argument("--small")
    parser.add_argument("--calib")
    parser.add_argument("--eval", default=str(lib.ROOT / "tests" / "data" / "eval"))
    parser.add_argument("--binaries", default=str(lib.ROOT / "build" / "dev" / "bin"))
    parser.add_argument("--work", default="build/quality")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    if args.what == "measure":
        if not args.calib:
            parser.error("measure needs --calib, a folder of calibration tokens")
        measure(args)
    page()


if __name__ == "__main__":
    main()
