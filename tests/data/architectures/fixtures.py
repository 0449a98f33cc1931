"""What make_fixtures.py and make_recent_fixtures.py share: the cases, and how files are written."""
import json
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = 3
CASES = {"short": (10, 15), "long": (20, 24)}  # name: tokens in the prefill, tokens in all
SEEDS = range(12)
BASE = dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
            bos_token_id=1, eos_token_id=2)


def answer(model, tokens, prefill):
    """The logits of a prefill and of decode steps with the cache."""
    with torch.no_grad():
        out = model(tokens[:, :prefill], use_cache=True)
        logits, cache = [out.logits], out.past_key_values
        for i in range(prefill, tokens.shape[1]):
            out = model(tokens[:, i:i + 1], past_key_values=cache, use_cache=True)
            logits.append(out.logits)
            cache = out.past_key_values
    return torch.cat(logits, 1).contiguous()


def expect(model, generator):
    """The tensors of expected.safetensors."""
    expected = {}
    for case, (prefill, length) in CASES.items():
        tokens = torch.randint(0, 128, (BATCH, length), generator=generator)
        expected[case + ".tokens"] = tokens.to(torch.int32)
        expected[case + ".prefill"] = torch.tensor([prefill], dtype=torch.int32)
        expected[case + ".logits"] = answer(model, tokens, prefill)
    return expected


def folder_of(name):
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    return folder


def write_json(path, content):
    with open(path, "w") as f:
        json.dump(content, f, indent=2, sort_keys=True)
        f.write("\n")
