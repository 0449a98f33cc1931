#!/usr/bin/env python3
"""The tools and the C ABI under limits of memory and descriptors: done, or an error that says why.

  limits.py BIN MODEL FOLDER HOST

BIN: where the tools are. MODEL: a checkpoint. FOLDER: for own files. HOST: a program over the C ABI
that takes MODEL.
"""
import os
import pathlib
import resource
import shutil
import subprocess
import sys

MIB = 1 << 20


def run(command, limit, value):
    """Status, output and errors of a command with a limit; none: without."""

    def restrict():
        if limit is not None:
            resource.setrlimit(limit, (value, value))

    done = subprocess.run(command, capture_output=True, preexec_fn=restrict, timeout=300,
                          errors="replace")
    return done.returncode, done.stdout, done.stderr


def wrong(status, errors, output, expected):
    """What does not hold; None: nothing."""
    if status < 0:
        return f"killed by signal {-status}"
    if "terminate called" in errors:
        return "terminated by an exception"
    if status == 0:
        return None if output == expected else "another output, status 0"
    if status == 127 and "loading shared libraries" in errors:
        return None  # the loader had no room for the program
    if status not in (1, 2):
        return f"exit status {status}"
    return None if errors.strip() else "no message"


def main() -> int:
    bin_folder, model, folder, host = sys.argv[1:]
    work = pathlib.Path(folder)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    cache = work / "moert"
    os.environ["XDG_CACHE_HOME"] = str(work)  # the host's cache is `cache` then
    pack = work / "pack"
    subprocess.run([f"{bin_folder}/moert-pack", "quantize", "--quiet", "--model", model, "--out", pack,
                    "--schemes", "w4a16_g128", "--method", "rtn"], check=True)
    commands = {
        "host": [host, model],
        "generate": [f"{bin_folder}/moert-run", "generate", "--model", model, "--prompt", "The",
                     "--max-tokens", "4", "--temperature", "0", "--threads", "2", "--budget", "50%",
                     "--cache", str(cache), "--quiet"],
        "verify": [f"{bin_folder}/moert-pack", "verify", "--quiet", str(pack)],
    }
    problems = refused = done = 0
    for name, command in commands.items():
        status, expected, errors = run(command, None, 0)
        if status != 0:
            print(f"{name} fails without a limit: {errors}")
            return 1
        cases = [(resource.RLIMIT_NOFILE, "descriptors", n) for n in range(3, 14)]
        # Where the program itself does not fit, the kernel ends it before it begins.
        size = max(8 * MIB, os.path.getsize(command[0]) + 2 * MIB)
        while size < 3000 * MIB:
            cases.append((resource.RLIMIT_AS, "bytes of address space", size))
            size = size * 5 // 4
        for limit, what, value in cases:
            status, output, errors = run(command, limit, value)
            problem = wrong(status, errors, output, expected)
            done += status == 0
            refused += status != 0
            if problem is not None:
                problems += 1
                print(f"{name} with {value} {what}: {problem}: {errors.strip()[-300:]}")
        left = [p for p in work.rglob("*.tmp-*")]
        if left:
            problems += 1
            print(f"{name} leaves {left}")
    print(f"{done} done, {refused} refused, {problems} problems")
    return int(problems > 0 or done == 0 or refused == 0)


if __name__ == "__main__":
    os.environ["LC_ALL"] = "C"
    sys.exit(main())
