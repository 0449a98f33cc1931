#!/usr/bin/env python3
"""First evenings on three emulated machines with a real GPU: our command line and Python, expected beside measured speed.

    tests/research/first_evening_gpu.py --build build/cuda [--gbps 25] [--folder DIR] [--json FILE]

A checkpoint of Qwen3-30B-A3B's layers with random weights stands for a published model: the card holds the same share of
its experts, and pinned RAM the share that the machine's RAM holds. Another program moves pinned memory to the device at
--gbps meanwhile, so that a faster link stands for PCIe 4; 0: none does. `moert-bench probe` measures the link that is
left; the time of a layer is that of the same command when everything is on the card. The simulator, told both and a
recorded run's routing, expects a speed; the wall clock measures it: tokens over time, and medians of the steps. Records
that RAM has no room for come from the file, at the rate at which the library reads as many experts again and again here:
from the page cache, where the machine has more RAM than the emulated one, and from the processor's where they are few.
"""
import argparse
import ctypes
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import side_by_side
from first_evening import MACHINES, ROOT, Tools, compare, finish, run

EXPERTS = 128
SHAPE = ["--hidden", "2048", "--intermediate", "768", "--experts", str(EXPERTS), "--top-k", "8", "--heads", "32", "--head-dim", "128"]
PIECE = 9 << 20  # bytes: an expert in bf16


def record_rate(tools, share, seconds=1):
    """Bytes a second at which the library reads a share of a checkpoint's experts, again and again in any order."""
    library, order = ctypes.CDLL(str(tools.library)), random.Random(1)
    library.moert_source_read.argtypes = [ctypes.c_void_p, *[ctypes.c_int32] * 3, ctypes.c_void_p, ctypes.c_uint64,
                                          ctypes.c_void_p]
    source, record = ctypes.c_void_p(), ctypes.create_string_buffer(PIECE)
    codes = {library.moert_source_open(os.fsencode(tools.model), None, ctypes.byref(source), None)}
    places = [(layer, expert) for layer in range(tools.layers) for expert in range(EXPERTS)]
    places = order.sample(places, max(1, round(share * len(places))))
    read = lambda place: codes.add(library.moert_source_read(source, *place, 0, record, PIECE, None))
    for place in places:  # and the buffer is touched, as pinned memory has been
        read(place)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        read(order.choice(places))
        count += 1
    rate = count * PIECE / (time.perf_counter() - begin)
    library.moert_source_destroy(source)
    if codes != {0}:
        sys.exit(f"{tools.model}: experts cannot be read: codes {codes}")
    return rate


def made_checkpoint(folder, layers):
    path = folder / f"layers-{layers}"
    if not path.exists():
        subprocess.run([sys.executable, ROOT / "tests/slow/make_checkpoint.py", path, "--layers", str(layers), *SHAPE], check=True)
    return path


def measured_profile(tools, folder):
    """The machine as probe sees it, its time of a layer replaced by the model's own; the model's routing."""
    profile, trace = folder / "machine.json", folder / "routing.trace"
    run([str(tools.bin / "moert-bench"), "probe", "--backend", "cuda", "--dir", str(folder), "--file-size", "64MiB",
         "--seconds", "20", "--repeats", "3", "--tokens", "1,2", "--schemes", "bf16", "--quiet", "--json", str(profile)])
    whole = ["--budget", "100%", "--strategy", "on-demand"]
    own = tools.score(*whole)["tpot_ms"]["p50"]
    tools.score(*whole, "--trace", str(trace))
    known = json.loads(profile.read_text())
    known.update(decode_layer_ns=1e6 * own / tools.layers, compute=[], version_compute={}, cpu_executor=False)
    return known, own, trace


def evening(tools, machine, folder, known, own, trace):
    print(machine.title())
    share = f"{100 * machine.share:.0f}%"
    link, disk = known["link_bytes_per_s"], record_rate(tools, 1 - machine.pinned)
    profile, report = folder / "evening.json", folder / "sim.json"
    profile.write_text(json.dumps({**known, "file_bytes_per_s": disk}))
    flags = ["--budget", share, "--strategy", "on-demand", "--host-budget", str(int(machine.pinned * tools.experts_bytes))]
    run([str(tools.bin / "moert-sim"), "--trace", str(trace), "--profile", str(profile), *flags, "--force", "--json", str(report)])
    steps, expected = tools.score(*flags)["tpot_ms"], json.loads(report.read_text())["tpot_ms"]
    tools.python(*flags)
    medians = {"expected_median_tokens_per_s": 1e3 / expected["p50"], "median_tokens_per_s": 1e3 / steps["p50"]}
    print(", ".join(f"{name} {speed:.2f}" for name, speed in medians.items()))
    return compare(machine, 1e3 / expected["mean"], 1e3 / steps["mean"], **medians, link_gbps=link * 1e-9, file_gbps=disk * 1e-9,
                   pinned=machine.pinned, own_ms=own)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cuda")
    parser.add_argument("--gbps", type=float, default=25, help="taken from the link")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--folder", type=pathlib.Path, help="where the checkpoint is kept")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    options.copier = options.build / "lab/moert-copier" if options.gbps > 0 else None
    with tempfile.TemporaryDirectory() as name, side_by_side.copier(options):
        folder = pathlib.Path(name)
        model = made_checkpoint(options.folder or folder, options.layers)
        tools = Tools(options.build / "bin", options.build / "capi/libmoert.so", model, options.tokens, "--backend", "cuda")
        tools.doctor()
        known = measured_profile(tools, folder)
        rows = [evening(tools, machine, folder, *known) for machine in MACHINES]
    finish(rows, options.json)


if __name__ == "__main__":
    main()
