"""Quantized checkpoints of transformers models: experts by libmoert as the file has them, the rest
by transformers. Compared with a model whose experts hold the same values."""
import json
import pathlib
import re
import sys
import tempfile
import unittest

import torch
import transformers

import moert

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/data/quantized"))
import make_fixtures  # noqa: E402
import models  # noqa: E402
import numpy as np  # noqa: E402

transformers.logging.set_verbosity_error()
SHAPE = dict(hidden_size=256, moe_intermediate_size=32, num_hidden_layers=2, head_dim=64)
IDS = torch.randint(3, 100, (2, 9), generator=torch.Generator().manual_seed(1))
# Activations are rounded as well, in these.
ROUNDED = {"int8"}


def ways(folder, routings=(None, "host"), **options):
    engine = dict(budget="50%", numerics="f32", cache_dir=folder + "/cache", **options)
    for routing in routings:
        yield moert.from_pretrained(folder, dtype=torch.float32, routing=routing, **engine)


class Forms(unittest.TestCase):
    def check(self, name, attention=False):
        """A model with experts in this form, and attention: every matrix as codes, and as the
        values that they are."""
        maker, quantization = make_fixtures.FORMS[name]
        model, random = models.make("Qwen3Moe", **SHAPE), np.random.default_rng(5)
        state = model.state_dict()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model.safetensors")
            packed = {}
            for layer in range(2):
                prefix = f"model.layers.{layer}.mlp.experts."
                gate_up = state[prefix + "gate_up_proj"]
                for expert in range(len(gate_up)):
                    for part, place in (("gate_proj", gate_up[expert, :32]),
                                        ("up_proj", gate_up[expert, 32:]),
                                        ("down_proj", state[prefix + "down_proj"][expert])):
                        tensors, values = maker(random, *place.shape)
                        values = torch.from_numpy(np.ascontiguousarray(values, np.float32))
                        place.copy_(values)
                        for suffix, value in tensors.items():
                            packed[f"{prefix}{expert}.{part}.{suffix}"] = value
            for key, value in state.items():
                if attention and re.search("[qkvo]_proj", key):
                    tensors, values = maker(random, *value.shape)
                    value.copy_(torch.from_numpy(np.ascontiguousarray(values, np.float32)))
                    packed |= {key.removesuffix("weight") + s: t for s, t in tensors.items()}
                elif ".experts." not in key:
                    bits = value.bfloat16().view(torch.int16).numpy()
                    packed[key] = make_fixtures.Bf16(bits)
            make_fixtures.write(path, packed)
            model.config.save_pretrained(folder)
            config = json.loads(pathlib.Path(folder, "config.json").read_text())
            config["quantization_config"] = quantization
            pathlib.Path(folder, "config.json").write_text(json.dumps(config))
            with torch.no_grad():
                plain = model(IDS).logits
                for mine in ways(folder):
                    self.near(name, mine(IDS).logits, plain)
                engine = moert.attach(model, folder, budget="50%", numerics="f32",
                                      cache_dir=folder + "/cache")
                self.near(name, model(IDS).logits, plain)
                self.assertNotEqual(engine._source.versions()[0][0], "bf16")

    def near(self, name, mine, plain):
        difference = (mine - plain).abs().max() / plain.abs().max()
        print(f"{name}: {difference:.1e}")
        self.assertLess(difference, 0.05 if name in ROUNDED else 1e-4)


for _name in make_fixtures.FORMS:
    def _test(self, name=_name):
        self.check(name)
    setattr(Forms, f"test_{_name}", _test)


def _attention(self):
    self.check("fp8_blocks", attention=True)


Forms.test_fp8_everywhere = _attention


class Fixtures(unittest.TestCase):
    """Checkpoints of tests/data/architectures; transformers dequantizes its own."""

    def check(self, name, limit):
        folder = str(ROOT / "tests/data/architectures" / name)
        with tempfile.TemporaryDirectory() as cache, torch.no_grad():
            reference = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32).float().eval()
            ids = IDS % reference.config.vocab_size
            plain = reference(ids).logits
            for routing in (None, "host"):
                mine = moert.from_pretrained(folder, dtype=torch.float32, routing=routing,
                                             budget="50%", numerics="f32", cache_dir=cache)
                difference = (mine(ids).logits - plain).abs().max() / plain.abs().max()
                print(f"{name}: {difference:.1e}")
                self.assertLess(difference, limit)

    def test_mxfp4(self):
        self.check("gpt_oss", 1e-4)

    def test_blocks_that_are_cut(self):
        """transformers takes (160, 128) in two blocks of 128 rows for blocks of 80."""
        with self.assertRaisesRegex(ValueError, r"proj.weight is .*160.*blocks of \[128, 128\]"):
            moert.from_pretrained(ROOT / "tests/data/architectures/qwen3_moe_fp8")


if __name__ == "__main__":
    unittest.main()
