#!/usr/bin/env python3
"""Weights and activations of 4 to 8 bits alike, per channel and token, emulated with PyTorch.

    tests/research/quality_uniform_bits.py --small DIR [--eval DIR] [--out FILE] [--device cuda]

No hardware multiplies 5 or 6 bits, so libmoert has no such schemes; what uniform W5A5 and W6A6 would
lose is measured in fp32 arithmetic on rounded values: routed experts' weights symmetric per output
channel with the range that moert's round to nearest chooses, activations symmetric per token, with
and without block Hadamard transforms of 128. 4 and 8 bits are also what w4a4 and w8a8 packs score,
so the emulation can be held against the real thing. Fills "emulated ..." in
docs/results/data/quality-plans.json, which quality_allocator.py page shows.
"""
import argparse
import pathlib

import torch
import transformers

import quality_lib as lib

BLOCK = 128
WINDOW = 512


def hadamard(size):
    """Sylvester's, normalized, its columns' signs flipped at random (fixed seed)."""
    h = torch.ones(1, 1)
    while h.shape[0] < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    signs = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(1)) * 2 - 1
    return h * signs / size**0.5


def transform(x, h):
    return (x.unflatten(-1, (-1, BLOCK)) @ h.T).flatten(-2)


def round_weights(w, bits):
    """[..., out, in]: one scale an output channel, of 100 ranges the one of the least error."""
    top = 2 ** (bits - 1) - 1
    largest = w.abs().amax(-1, keepdim=True)
    best, least = torch.zeros_like(w), torch.full_like(largest, float("inf"))
    for i in range(100):
        scale = (largest * (1 - 0.8 * i / 100) / top).bfloat16().float().clamp_min(1e-20)
        q = (w / scale).round().clamp(-top - 1, top) * scale
        error = (q - w).abs().pow(2.4).sum(-1, keepdim=True)
        better = error < least
        best, least = torch.where(better, q, best), torch.where(better, error, least)
    return best


def round_activations(x, bits):
    top = 2 ** (bits - 1) - 1
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / top
    return (x / scale).round().clamp(-top, top) * scale


class Experts(torch.nn.Module):
    """In place of a layer's experts."""

    def __init__(self, original, bits, h):
        super().__init__()
        self.act, self.bits, self.h = original.act_fn, bits, h
        gate_up, down = original.gate_up_proj.data, original.down_proj.data
        if h is not None:
            gate_up, down = transform(gate_up, h), transform(down, h)
        if bits < 16:
            gate_up, down = round_weights(gate_up, bits), round_weights(down, bits)
        self.gate_up, self.down = gate_up, down

    def rounded(self, x):
        if self.h is not None:
            x = transform(x, self.h)
        return round_activations(x, self.bits) if self.bits < 16 else x

    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states)
        for e in range(self.gate_up.shape[0]):
            token, slot = torch.where(top_k_index == e)
            if len(token) == 0:
                continue
            gate, up = (self.rounded(hidden_states[token]) @ self.gate_up[e].T).chunk(2, -1)
            y = self.rounded(self.act(gate) * up) @ self.down[e].T
            out.index_add_(0, token, y * top_k_weights[token, slot, None].to(y.dtype))
        return out


@torch.no_grad()
def window_nll(model, ids, device):
    out = []
    for first in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = ids[first:first + WINDOW].to(device)
        logits = model(window[None]).logits[0, :-1].float()
        out.append(round(torch.nn.functional.cross_entropy(logits, window[1:]).item(), 4))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", required=True)
    parser.add_argument("--eval", default=str(lib.ROOT / "tests" / "data" / "eval"))
    parser.add_argument("--out", type=pathlib.Path,
                        default=lib.ROOT / "docs" / "results" / "data" / "quality-plans.json")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    texts = {d: torch.frombuffer(bytearray((pathlib.Path(args.eval) /
                                            f"{d}.tokens.u16").read_bytes()),
                                 dtype=torch.uint16).long() for d in lib.DOMAINS}
    data = lib.load(args.out)
    for bits in [5, 6, 4, 8, 16]:
        for rotate in [True, False]:
            name = f"emulated w{bits}a{bits}" + (" hadamard" if rotate else "")
            if name in data or (bits == 16 and rotate):
                continue
            model = transformers.AutoModelForCausalLM.from_pretrained(
                args.small, dtype=torch.float32).to(args.device).eval()
            h = hadamard(BLOCK).to(args.device) if rotate else None
            for layer in model.model.layers:
                layer.mlp.experts = Experts(layer.mlp.experts, bits, h)
            nll = {d: window_nll(model, texts[d], args.device) for d in lib.DOMAINS}
            data[name] = {"stored_bits": bits + (16 / 256 * 2 + 16 / 128) / 3 if bits < 16 else 16,
                          "nll": nll}
            lib.save(args.out, data)
            print(name, {d: round(lib.perplexity(v), 3) for d, v in nll.items()}, flush=True)


if __name__ == "__main__":
    main()
