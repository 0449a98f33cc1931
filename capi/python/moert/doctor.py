"""What is here: library, kernels, driver, memory, and the Python packages that this one works
with."""
import ctypes
import importlib.metadata
import json
import os
import pathlib
import platform
import sys

from . import _c, probe, sizes, tools, version

_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni",
          "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
_PACKAGES = ("torch", "transformers", "safetensors", "accelerate", "lm_eval", "vllm", "matplotlib")


def _text(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


def _cpu():
    first = _text("/proc/cpuinfo").split("\n\n")[0].splitlines()
    fields = dict(line.split(":", 1) for line in first if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    flags = set(fields.get("flags", "").split())
    return {"model": fields.get("model name", platform.processor() or platform.machine()),
            "features": [f for f in _FLAGS if f in flags]}


def _memory_limit():
    """Of the cgroup, in bytes; None: no limit below the machine's."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _text(path).strip()
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def _devices():
    """(driver's CUDA version, [(name, bytes)]) by the driver itself; ("", []) where there is
    none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "", []
    number, found = ctypes.c_int(), []
    if cuda.cuInit(0) != 0 or cuda.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return "", []
    driver = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if cuda.cuDeviceGetCount(ctypes.byref(number)) != 0:
        return driver, []
    for ordinal in range(number.value):
        device, name, total = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
        if (cuda.cuDeviceGet(ctypes.byref(device), ordinal) == 0 and
                cuda.cuDeviceGetName(name, len(name), device) == 0 and
                cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0):
            found.append((name.value.decode(errors="replace"), total.value))
    return driver, found


def _packages():
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _tools():
    found = {}
    for name in ("moert-run", "moert-pack"):
        try:
            found[name] = tools.path(name)
        except FileNotFoundError:
            found[name] = None
    return found


def examine():
    """Everything as plain data."""
    info = probe()
    driver, devices = _devices()
    return {
        "version": version(), "library": _c.PATH, "python": sys.version.split()[0],
        "platform": platform.platform(), "tools": _tools(), "packages": _packages(),
        "cpu": {**_cpu(), "usable_cpus": info.cpus, "kernels": info.kernels.decode().split(",")},
        "schemes": info.schemes.decode().split(","),
        "memory": {"bytes": info.memory_bytes, "available_bytes": info.memory_available_bytes,
                   "limit_bytes": _memory_limit()},
        "cuda": {"usable": bool(info.cuda_usable), "status": info.cuda_status.decode(),
                 "driver": driver,
                 "kernel_module": _text("/sys/module/nvidia/version").strip(),
                 "devices": [{"name": n, "bytes": b} for n, b in devices]},
        "cache": os.path.join(os.environ.get("XDG_CACHE_HOME") or
                              os.path.expanduser("~/.cache"), "moert"),
    }


def report(found):
    """The same as lines for people."""
    cpu, memory, cuda = found["cpu"], found["memory"], found["cuda"]
    limit = memory["limit_bytes"]
    rows = [
        ("library", f"{found['version']}, {found['library']}"),
        ("tools", ", ".join(path or f"no {name}" for name, path in found["tools"].items())),
        ("python", f"{found['python']} on {found['platform']}"),
        ("packages", ", ".join(f"{name} {v}" if v else f"no {name}"
                               for name, v in found["packages"].items())),
        ("CPU", f"{cpu['model']}, {cpu['usable_cpus']} usable"),
        ("features", " ".join(cpu["features"]) or "none that kernels use"),
        ("kernels", f"{cpu['kernels'][0]} (of {', '.join(cpu['kernels'])})"),
        ("memory", f"{sizes.text(memory['available_bytes'])} available of "
                   f"{sizes.text(memory['bytes'])}" +
                   (f", limited to {sizes.text(limit)}" if limit else "")),
        ("CUDA", "usable" if cuda["usable"] else cuda["status"]),
        ("driver", f"{cuda['kernel_module'] or 'version unknown'}, CUDA {cuda['driver']}"
                   if cuda["driver"] else "none"),
    ]
    rows += [("device", f"{d['name']}, {sizes.text(d['bytes'])}") for d in cuda["devices"]]
    rows += [("schemes", ", ".join(found["schemes"])), ("cache", found["cache"])]
    return "\n".join(f"{name:<9} {value}" for name, value in rows)


def main(arguments):
    if arguments not in ([], ["--json"]):
        print("usage: python -m moert doctor [--json]", file=sys.stderr)
        return 2
    found = examine()
    print(json.dumps(found, indent=2) if arguments else report(found))
    return 0
