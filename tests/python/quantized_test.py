"""Quantized checkpoints of transformers models: experts by libmoert as the file has them, the rest
by transformers. Compared with a model whose experts hold the same values."""
import json
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

import torch
import transformers

import moert
from moert import dense_forms
from safetensors.torch import load_file

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


def written(folder, name, attention):
    """A model whose experts, and attention, hold the values of the codes that the folder gets."""
    maker, quantization = make_fixtures.FORMS[name]
    model, random = models.make("Qwen3Moe", **SHAPE), np.random.default_rng(5)
    state, packed = model.state_dict(), {}

    def pack(base, place):
        tensors, values = maker(random, *place.shape)
        place.copy_(torch.from_numpy(np.ascontiguousarray(values, np.float32)))
        packed.update({base + suffix: t for suffix, t in tensors.items()})
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        gate_up = state[prefix + "gate_up_proj"]
        for expert in range(len(gate_up)):
            pack(f"{prefix}{expert}.gate_proj.", gate_up[expert, :32])
            pack(f"{prefix}{expert}.up_proj.", gate_up[expert, 32:])
            pack(f"{prefix}{expert}.down_proj.", state[prefix + "down_proj"][expert])
    for key, value in state.items():
        if attention and re.search("[qkvo]_proj", key):
            pack(key.removesuffix("weight"), value)
        elif ".experts." not in key:
            packed[key] = make_fixtures.Bf16(value.bfloat16().view(torch.int16).numpy())
    make_fixtures.write(pathlib.Path(folder, "model.safetensors"), packed)
    model.config.save_pretrained(folder)
    config = json.loads(pathlib.Path(folder, "config.json").read_text())
    config["quantization_config"] = quantization
    pathlib.Path(folder, "config.json").write_text(json.dumps(config))
    return model


class Forms(unittest.TestCase):
    def check(self, name, attention):
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            model = written(folder, name, attention)
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


class ByStructure(Forms):
    def check(self, name, attention):
        """A model that the library does not read: codes become bf16 in memory."""
        unread = mock.patch.object(moert.Source, "open", side_effect=ValueError("is not read"))
        with tempfile.TemporaryDirectory() as folder, torch.no_grad(), unread:
            model = written(folder, name, attention)
            for layer in model.model.layers:
                for parameter in layer.mlp.experts.parameters():
                    parameter.copy_(parameter.bfloat16())
            plain = model(IDS).logits
            with self.assertLogs("moert", "WARNING") as said:
                mine = moert.from_pretrained(folder, dtype=torch.float32, numerics="f32", budget="50%")
            self.near(name, mine(IDS).logits, plain)
            moert.attach(model, folder, budget="50%", numerics="f32")
            self.near(name, model(IDS).logits, plain)
        self.assertIn("quantized experts become bf16 in memory", said.output[0])
        self.assertIn("is not read", said.output[0])


for _name in make_fixtures.FORMS:
    for _attention in (False, True):
        def _test(self, name=_name, attention=_attention):
            self.check(name, attention)
        setattr(Forms, f"test_{_name}" + "_everywhere" * _attention, _test)


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
        """(160, 128) in blocks of 128 x 128, which transformers takes for blocks of 80."""
        folder = ROOT / "tests/data/architectures/qwen3_moe_fp8"
        stored, expected = (load_file(folder / f"{n}.safetensors") for n in ("model", "expected"))
        model = moert.from_pretrained(folder, dtype=torch.float32, numerics="f32", budget="50%")
        cut = 0
        for name, parameter in model.named_parameters():
            if (scale := stored.get(name + "_scale_inv")) is not None:
                rows, cols = parameter.shape
                wide = scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1)
                plain = stored[name].float() * wide[:rows, :cols]
                self.assertTrue(torch.equal(parameter, plain), name)
                cut += rows % 128 != 0
        self.assertGreater(cut, 0)
        with torch.no_grad():  # the reference's weights are rounded to bf16
            logits = model(expected["short.tokens"].long()).logits
        self.assertLess((logits - expected["short.logits"]).abs().max(), 0.02)

    def test_further_labels(self):
        """The same tensors under other names of their form."""
        for name, change in (("gptq_g128", dict(quant_method="auto-round",
                                                packing_format="auto_round:auto_gptq")),
                             ("awq_g128", dict(quant_method="auto-round",
                                               packing_format="auto_round:auto_awq"))):
            maker, config = make_fixtures.FORMS[name]
            tensors, values = maker(np.random.default_rng(5), 64, 256)
            tensors = {last: torch.from_numpy(t) for last, t in tensors.items()}
            made = dense_forms.weight(tensors, (64, 256), {**config, **change})
            self.assertTrue(np.array_equal(made.numpy(), values), name)
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "config.json").write_text("{}")
            pathlib.Path(folder, "hf_quant_config.json").write_text(
                '{"producer": {}, "quantization": {"quant_algo": "NVFP4"}}')
            self.assertEqual(moert.pack_cache.quantization(folder),
                             {"quant_method": "modelopt", "quant_algo": "NVFP4"})

    def test_dense_forms_that_are_not_known(self):
        config = {"quant_method": "gptq", "sym": True}
        gptq = {"qweight": torch.zeros(8, 8, dtype=torch.int32), "scales": torch.ones(1, 8)}
        for tensors, says in (
                ({"qweight": torch.zeros(3, 8, dtype=torch.int32)}, "64 codes in 3 words"),
                ({**gptq, "qzeros": torch.full((1, 1), 0x7070707, dtype=torch.int32)},
                 "symmetric, but has zeros other than 8"),
                ({"weight": torch.zeros(8, 64), "weight_zero": torch.zeros(1)}, "it is stored as"),
                ({"weight": torch.zeros(8, 32), "weight_scale": torch.ones(1)}, "model wants")):
            with self.assertRaisesRegex(ValueError, says):
                dense_forms.weight(tensors, (8, 64), config)


if __name__ == "__main__":
    unittest.main()
