"""Models of transformers whose experts libmoert holds: every logit against transformers' own.
Skipped where torch and transformers 5 are not installed."""
import array
import copy
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples/models/tiny-moe"
sys.path.insert(0, str(ROOT / "examples/python"))

try:
    import torch
    import transformers
    available = int(transformers.__version__.split(".")[0]) >= 5
except ImportError:
    available = False

if available:
    import models
    from perplexity import perplexity

    import moert
    import moert.blocks
    transformers.logging.set_verbosity_error()


def plain_model(path=MODEL):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def ours(path=MODEL, budget=0.25, numerics="f32", dtype="float32", **options):
    return moert.from_pretrained(path, budget=budget, numerics=numerics, dtype=dtype, **options)


def tokens(count):
    text = (ROOT / "tests/data/eval/gsm8k.tokens.u16").read_bytes()
    return array.array("H", text)[:count].tolist()


def replaced(model):
    """What stands in place of experts: "MoeBlock", or "Experts" behind the model's own router."""
    return {type(m).__name__ for m in model.modules() if isinstance(m, moert.blocks._Replacement)}


@unittest.skipUnless(available, "torch and transformers 5 are not installed")
class Test(unittest.TestCase):
    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name


class Bundled(Test):
    """The trained model of the repository."""

    def test_perplexity_and_text(self):
        model, text = plain_model(), tokens(1536)
        plain = perplexity(model, text, 512)
        prompt = torch.tensor([text[:24]])
        written = model.generate(prompt, max_new_tokens=24, do_sample=False)
        # Fewer rows than a window has: several steps side by side.
        engine = moert.attach(model, MODEL, budget=0.25, max_tokens=200, numerics="f32")
        mine = perplexity(model, text, 512)
        print(f"perplexity {plain:.6f}, with libmoert {mine:.6f}: "
              f"{100 * (mine / plain - 1):+.5f} %")
        self.assertLess(abs(mine / plain - 1), 1e-3)
        self.assertTrue(engine.exact and engine.stats().loads > 0)
        self.assertLessEqual(engine.stats().peak_bytes, engine.stats().budget_bytes)
        self.assertTrue(torch.equal(written, model.generate(prompt, max_new_tokens=24,
                                                            do_sample=False)))

    def test_budgets_and_routers_agree(self):
        ids = torch.tensor([tokens(40)])
        with torch.no_grad():
            plain = plain_model()(ids).logits
        full = ours(budget=1.0)
        self.assertEqual(replaced(full), {"MoeBlock"})
        logits = full(ids).logits  # from_pretrained freezes: no torch.no_grad() is needed
        self.assertLess((logits - plain).abs().max().item(), 1e-3)
        self.assertTrue(torch.equal(logits, ours(budget=0.25)(ids).logits))
        host = ours(budget=0.25, routing="host")
        self.assertEqual(replaced(host), {"Experts"})
        self.assertLess((host(ids).logits - plain).abs().max().item(), 1e-3)
        self.assertLess((ours(numerics="bf16")(ids).logits - plain).abs().max().item(), 0.2)

    def test_bf16(self):
        ids = torch.tensor([tokens(32), tokens(64)[32:]])
        with torch.no_grad():
            plain = plain_model()(ids).logits
        logits = ours(dtype="bfloat16", numerics="bf16")(ids).logits
        self.assertEqual(logits.dtype, torch.bfloat16)
        self.assertGreater((logits.argmax(-1) == plain.argmax(-1)).float().mean().item(), 0.9)

    def test_quantized_on_the_way(self):
        ids, cache = torch.tensor([tokens(64)]), self.folder()
        with torch.no_grad():
            plain = torch.log_softmax(plain_model()(ids).logits, -1)
        seen = []
        model = ours(experts="w4a16_g128", cache_dir=cache,
                     progress=lambda done, total: seen.append((done, total)))
        self.assertEqual([name for name, _ in model.moert._source.versions()], ["w4a16_g128"])
        self.assertTrue(all(0 <= done <= total == 8 * 32 * 3 for done, total in seen), seen)
        loss = (plain.exp() * (plain - torch.log_softmax(model(ids).logits, -1))).sum(-1).mean()
        self.assertTrue(1e-6 < loss < 0.1, loss)
        ids = torch.tensor([tokens(16)])
        rounded = ours(experts="w4a16_g128", cache_dir=cache, numerics="int8")
        self.assertGreater((rounded(ids).logits - model(ids).logits).abs().max(), 1e-4)
        seen.clear()
        two = ours(experts="bf16,w4a16_g128", cache_dir=cache, strategy="dynaexq:lo=w4a16_g128",
                   budget="60%")
        self.assertTrue(torch.isfinite(two(ids).logits).all())
        ours(experts="w4a16_g128", cache_dir=cache, progress=lambda *_: seen.append(_))
        self.assertEqual(seen, [])  # made once
        with self.assertRaisesRegex(ValueError, 'unknown scheme "w5", legal are'):
            ours(experts="w5", cache_dir=cache)
        attached = plain_model()
        moert.attach(attached, MODEL, scheme="w4a16_g128", cache_dir=cache, budget=0.25,
                     numerics="f32")
        with torch.no_grad():
            self.assertTrue(torch.equal(attached(ids).logits, model(ids).logits))
        unread = unittest.mock.patch.object(moert.pack_cache, "quantized",
                                            side_effect=ValueError("its model_type is unknown"))
        with unread, self.assertRaisesRegex(ValueError, "nearest way: .* without a scheme"):
            ours(experts="w4a16_g128", cache_dir=cache)

    def test_generation(self):
        model, mine = plain_model(), ours()
        tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL, padding_side="left")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.decode([0])
        batch = tokenizer(["Question: 12 x 7?", "Question: A farmer has 12 cows and buys 7 more."],
                          return_tensors="pt", padding=True)
        greedy = dict(max_new_tokens=12, do_sample=False, pad_token_id=0)
        self.assertTrue(torch.equal(model.generate(**batch, **greedy),
                                    mine.generate(**batch, **greedy)))
        one = tokenizer("Question: 12 x 7?", return_tensors="pt")
        expected = model.generate(**one, **greedy)
        self.assertTrue(torch.equal(expected, mine.generate(**one, **greedy,
                                                            assistant_model=model)))
        self.assertTrue(torch.equal(expected, mine.generate(**one, **greedy,
                                                            cache_implementation="static")))
        streamer = transformers.TextIteratorStreamer(tokenizer, timeout=600)
        thread = threading.Thread(target=mine.generate,
                                  kwargs=dict(one, **greedy, streamer=streamer))
        thread.start()
        self.assertEqual("".join(streamer), tokenizer.decode(expected[0]))
        thread.join()

    def test_threads_share_a_model(self):
        model, ids = ours(), [torch.tensor([tokens(20)[i:]]) for i in range(4)]
        alone = [model(i).logits for i in ids]
        results, wrong = [None] * 4, []

        def work(n):
            try:
                for _ in range(3):
                    results[n] = model(ids[n]).logits
            except BaseException as e:
                wrong.append(repr(e))
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        for n in range(4):
            self.assertTrue(torch.equal(results[n], alone[n]), n)

    def test_what_is_refused(self):
        model = ours()
        dense = set(model.state_dict())
        self.assertFalse([name for name in dense if ".mlp." in name])
        self.assertTrue(dense < set(plain_model().state_dict()))
        with self.assertRaisesRegex(ValueError, "libmoert's, not torch's"):
            model.save_pretrained(self.folder())
        with self.assertRaisesRegex(TypeError, "cannot be copied"):
            copy.deepcopy(model)
        with self.assertRaisesRegex(TypeError, "owns memory"):
            pickle.dumps(model)
        model.model.embed_tokens.requires_grad_(True)
        with self.assertRaisesRegex(RuntimeError, "no gradients"):
            model(torch.tensor([[1, 2, 3]]))
        with torch.no_grad():
            model(torch.tensor([[1, 2, 3]]))
        with self.assertRaisesRegex(ValueError, "budget is '8 gigs'"):
            ours(budget="8 gigs")
        with self.assertRaisesRegex(ValueError, "routing is 'me'"):
            ours(routing="me")
        with self.assertRaisesRegex(ValueError, "int8', which has no effect on experts in bf16"):
            ours(numerics="int8")
        with self.assertRaisesRegex(TypeError, "unexpected keyword|no option"):
            ours(bugdet="8GiB")
        source = moert.Source.from_weights(
            "other", [moert.Source.layer(num_experts=4, hidden=64, intermediate=16)],
            lambda *what: [0.0] * (what[4] * what[5]))
        with self.assertRaisesRegex(ValueError, "8 MoE blocks"):
            moert.attach(plain_model(), source)

    def test_a_pass_that_dies(self):
        model, ids = ours(), torch.tensor([tokens(12)])
        expected = model(ids).logits
        layer = model.model.layers[3].mlp
        layer.register_forward_pre_hook(lambda *_: 1 / 0)
        with self.assertRaises(ZeroDivisionError):
            model(ids)
        layer._forward_pre_hooks.clear()
        self.assertTrue(torch.equal(expected, model(ids).logits))


class Architectures(Test):
    """Tiny random models as transformers saves them: published names of tensors, and fused ones."""

    def check(self, name, **saving):
        model = models.make(name)
        if model is None:
            self.skipTest(f"transformers {transformers.__version__} has no {name}")
        folder, ids = self.folder(), torch.randint(3, 128, (2, 9))
        model.save_pretrained(folder, **saving)
        with torch.no_grad():
            plain = model(ids).logits
        mine = ours(folder, cache_dir=folder + "/cache", max_tokens=16)
        difference = (mine(ids).logits - plain).abs().max().item()
        print(f"{name}: {', '.join(replaced(mine))}, largest difference {difference:.1e}")
        self.assertLess(difference, 1e-4)
        self.assertGreater(plain.std().item(), 0.3)
        self.assertGreater(mine.moert.stats().lookups, 0)
        rounded = ours(folder, cache_dir=folder + "/cache", numerics="bf16")
        difference = (rounded(ids).logits - plain).abs().amax(-1).flatten().median().item()
        self.assertLess(difference, 0.03)

    def test_fixtures(self):
        """Checkpoints of tests/data/architectures, which older versions saved."""
        for name in ("qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "phimoe"):
            path = ROOT / "tests/data/architectures" / name
            with self.subTest(name), torch.no_grad():
                ids = torch.randint(3, 60, (2, 11))
                plain = plain_model(path)(ids).logits
                mine = ours(path, cache_dir=self.folder())
                self.assertEqual(replaced(mine), {"MoeBlock"})
                self.assertLess((mine(ids).logits - plain).abs().max().item(), 1e-4)

    def test_files_that_disagree(self):
        folder, model = self.folder(), models.make("Qwen3Moe")

        def refused(why, **options):
            with self.assertRaisesRegex((ValueError, moert.Error), why):
                moert.attach(model, folder, **options)
        for routing in ("host", None):
            shallow = self.edited(lambda tensors: [tensors.pop(name) for name in list(tensors)
                                                   if ".layers.2.mlp." in name])
            with self.assertRaisesRegex(ValueError, "no tensor for model.layers.2.mlp"):
                moert.attach(model, shallow, routing=routing)
            other = models.make("Qwen3Moe")
            other.model.layers[1].mlp.gate.weight.data.add_(0.5)
            other.save_pretrained(folder)
            refused("layers.1.mlp.gate.weight of the model is not the checkpoint's",
                    routing=routing)
            other = models.make("Qwen3Moe")
            other.model.layers[2].mlp.experts.down_proj.data.mul_(2)
            other.save_pretrained(folder)
            refused("experts.down_proj of the model is not the checkpoint's", routing=routing)
            models.make("Glm4Moe").save_pretrained(folder)
            refused("no tensor for model.layers.0.mlp.gate", routing=routing)

    def edited(self, edit, name="Qwen3Moe"):
        """A folder whose tensors edit(tensors) has changed."""
        import safetensors.torch
        folder = self.folder()
        models.make(name).save_pretrained(folder)
        tensors = safetensors.torch.load_file(folder + "/model.safetensors")
        edit(tensors)
        safetensors.torch.save_file(tensors, folder + "/model.safetensors", {"format": "pt"})
        return folder

    def test_experts_are_all_looked_at(self):
        prefix = "model.layers.1.mlp.experts."

        def narrow(tensors):
            name = prefix + "3.gate_proj.weight"
            tensors[name] = tensors[name][:16].clone()

        def all_narrow(tensors):
            for name in [n for n in tensors if n.startswith(prefix) and "down" not in n]:
                tensors[name] = tensors[name][:16].clone()

        def more(tensors):
            tensors[prefix + "8.up_proj.weight"] = tensors[prefix + "7.up_proj.weight"].clone()

        def fewer(tensors):
            del tensors[prefix + "5.down_proj.weight"]

        def twice(tensors):  # transformers adds the prefix "model."
            name = prefix + "2.down_proj.weight"
            tensors[name.removeprefix("model.")] = tensors[name].clone()
        for edit, why in ((narrow, r"experts.3.gate_proj.weight is \[16, 64\]"),
                          (all_narrow, r"gate_up_proj is \[8, 32, 64\].* wants \[8, 64, 64\]"),
                          (more, "experts.8.up_proj.weight: .* has 8 experts"),
                          (fewer, "no expert 5 for model.layers.1.mlp.experts.down_proj"),
                          (twice, "both are expert 2 of")):
            folder = self.edited(edit)
            with self.subTest(why), self.assertRaisesRegex(ValueError, why):
                ours(folder, routing="host", cache_dir=folder + "/cache")

    def test_layers_that_are_not_the_models(self):
        """Experts of layers that predict further tokens, and of other modules, are left out."""
        def decoys(tensors):
            for name in [n for n in tensors if ".layers.0.mlp.experts." in n]:
                for prefix in ("mtp.layers.0.", "talker.model.layers.0.", "model.layers.3."):
                    tensors[prefix + name.split(".layers.0.")[1]] = torch.zeros_like(tensors[name])
        folder, ids = self.edited(decoys, "Qwen3Next"), torch.randint(3, 128, (2, 9))
        with torch.no_grad():
            plain = plain_model(folder)(ids).logits
        with self.assertLogs("moert", "INFO") as logs:
            mine = ours(folder, routing="host")
        self.assertIn("talker.model.layers.0.mlp.experts", "".join(logs.output))
        self.assertLess((mine(ids).logits - plain).abs().max().item(), 1e-4)

    def test_what_the_caller_says(self):
        """Fields of the config that are given beside the folder, and router logits."""
        folder, ids = self.folder(), torch.randint(3, 128, (2, 9))
        for name, changes in (("Qwen3Moe", dict(num_experts_per_tok=4)),
                              ("Qwen3Moe", dict(norm_topk_prob=True)),
                              ("Glm4Moe", dict(routed_scaling_factor=2.5)),
                              ("Qwen3Moe", dict(output_router_logits=True))):
            with self.subTest(str(changes)), torch.no_grad():
                models.make(name).save_pretrained(folder)
                plain = transformers.AutoModelForCausalLM.from_pretrained(
                    folder, dtype=torch.float32, **changes)(ids)
                before = plain_model(folder)(ids).logits
                mine = ours(folder, cache_dir=folder + "/cache", **changes)(ids)
                self.assertLess((mine.logits - plain.logits).abs().max().item(), 1e-4)
                if "output_router_logits" in changes:
                    self.assertEqual(len(mine.router_logits), 3)
                else:
                    self.assertGreater((before - plain.logits).abs().max().item(), 1e-2)
                config = transformers.AutoConfig.from_pretrained(folder)
                for field, value in changes.items():
                    setattr(config, field, value)
                mine = ours(folder, cache_dir=folder + "/cache", config=config)(ids)
                self.assertLess((mine.logits - plain.logits).abs().max().item(), 1e-4)
                with self.assertRaisesRegex(ValueError, next(iter(changes))):
                    ours(folder, cache_dir=folder + "/cache", routing="library", **changes)
        with self.assertRaisesRegex(ValueError, "output_router_logits.*routing='host'"):
            ours()(ids, output_router_logits=True)

    def test_rounding_is_refused(self):
        folder = self.folder()
        for name in ("Qwen3Moe", "GraniteMoe"):
            model = models.make(name)
            for kind in (torch.float32, torch.float16):
                model.model.layers[1].get_parameter(
                    "mlp.experts.down_proj" if name == "Qwen3Moe" else
                    "block_sparse_moe.experts.down_proj").data.normal_(0, 0.08)
                model.to(kind).save_pretrained(folder)
                with self.assertRaisesRegex(ValueError, "numerics is 'f32', and .*layers.1"):
                    ours(folder, cache_dir=folder + "/cache")
                ours(folder, cache_dir=folder + "/cache", numerics="bf16")
                model.float()

    def test_revisions(self):
        """Options of the Hub reach it."""
        with unittest.mock.patch("huggingface_hub.snapshot_download",
                                 return_value=str(MODEL)) as download:
            ours("some/model", revision="v2", token="secret")
        self.assertEqual(download.call_args.kwargs["revision"], "v2")
        self.assertEqual(download.call_args.kwargs["token"], "secret")


if available:
    for _name in models.ARCHITECTURES:
        def _test(self, name=_name):
            self.check(name)
        setattr(Architectures, f"test_{_name}", _test)
    for _name in ("Qwen3Moe", "Mixtral", "GraniteMoe"):
        def _test(self, name=_name):
            self.check(name, save_original_format=False)
        setattr(Architectures, f"test_{_name}_fused", _test)


class Compiled(Test):
    def compare(self, backend, **options):
        folder, ids = self.folder(), torch.randint(3, 128, (1, 9))
        models.make("Qwen2Moe", num_hidden_layers=2).save_pretrained(folder)
        model = ours(folder, cache_dir=folder + "/cache", **options)
        eager = model(ids).logits
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        lookups = model.moert.stats().lookups
        for _ in range(3):
            self.assertLess((compiled(ids).logits - eager).abs().max().item(), 1e-4)
        self.assertEqual(model.moert.stats().lookups, 4 * lookups)

    def test_graphs(self):
        self.compare("aot_eager")
        self.compare("aot_eager", routing="host")

    def test_inductor(self):
        self.compare("inductor")

    def test_steps_around_graphs(self):
        """Compiled for graphs, a pass is opened in front of the first layer and ended behind the
        last, by calls of their own: here the layers between them run as they are."""
        ids = torch.tensor([tokens(7), tokens(14)[7:]])
        for routing in ("library", "host"):
            with self.subTest(routing):
                torch._dynamo.reset()
                model = ours(routing=routing)
                for module in model.modules():
                    if isinstance(module, moert.blocks._Replacement):
                        module._graph_rows = 64
                expected = model(ids).logits
                compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
                compiled(ids)
                lookups, begin, opened = model.moert.stats().lookups, model.moert.step, []
                model.moert.step = lambda *a, **k: opened.append(begin(*a, **k)) or opened[-1]
                for _ in range(2):
                    self.assertTrue(torch.equal(compiled(ids).logits, expected))
                self.assertEqual([step._handle for step in opened], [None, None])
                self.assertEqual(model.moert.stats().lookups, 2 * lookups)
                # One that nobody ends is over with the pass behind it.
                passes = next(m for m in model.modules() if hasattr(m, "_passes"))._passes
                passes.hold(torch.zeros(14, 128), 2)
                model(ids)
                self.assertIsNotNone(opened[2]._handle)
                model(ids)
                self.assertEqual([step._handle for step in opened], [None] * 4)

    def test_recording_beside_a_held_pass(self):
        """Calls on another stream, as when a graph is recorded, are a pass of their own. A held one
        goes on; where versions may change, its step is begun anew for the replay that follows."""
        engine = moert.Engine(moert.Source.open(MODEL), budget=0.5)
        passes, x, opened = moert.passes.Passes(engine), torch.randn(1, 128), []
        begin, stream = engine.step, "held"
        engine.step = lambda *a, stream, **k: (
            opened.append((stream, begin(*a, **k))) or opened[-1][1])
        for exact, streams in ((True, ["held", "recorded"]), (False, ["held", "recorded", "held"])):
            opened.clear()
            passes._exact = exact
            with unittest.mock.patch.multiple(moert.passes, _stream=lambda _: stream), \
                    unittest.mock.patch("torch.cuda.is_current_stream_capturing", lambda: True):
                stream = "held"
                passes.hold(x, 1)
                stream = "recorded"
                for layer in range(engine.layers):
                    passes.forward(layer, x, 1)
                self.assertEqual([s for s, _ in opened], streams)
                self.assertEqual([s for s, step in opened if step._handle], ["held"])
                stream = "held"
                for layer in range(engine.layers):
                    passes.forward(layer, x, 1)
                passes.release()
                self.assertEqual([s for s, step in opened if step._handle], [])
                self.assertEqual(len(opened), len(streams))

    def test_operators(self):
        """Fake implementations, schemas and the absence of gradients."""
        model = ours()
        x = torch.randn(3, 128)
        number = model.model.layers[0].mlp._passes.number
        torch.library.opcheck(torch.ops.moert.block.default, (x, number, 0, 1),
                              test_utils=("test_schema", "test_faketensor"))
        model.moert.stats()


class HostMemory(Test):
    """A checkpoint whose experts are most of it, loaded by a process of its own."""

    LAYERS, EXPERTS, WIDTH, HIDDEN = 8, 32, 256, 512  # 192 MiB of experts in bf16

    def test_peak(self):
        import safetensors.torch
        folder = self.folder()
        config = transformers.Qwen3MoeConfig(
            vocab_size=256, hidden_size=self.HIDDEN, intermediate_size=64, head_dim=64,
            num_hidden_layers=self.LAYERS, num_attention_heads=4, num_key_value_heads=2,
            num_experts=self.EXPERTS, num_experts_per_tok=4, moe_intermediate_size=self.WIDTH)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        tensors, experts = {}, 0
        for name, like in model.state_dict().items():
            value = torch.empty(like.shape, dtype=torch.bfloat16).normal_(0, 0.02)
            tensors[name] = value
            experts += value.nbytes if ".experts." in name else 0
        config.save_pretrained(folder)
        edited = pathlib.Path(folder, "config.json")  # as older versions wrote it
        edited.write_text(edited.read_text().replace("num_local_experts", "num_experts"))
        safetensors.torch.save_file(tensors, folder + "/model.safetensors")
        self.assertGreater(experts, 190 << 20)
        program = """if True:
            import pathlib, re, sys
            import torch, transformers, moert, moert.transformers
            from transformers.models.qwen3_moe import modeling_qwen3_moe
            def memory(field):
                text = pathlib.Path("/proc/self/status").read_text()
                return int(re.search(field + r":\\s+(\\d+) kB", text)[1]) * 1024
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
            before = memory("VmRSS")
            model = moert.from_pretrained(sys.argv[1], budget="24MiB", cache_dir=sys.argv[2],
                                          routing=sys.argv[3], max_tokens=64)
            model.generate(torch.tensor([[1, 2, 3, 4]]), max_new_tokens=8, do_sample=False)
            assert model.moert.stats().loads > 200, model.moert.stats().loads
            print(memory("VmHWM") - before)
        """
        for routing in ("host", "library"):
            run = subprocess.run([sys.executable, "-c", program, folder, folder + "/cache",
                                  routing], stdout=subprocess.PIPE, text=True)
            self.assertEqual(run.returncode, 0)
            grown = int(run.stdout)
            print(f"{experts >> 20} MiB of experts, budget 24 MiB, routed by the {routing}: the "
                  f"process grew by {grown >> 20} MiB")
            self.assertTrue(24 << 20 < grown < experts // 2, grown)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
