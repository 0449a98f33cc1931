#!/usr/bin/env python3
"""One sitting for README's table: every row on one card at one commit.

    readme_sitting.py --build DIR --llama DIR --models DIR --kernels DIR --out DIR [--parts grouped served ...]
    readme_sitting.py --take DIR    puts what a sitting left into docs/results/data

DIRs: a build of preset cuda; bin of a llama.cpp b11434 that loads backends (llama-bench, llama-batched-bench); for
recorded.gguf and uniform.gguf of big_gguf, 16 layers; the kernels of grouped_rivals.py. --plugin is the plug-in for that
llama.cpp, --python one that has FreeToken, after its `bench bw --model recorded.gguf --cpu-threads 13`. README does not
show parts fp8 and bf16: fp8, which needs the package deep_gemm, is in docs/results/rivals.md; bf16 needs a bf16.gguf of 8
layers and its `bench bw`.
Parts that the output has are not measured again, so that a sitting may have several calls.
"""
import argparse
import json
import pathlib
import subprocess
import sys

import grouped_core
import report
import served_h200
import sharing_h200
import side_by_side

HERE = pathlib.Path(__file__).resolve().parent
SITTINGS = {"rivals": "sitting-readme.json", "shared": "sitting-readme-shared.json", "bf16": "sitting-freetoken-bf16.json"}
PARTS = ("grouped", "served", "sharing", "fp8", *SITTINGS)
ROUNDS = 2


def rounds(options, tokens, ours, programs):
    """Rounds of our products and the rivals', in turns."""
    bench = [options.build / "bin" / "moert-bench", "gemm", "--backend", "cuda", "--shape", "qwen3-30b", "--zipf", "0", "--batch",
             tokens, *ours, "--repeats", "7", "--force", "--quiet", "--json", options.out / "gemm.tmp"]
    rivals = [options.python, HERE / "grouped_rivals.py", options.kernels, "--tokens", tokens, "--programs", programs]
    found = []
    for _ in range(ROUNDS):
        side_by_side.output(list(map(str, bench)))
        lines = side_by_side.output(list(map(str, rivals))).splitlines()
        found.append({"ours": grouped_core.kept(options.out / "gemm.tmp"),
                      "rivals": [json.loads(line) for line in lines if line.startswith("{")]})
    (options.out / "gemm.tmp").unlink()
    return {"rounds": found}


def grouped(options):
    return rounds(options, "8,512,8192", ("--schemes", "bf16,w4a16_g128"), "triton_bf16,torch_bf16,marlin_w4")


def fp8(options):
    return rounds(options, "512,2048,8192", ("--schemes", "fp8_b128", "--numerics", "fp8"), "triton_fp8,deepgemm_fp8,deepgemm_fp8_act")


def served(options):
    data = {"runs": {}}
    found = served_h200.run(str(options.build / "bin" / "moert-bench"), "qwen3-30b:12", ["--batch", "1", "--graph"],
                            ("fate", "on-demand", "on-demand+importance.residency"), repeats=3)
    served_h200.keep(data, "qwen3-30b:12 1 graph", found)
    return data


def sharing(options):
    bench = str(options.build / "bin" / "moert-bench")
    return {"runs": {sharing_h200.name_of(workload, batch, 0, "free"): sharing_h200.run(bench, workload, batch, repeats=3)
                     for batch in (1, 8) for workload in ("mixed", "uniform")}}


def beside(options, part):
    values = {"llama_bench": options.llama / "llama-bench", "batched_bench": options.llama / "llama-batched-bench",
              "plugin": options.plugin, "recorded": options.models / "recorded.gguf",
              "uniform": options.models / "uniform.gguf", "bf16": options.models / "bf16.gguf", "python": options.python,
              "freetoken_decode": HERE / "freetoken_decode.py", "llama_cpp_version": "b11434",
              "freetoken_version": "FreeToken 0.2.1"}
    plan = "freetoken-bf16.json" if part == "bf16" else "readme.json"
    command = [sys.executable, HERE / "side_by_side.py", HERE / "sittings" / plan, "--out", options.out / SITTINGS[part],
               "--rounds", ROUNDS, *(word for pair in values.items() for word in ("--set", "=".join(map(str, pair))))]
    if part == "shared":
        command += ["--cells", "decode, 25 %", "--copier", options.build / "lab" / "moert-copier"]
    without = ["FreeToken"] if part == "shared" else options.without
    if without:
        command += ["--without", *without]
    if options.device:
        command += ["--device", json.dumps(options.device)]
    subprocess.run(list(map(str, command)), check=True)


def measure(options):
    card = side_by_side.device(options)
    for part in options.parts:
        if part in SITTINGS:
            beside(options, part)
            continue
        path = options.out / f"readme-{part}.json"
        if not path.exists():
            data = {"card": card["card"], **globals()[part](options)}
            path.write_text(json.dumps(data) + "\n", encoding="utf-8")
        print(path.name, "is there", flush=True)


def take(folder):
    parts = {path.stem.removeprefix("readme-"): json.loads(path.read_text(encoding="utf-8"))
             for path in sorted(folder.glob("readme-*.json"))}
    of_others = parts.pop("fp8", None)
    if parts:
        (report.DATA / "readme.json").write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    if of_others:
        (report.DATA / "grouped-fp8.json").write_text(json.dumps(of_others, indent=1) + "\n", encoding="utf-8")
    for name in (name for name in SITTINGS.values() if (folder / name).exists()):
        (report.DATA / name).write_text((folder / name).read_text(encoding="utf-8"), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=pathlib.Path)
    for name in ("build", "llama", "models", "kernels", "out", "plugin"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--without", nargs="+", default=[], metavar="PROGRAM")
    parser.add_argument("--device", type=json.loads, help="as side_by_side.py takes it")
    options = parser.parse_args()
    if options.take:
        return take(options.take)
    options.out.mkdir(parents=True, exist_ok=True)
    measure(options)


if __name__ == "__main__":
    main()
