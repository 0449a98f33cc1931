#!/usr/bin/env python3
"""Reconstruction errors of published quantizers, for tests/unit/quant/reference_packages_test.cc.

    python3 generate.py HQQ_DIR AUTO_GPTQ_DIR > reference.json

The folders are the unpacked PyPI packages hqq 0.2.8.post1 and auto-gptq 0.7.1; only their
arithmetic is imported (hqq/core/optimize.py, auto_gptq/quantization). Needs torch (CPU).
Matrices: gate projections of the bundled model's experts 0..7 side by side; inputs: the recorded
inputs of that layer's MoE block.
"""
import importlib.util
import json
import pathlib
import struct
import sys
import types

import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
LAYERS = [0, 4]
FORMS = [(4, 128), (3, 128), (2, 128), (2, 64)]


def tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    kinds = {"BF16": torch.bfloat16, "F32": torch.float32}

    def get(name):
        entry = header[name]
        begin, end = (8 + size + at for at in entry["data_offsets"])
        return torch.frombuffer(bytearray(data[begin:end]), dtype=kinds[entry["dtype"]]).reshape(
            entry["shape"]).float()
    return get


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def hqq_error(optimize, weights, bits, group):
    w = weights.reshape(-1, group)
    top = 2 ** bits - 1
    low, high = w.min(1, keepdim=True)[0], w.max(1, keepdim=True)[0]
    scale = (top / (high - low)).clamp(max=2e4)
    q, scale, zero = optimize.optimize_weights_proximal_legacy(w, scale, -low * scale, [0, top], 1)
    return ((q - zero) / scale - w).square().mean().item()


def gptq_error(gptq, weights, inputs, bits, group):
    layer = torch.nn.Linear(weights.shape[1], weights.shape[0], bias=False)
    layer.weight.data = weights.clone()
    solver = gptq.GPTQ(layer)
    solver.quantizer.configure(bits, perchannel=True, sym=False, mse=True)
    for row in inputs.split(16):
        solver.add_batch(row, None)
    solver.fasterquant(blocksize=128, percdamp=0.01, group_size=group)
    return ((layer.weight.data - weights) @ inputs.T).square().mean().item()


def main():
    hqq, auto_gptq = map(pathlib.Path, sys.argv[1:3])
    optimize = load("optimize", hqq / "hqq" / "core" / "optimize.py")
    stub = types.ModuleType("transformers")  # named by the package's isinstance checks only
    stub.Conv1D = type("Conv1D", (), {})
    stub.pytorch_utils = types.SimpleNamespace(Conv1D=stub.Conv1D)
    sys.modules["transformers"] = stub
    package = types.ModuleType("quantization")
    package.__path__ = [str(auto_gptq / "auto_gptq" / "quantization")]
    sys.modules["quantization"] = package
    load("quantization.quantizer", auto_gptq / "auto_gptq" / "quantization" / "quantizer.py")
    gptq = load("quantization.gptq", auto_gptq / "auto_gptq" / "quantization" / "gptq.py")
    torch.cuda.synchronize = lambda *_: None  # the package times itself
    model = tensors(ROOT / "examples" / "models" / "tiny-moe" / "model.safetensors")
    recorded = tensors(ROOT / "tests" / "data" / "eval" / "moe_io_wikitext2_256.safetensors")
    out = []
    for layer in LAYERS:
        weights = torch.cat([model(f"model.layers.{layer}.mlp.experts.{e}.gate_proj.weight")
                             for e in range(8)])
        inputs = recorded(f"layers.{layer}.gate_input")
        for bits, group in FORMS:
            out.append({"layer": layer, "bits": bits, "group": group,
                        "hqq_weight_mse": hqq_error(optimize, weights, bits, group),
                        "gptq_output_mse": gptq_error(gptq, weights, inputs, bits, group)})
    json.dump({"hqq": "0.2.8.post1", "auto_gptq": "0.7.1", "torch": torch.__version__,
               "errors": out}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
