"""Which way serves a model, and what an error says where the one that was asked for does not."""
import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import models
import torch
import transformers
import zoo

import moert
from moert import expert_forms, own_products

transformers.logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "examples/models/tiny-moe"
ENGINE = dict(budget=0.4, numerics="f32")
IDS = torch.randint(3, 100, (3, 11), generator=torch.Generator().manual_seed(3))


class Ways(unittest.TestCase):
    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def saved(self, model):
        folder = self.folder()
        model.save_pretrained(folder)
        return folder

    def near(self, mine, plain, ids=IDS):
        with torch.no_grad():
            difference = (mine(ids).logits - plain(ids).logits).abs().max().item()
        self.assertLess(difference, 1e-5)

    def ours(self, folder, model, **options):
        return moert.from_pretrained(folder, auto_class=type(model), dtype=torch.float32,
                                     **{**ENGINE, **options})


class OwnProducts(Ways):
    def test_another_activation(self):
        """An activation that the library does not have, under a budget that evicts."""
        model = models.make("Qwen3Moe", hidden_act="relu")
        folder = self.saved(model)
        mine = self.ours(folder, model)
        self.near(mine, model)
        self.assertIsInstance(mine.model.layers[0].mlp.experts, own_products._Held)
        self.assertGreater(mine.moert.stats().evictions, 0)
        self.assertFalse([n for n, _ in mine.named_parameters() if "experts" in n])
        self.near(self.ours(folder, model, max_tokens=8), model)  # a pass of several steps
        self.near(self.ours(folder, model, budget=1.0), model, IDS[:1, :1])
        attached = type(model).from_pretrained(folder).eval()
        engine = moert.attach(attached, folder, **ENGINE)
        self.near(attached, model)
        self.assertEqual(engine.layers, 3)
        with self.assertRaisesRegex(RuntimeError, "no gradients"):
            mine.model.embed_tokens.requires_grad_(True)
            mine(IDS)

    def test_in_attention_too(self):
        model = zoo.make("jetmoe")
        folder = self.saved(model)
        mine = self.ours(folder, model)
        self.assertEqual(mine.moert.layers, 16)
        self.near(mine, model)
        self.assertGreater(mine.moert.stats().evictions, 0)

    def test_refused(self):
        model = models.make("Qwen3Moe", hidden_act="relu")
        folder = self.saved(model)
        sorted_ones = zoo.make("jetmoe")
        with self.assertRaisesRegex(ValueError, "own code, with experts as they are stored"):
            self.ours(self.saved(sorted_ones), sorted_ones, experts="w4a16_g128")
        with self.assertRaisesRegex(ValueError, "with the CPU alone.*nearest ways: products"):
            moert.attach(type(model).from_pretrained(folder), folder, device="cuda", **ENGINE)

        def all_of_them(self, hidden_states, top_k_index, top_k_weights):
            return sum(hidden_states @ self.down_proj[e] @ self.down_proj[e].t()
                       for e in range(self.num_experts))
        kind = type(model.model.layers[0].mlp.experts)
        with unittest.mock.patch.object(kind, "forward", all_of_them):
            with self.assertRaisesRegex(ValueError, "does not do with the experts that a call needs"):
                moert.attach(model, folder, routing="host", **ENGINE)

    def test_an_expert_that_cannot_be_read(self):
        model = models.make("Qwen3Moe", hidden_act="relu")
        mine = self.ours(self.saved(model), model)
        with unittest.mock.patch("os.pread", side_effect=OSError("the disk is gone")):
            with self.assertRaisesRegex(moert.Error, "the disk is gone"):
                mine(IDS)
        self.near(mine, model)


class Errors(Ways):
    def test_what_is_no_checkpoint(self):
        folder = pathlib.Path(self.folder())
        (folder / "empty").mkdir()
        (folder / "model.gguf").touch()
        for path, says in (
                (folder / "none", "there is no such folder"), ("./none", "there is no such folder"),
                (folder / "empty", "has no config.json"),
                (folder, "has no config.json.*model.gguf; llama.cpp runs GGUF"),
                (folder / "model.gguf", "wanted, not a file; llama.cpp runs GGUF"),
                (TINY / "config.json", "wanted, not a file$")):
            with self.assertRaisesRegex(FileNotFoundError, says):
                moert.from_pretrained(path)
        with unittest.mock.patch.dict("os.environ", HF_HUB_OFFLINE="1"):
            with self.assertRaisesRegex(FileNotFoundError, "models/none: there is no such folder in "
                                        ".*Hugging Face Hub gives no such repository"):
                moert.from_pretrained("models/none")

    def test_nearest_ways(self):
        dense = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(
            vocab_size=64, hidden_size=64, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=4))
        with self.assertRaisesRegex(ValueError, "LlamaForCausalLM has no MoE block.*transformers.Auto"):
            moert.attach(dense, TINY)
        model = zoo.make("inkling2")
        with self.assertRaisesRegex(ValueError, "nearest way: routing='host'"):
            self.ours(self.saved(model), model, routing="library")

    def test_router_logits_of_quantized_experts(self):
        """The library reads them, the model routes."""
        folder = str(ROOT / "tests/data/architectures/gpt_oss")
        mine = moert.from_pretrained(folder, dtype=torch.float32, output_router_logits=True, **ENGINE)
        with torch.no_grad():
            self.assertEqual(len(mine(IDS).router_logits), mine.config.num_hidden_layers)
        self.assertIn("mxfp4", mine.moert._source.schemes())

    def test_commands(self):
        def run(*arguments, **options):
            return subprocess.run([sys.executable, "-m", "moert", *arguments], text=True,
                                  capture_output=True, **options)
        said = run("generate", str(TINY), "--prompt", "Question: 12 x 7?", "--max-tokens", "4")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("Question: 12 x 7?", said.stdout)
        said = run("generate", "/no/such/folder")
        self.assertEqual((said.returncode, said.stderr),
                         (1, "/no/such/folder: there is no such folder\n"))
        pipe = subprocess.run(f"{sys.executable} -m moert doctor | true; echo ${{PIPESTATUS[0]}}",
                              shell=True, executable="/bin/bash", text=True, capture_output=True)
        self.assertEqual((pipe.stdout, pipe.stderr), ("0\n", ""))

    def test_a_command_without_its_tool(self):
        from moert import __main__, tools
        said = io.StringIO()
        with unittest.mock.patch.object(tools, "path", side_effect=FileNotFoundError("not there")):
            with contextlib.redirect_stderr(said):
                self.assertEqual(__main__.main(["run"]), 1)
        self.assertEqual(said.getvalue(), "not there\n")


class Sources(Ways):
    def test_experts_that_cannot_be_replaced_alone(self):
        """llama4 gives its experts tokens in the order of experts: refused before anything runs."""
        model = zoo.make("llama4")
        source = moert.Source.open(self.saved(model))
        with self.assertRaisesRegex(ValueError, "cannot be replaced alone: its forward takes"):
            moert.attach(model, source, routing="host", **ENGINE)

    def test_the_host_routes_by_itself_where_the_library_cannot(self):
        model = models.make("Qwen3Moe")

        def read(layer, expert, part, first, rows, cols):
            mine = model.model.layers[layer].mlp.experts
            half = mine.gate_up_proj.shape[1] // 2
            both = {"gate_proj": mine.gate_up_proj[expert, :half],
                    "up_proj": mine.gate_up_proj[expert, half:],
                    "down_proj": mine.down_proj[expert]}
            return both[part][first:first + rows].detach()
        layers = [moert.Source.layer(model_layer=i, routing="external", num_experts=8, top_k=2,
                                     hidden=64, intermediate=32) for i in range(3)]
        source = moert.Source.from_weights("mine", layers, read)
        plain = self.saved(model)
        with self.assertRaisesRegex(ValueError, "no router like this model's: routing='host'"):
            moert.attach(type(model).from_pretrained(plain), source, routing="library", **ENGINE)
        mine = type(model).from_pretrained(plain).eval()
        moert.attach(mine, source, **ENGINE)
        self.near(mine, model)


class Quantized(Ways):
    def test_schemes_of_models_by_description(self):
        """The library routes one, the model the other."""
        for name, stands in (("afmoe", "MoeBlock"), ("longcat_flash", "Experts")):
            model = zoo.make(name)
            folder = self.saved(model)
            mine = self.ours(folder, model, experts="w8a16_g-1", cache_dir=folder + "/cache")
            self.assertEqual(mine.moert._source.schemes(), ["w8a16_g-1"])
            self.assertEqual({type(m).__name__ for m in mine.modules()
                              if isinstance(m, moert.blocks._Replacement)}, {stands})
            attached = type(model).from_pretrained(folder).eval()
            moert.attach(attached, folder, scheme="w8a16_g-1", cache_dir=folder + "/cache", **ENGINE)
            self.near(attached, mine)
            with torch.no_grad():
                off = (mine(IDS).logits - model(IDS).logits).abs().median().item()
            self.assertTrue(1e-6 < off < 0.02, (name, off))  # rounding may choose another expert


class Forms(unittest.TestCase):
    def test_plain_forward(self):
        """The loop, not the implementation that is chosen for the class."""
        experts = models.make("Qwen3Moe").model.layers[0].mlp.experts
        self.assertIs(expert_forms.plain_forward(experts), type(experts).forward.__wrapped__)


if __name__ == "__main__":
    unittest.main()
