#!/usr/bin/env python3
"""Times the jobs that come before serving, whole programs as a user starts them: quantize by every method,
calibrate, the first open. Each runs over checkpoints of one shape with few layers (make_checkpoint.py). What a
model of --whole layers would take is a line through the smallest and the largest of them, and marked as such.
With three checkpoints and more, calibrate's is a fit of a + b n + c n (n - 1) / 2 for n layers: so often a pair of
the probe's copies passes a layer.

    offline_times.py BIN_DIR --models model-1 model-3 --work DIR --json FILE [--limit SECONDS] [--jobs NAME...]
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import time

TEXTS = sorted((pathlib.Path(__file__).resolve().parents[1] / "data/eval").glob("*.txt"))


def jobs(threads):
    """name -> what is run; {model} and {out} are filled in."""
    texts = ",".join(map(str, TEXTS))
    quantize = f"moert-pack quantize --model {{model}} --out {{out}} --threads {threads} --schemes"
    open_ = "moert-run generate --model {model} --cache {out} --prompt The --max-tokens 1 --quiet"
    return {
        "rtn": f"{quantize} w4a16_g128 --method rtn --backend cuda",
        "rtn-cpu": f"{quantize} w4a16_g128 --method rtn --backend cpu",
        "hqq": f"{quantize} w4a16_g128 --method hqq --backend cuda",
        "hqq-cpu": f"{quantize} w4a16_g128 --method hqq --backend cpu",
        "open": f"{open_} --budget 2G",
        "open-as": f"{open_} --budget 2G --as w4a16_g128",
        "gptq": f"{quantize} w4a16_g128 --method gptq --backend cuda --tokens {texts}",
        "calibrate": f"moert-pack calibrate --model {{model}} --out {{out}} --threads {threads} --backend cuda "
                     f"--tokens {texts}",
        "calibrate-rtn": f"moert-pack calibrate --model {{model}} --out {{out}} --threads {threads} --backend cuda "
                         f"--method rtn --schemes w4a16_g128,w2a16_g64_asym --probe-tokens 0 --tokens {texts}",
    }


def expert_bytes(model):
    c = json.loads((model / "config.json").read_text())
    return c["num_hidden_layers"] * c["num_experts"] * 3 * c["hidden_size"] * c["moe_intermediate_size"] * 2


def layers_of(model):
    return json.loads((model / "config.json").read_text())["num_hidden_layers"]


def remove(path):
    shutil.rmtree(path, ignore_errors=True)
    for left in path.parent.glob(path.name + "*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def run(command, bin_dir, log, limit):
    """Seconds, processor seconds and the largest resident size in MiB; None if it did not end well."""
    words = command.split()
    words[0] = str(bin_dir / words[0])
    begin = time.monotonic()
    with open(log, "w") as out:
        job = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)
        while True:
            pid, status, usage = os.wait4(job.pid, os.WNOHANG)
            if pid != 0:
                break
            if time.monotonic() - begin > limit:
                job.kill()
            time.sleep(0.02)
    job.returncode = os.waitstatus_to_exitcode(status)
    if job.returncode != 0:
        return None
    return {"seconds": round(time.monotonic() - begin, 2),
            "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1), "peak_mib": usage.ru_maxrss // 1024}


def solve(m):
    """Of linear equations, each a row of coefficients with its right side."""
    for i in range(len(m)):
        pivot = max(range(i, len(m)), key=lambda r: abs(m[r][i]))
        m[i], m[pivot] = m[pivot], m[i]
        for r in range(len(m)):
            if r != i:
                m[r] = [x - y * m[r][i] / m[i][i] for x, y in zip(m[r], m[i])]
    return [row[-1] / row[i] for i, row in enumerate(m)]


def whole_by_pairs(rows, layers):
    """Of `layers` layers, by least squares of start, layers and pairs that pass one."""
    terms = [lambda n: 1, lambda n: n, lambda n: n * (n - 1) / 2]
    fit = solve([[sum(f(r["layers"]) * g(r["layers"]) for r in rows) for g in terms]
                 + [sum(f(r["layers"]) * r["seconds"] for r in rows)] for f in terms])
    return {"layers": layers, "seconds_at_start": round(fit[0], 2), "seconds_a_layer": round(fit[1], 2),
            "seconds_a_pair": round(fit[2], 3), "seconds": round(sum(c * f(layers) for c, f in zip(fit, terms)), 1),
            "extrapolated": True}


def whole(rows, layers):
    """Of `layers` layers, by a line through the first and the last row."""
    first, last = rows[0], rows[-1]
    if first["layers"] == last["layers"]:
        return None
    each = (last["seconds"] - first["seconds"]) / (last["layers"] - first["layers"])
    return {"layers": layers, "seconds_a_layer": round(each, 2),
            "seconds": round(first["seconds"] + each * (layers - first["layers"]), 1), "extrapolated": True}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bin_dir", type=pathlib.Path)
    p.add_argument("--models", type=pathlib.Path, nargs="+", required=True)
    p.add_argument("--work", type=pathlib.Path, required=True, help="for packs, which are removed")
    p.add_argument("--json", type=pathlib.Path, required=True)
    p.add_argument("--whole", type=int, default=48, help="layers of the model that is extrapolated to")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--limit", type=float, default=1e9, help="seconds for all of it; what does not fit is left out")
    p.add_argument("--jobs", nargs="+", default=list(jobs(1)), choices=list(jobs(1)))
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(a.work / "cache")
    end = time.monotonic() + a.limit
    models = sorted(a.models, key=layers_of)
    result = {"threads": a.threads, "jobs": {}}
    for name in a.jobs:
        rows = []
        for model in models:
            out = a.work / "out"
            remove(out)
            command = jobs(a.threads)[name].format(model=model, out=out)
            left = end - time.monotonic()
            found = run(command, a.bin_dir, a.work / f"{name}-{layers_of(model)}.log", left) if left > 1 else None
            remove(out)
            if found is None:
                print(f"{name} {layers_of(model)} layers: not done", flush=True)
                continue
            found |= {"layers": layers_of(model), "bytes_per_s": round(expert_bytes(model) / found["seconds"])}
            rows.append(found)
            print(f"{name} {found['layers']} layers: {found['seconds']} s, {found['bytes_per_s'] / 1e9:.2f} GB/s, "
                  f"{found['processor_seconds']} s of processors, peak {found['peak_mib']} MiB", flush=True)
        if rows:
            result["jobs"][name] = {"command": jobs(a.threads)[name].replace(str(TEXTS[0].parents[3]) + "/", ""),
                                    "rows": rows, "whole": (whole_by_pairs if name == "calibrate" and
                                                            len({r["layers"] for r in rows}) > 2
                                                            else whole)(rows, a.whole)}
            if result["jobs"][name]["whole"]:
                w = result["jobs"][name]["whole"]
                print(f"{name} {w['layers']} layers: {w['seconds']} s, extrapolated", flush=True)
        a.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
