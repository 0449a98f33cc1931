#!/usr/bin/env python3
"""Peak host memory of a transformers model on the CPU, loaded and run: by transformers, and with its experts
held by libmoert at several budgets.

  host_memory.py write DIR [--layers 10] [--experts 64] [--hidden 1024] [--width 512]
  host_memory.py measure MODEL_DIR [--budgets 100% 50% 25% 10%] [--prompt 512] [--tokens 16]
                         [--repeats 3]

`write` makes a Qwen3-MoE checkpoint with random weights, 2 GiB by default, one tensor at a time. `measure`
starts a process for each configuration and prints what it grew by since its imports, MiB, medians: at most,
with the pages of mapped files; at most and at the end, without them; and what the engine held at most.
"""
import argparse
import json
import pathlib
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import threading

HEADS, KV_HEADS, HEAD = 16, 4, 64


def config(args):
    return {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16",
            "vocab_size": args.vocabulary, "hidden_size": args.hidden, "intermediate_size": 4 * args.width,
            "num_hidden_layers": args.layers, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "num_experts": args.experts,
            "num_experts_per_tok": 8, "moe_intermediate_size": args.width, "norm_topk_prob": True,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
            "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu"}


def outer_tensors(args):
    return {"model.embed_tokens.weight": (args.vocabulary, args.hidden),
            "lm_head.weight": (args.vocabulary, args.hidden), "model.norm.weight": (args.hidden,)}


def layer_tensors(args, layer):
    hidden, at = args.hidden, f"model.layers.{layer}."
    shapes = {at + "input_layernorm.weight": (hidden,),
              at + "post_attention_layernorm.weight": (hidden,),
              at + "self_attn.q_proj.weight": (HEADS * HEAD, hidden),
              at + "self_attn.k_proj.weight": (KV_HEADS * HEAD, hidden),
              at + "self_attn.v_proj.weight": (KV_HEADS * HEAD, hidden),
              at + "self_attn.o_proj.weight": (hidden, HEADS * HEAD),
              at + "self_attn.q_norm.weight": (HEAD,), at + "self_attn.k_norm.weight": (HEAD,),
              at + "mlp.gate.weight": (args.experts, hidden)}
    for expert in range(args.experts):
        for name, shape in (("gate", (args.width, hidden)), ("up", (args.width, hidden)),
                            ("down", (hidden, args.width))):
            shapes[f"{at}mlp.experts.{expert}.{name}_proj.weight"] = shape
    return shapes


def values(count, vector):
    """bf16. Of vectors 1, of matrices random values of either sign in [1/64, 1/32)."""
    if vector:
        return struct.pack("<H", 0x3f80) * count
    keep = int.from_bytes(struct.pack("<H", 0x807f) * count, "little")
    base = int.from_bytes(struct.pack("<H", 0x3c80) * count, "little")
    return (int.from_bytes(random.randbytes(2 * count), "little") & keep | base).to_bytes(2 * count, "little")


def elements(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def write_file(path, shapes):
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 2 * elements(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            file.write(values(elements(shape), len(shape) == 1))


def write(args):
    random.seed(1)
    folder = pathlib.Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = {"outer.safetensors": outer_tensors(args)}
    files.update({f"layer{i}.safetensors": layer_tensors(args, i) for i in range(args.layers)})
    for name, shapes in files.items():
        write_file(folder / name, shapes)
    places = {tensor: name for name, shapes in files.items() for tensor in shapes}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config(args), indent=1))


class Memory:
    """What this process has grown by since the object was made, in bytes."""

    def __init__(self):
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts here
        self._resident, self._anonymous = self._now("VmRSS"), self.anonymous_now()
        self._most = 0
        threading.Thread(target=self._watch, daemon=True).start()

    @staticmethod
    def _now(field):
        text = pathlib.Path("/proc/self/status").read_text()
        return int(re.search(field + r":\s+(\d+) kB", text)[1]) * 1024

    def anonymous_now(self):
        return self._now("RssAnon") + self._now("RssShmem")

    def _watch(self):
        pause = threading.Event()
        while not pause.wait(0.002):
            self._most = max(self._most, self.anonymous_now())

    def grown(self):
        """At most; at most without mapped files; now without mapped files."""
        now = self.anonymous_now()
        return [self._now("VmHWM") - self._resident, max(self._most, now) - self._anonymous,
                now - self._anonymous]


def run(args):
    """One configuration, in a process of its own."""
    import torch
    import transformers

    import moert
    import moert.transformers
    transformers.logging.set_verbosity_error()
    memory = Memory()
    if args.budget == "none":
        model = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype="auto")
    else:
        model = moert.from_pretrained(args.folder, budget=args.budget, routing=args.routing,
                                      cache_dir=args.cache)
    torch.manual_seed(1)
    prompt = torch.randint(3, 256, (1, args.prompt))  # long enough to name most experts
    model.generate(prompt, max_new_tokens=args.tokens, min_new_tokens=args.tokens, do_sample=False)
    engine = model.moert.stats().peak_bytes if args.budget != "none" else 0
    print(json.dumps(memory.grown() + [engine]))


def measure(args):
    with tempfile.TemporaryDirectory(dir=args.scratch) as cache:
        configurations = [("transformers", "none", "host")]
        for routing in ("library", "host"):
            configurations += [(f"libmoert, {budget}, routed by the {routing}", budget, routing)
                               for budget in args.budgets]
        print(f"{'':40}{'at most':>10}{'no files':>10}{'at the end':>12}{'engine':>10}")
        for name, budget, routing in configurations:
            command = [sys.executable, __file__, "run", args.folder, "--budget", budget, "--routing", routing,
                       "--cache", cache, "--prompt", str(args.prompt), "--tokens", str(args.tokens)]
            rows = []
            for _ in range(args.repeats):
                text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                rows.append(json.loads(text.splitlines()[-1]))
            most, anonymous, end, engine = (statistics.median(column) / 2**20 for column in zip(*rows))
            print(f"{name:40}{most:10.0f}{anonymous:10.0f}{end:12.0f}{engine:10.0f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("write", "measure", "run"))
    parser.add_argument("folder")
    for name, default in (("layers", 10), ("experts", 64), ("hidden", 1024), ("width", 512),
                          ("vocabulary", 32768), ("prompt", 512), ("tokens", 16), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--budgets", nargs="+", default=["100%", "50%", "25%", "10%"])
    for name in ("--budget", "--routing", "--cache", "--scratch"):
        parser.add_argument(name)
    args = parser.parse_args()
    {"write": write, "measure": measure, "run": run}[args.command](args)


if __name__ == "__main__":
    main()
