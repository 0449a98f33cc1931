"""transformers models on a CUDA device: logits against transformers' own there, streams, compiled and
captured. Skipped without a device, or with a library that has no CUDA backend."""
import ctypes
import gc
import pathlib
import sys
import tempfile
import time
import unittest
import warnings

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import models  # noqa: E402

import moert  # noqa: E402
import moert.transformers  # noqa: E402

MODEL = pathlib.Path(__file__).resolve().parents[2] / "examples/models/tiny-moe"
IDS = torch.tensor([[5, 9, 33, 71, 8, 64, 12], [99, 4, 17, 23, 51, 6, 88]])
transformers.logging.set_verbosity_error()


def ours(path=MODEL, device="cuda", **options):
    return moert.from_pretrained(path, **{"budget": "50%", "dtype": "bfloat16", "device": device,
                                          **options})


def blocks(model):
    return [m for m in model.modules() if isinstance(m, moert.blocks.MoeBlock)]


def blocks_or_experts(model):
    return [m for m in model.modules() if hasattr(m, "_passes")]


@unittest.skipUnless(torch.cuda.is_available() and moert.probe().cuda_usable,
                     "no CUDA device, or a library without CUDA: " +
                     moert.probe().cuda_status.decode())
class Cuda(unittest.TestCase):
    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def x(self, rows, hidden=128):
        generator = torch.Generator("cuda").manual_seed(rows)
        return torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16, generator=generator)

    def test_architectures(self):
        """In bf16 both round: what counts is that we are as near to the fp32 model as transformers'
        own bf16 on the same device is."""
        ids = torch.randint(3, 128, (2, 9))
        for name in models.ARCHITECTURES:
            plain = models.make(name)
            if plain is None:
                continue
            with self.subTest(name), torch.no_grad():
                folder = self.folder()
                plain.save_pretrained(folder)
                exact = plain(ids).logits
                plain = plain.to("cuda", torch.bfloat16)
                theirs = plain(ids.cuda()).logits.float().cpu()
                mine = ours(folder, cache_dir=folder + "/cache", max_tokens=16)
                logits = mine(ids.cuda()).logits.float().cpu()
                engine = mine.moert
                self.assertEqual((engine.backend, engine.device), ("cuda", 0))
                self.assertGreater(engine.stats().loads, 0)
                errors = [(l - exact).abs().amax(-1).median().item() for l in (logits, theirs)]
                print(f"{name}: median error of a token's logits {errors[0]:.1e}, of transformers "
                      f"in bf16 {errors[1]:.1e}; standard deviation {exact.std().item():.2f}")
                self.assertLess(errors[0], 2 * errors[1] + 1e-2)

    def test_budgets_and_routers_agree(self):
        full = ours(budget=1.0)(IDS.cuda()).logits
        self.assertTrue(torch.equal(ours(budget=0.25)(IDS.cuda()).logits, full))
        host = ours(budget=0.25, routing="host")(IDS.cuda()).logits
        self.assertLess((host - full).abs().amax(-1).median().item(), 0.4)  # logits up to 17
        cpu = ours(device="cpu")(IDS).logits
        self.assertLess((full.cpu() - cpu).abs().amax(-1).median().item(), 0.4)

    def test_a_stream_of_its_own(self):
        model = ours()
        expected = model(IDS.cuda()).logits
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(2)]
        results = []
        for turn in range(6):
            with torch.cuda.stream(streams[turn % 2]):
                results.append(model(IDS.cuda()).logits)
        torch.cuda.synchronize()
        for logits in results:
            self.assertTrue(torch.equal(logits, expected))

    def test_no_wait_where_nothing_is_missing(self):
        """The host gives the device all layers and does not wait: the device sleeps first."""
        for routing in ("library", "host"):
            # In a function of its own: what is left of an engine waits for the device as it goes.
            self.layers_do_not_wait(routing)

    def layers_do_not_wait(self, routing):
        model = ours(budget=1.0, routing=routing, strategy="resident")
        model(IDS.cuda())
        sparse = [layer.mlp for layer in model.model.layers]
        x = self.x(1)[None]
        sparse[0](x)
        gc.collect()
        syncs = model.moert.metrics()["moert_host_syncs_total"]
        torch.cuda.synchronize()
        done = torch.cuda.Event()
        torch.cuda._sleep(1 << 30)
        torch.cuda.set_sync_debug_mode("error")
        took = [time.perf_counter()]
        try:
            y = x
            for block in sparse:
                y = block(y)
                took.append(time.perf_counter())
            done.record()
            waited = done.query()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        ms = [round(1e3 * (end - begin), 2) for begin, end in zip(took, took[1:])]
        waits = model.moert.metrics()["moert_host_syncs_total"] - syncs
        self.assertFalse(waited, f"routing by {routing}: the layers took {ms} ms of the host, "
                                 f"{waits} waits")
        torch.cuda.synchronize()
        self.assertEqual(waits, 0)

    def test_generation(self):
        model = ours(dtype="float32")
        expected = ours(device="cpu", dtype="float32").generate(IDS[:1], max_new_tokens=12,
                                                                do_sample=False)
        # transformers compiles what has a static cache; test_compiled does that.
        for options in ({}, {"cache_implementation": "static", "disable_compile": True}):
            written = model.generate(IDS[:1].cuda(), max_new_tokens=12, do_sample=False, **options)
            self.assertTrue(torch.equal(written.cpu(), expected), options)

    def test_compiled(self):
        folder = self.folder()
        models.make("Qwen2Moe", num_hidden_layers=2).save_pretrained(folder)
        for mode, routing in (("default", "host"), ("reduce-overhead", "library")):
            with self.subTest(mode):
                torch._dynamo.reset()
                model = ours(folder, cache_dir=folder + "/cache", routing=routing)
                eager = model(IDS.cuda()).logits
                lookups = model.moert.stats().lookups
                compiled = torch.compile(model, mode=mode)
                for _ in range(4):
                    torch.compiler.cudagraph_mark_step_begin()
                    logits = compiled(IDS.cuda()).logits
                self.assertLess((logits - eager).abs().amax(-1).median().item(), 0.05)
                self.assertGreater(model.moert.stats().lookups, 4 * lookups)

    # Engines whose layers may be recorded: nothing can miss, or the device serves what does.
    GRAPH_SAFE = ({"budget": 1.0}, {"budget": 0.25, "host_budget": "all"})

    def test_decoding_in_graphs(self):
        """A static cache, compiled for CUDA graphs: replayed steps make no layer calls, and the
        host waits for none of them."""
        tokens = torch.randint(3, 128, (12, 1, 1), device="cuda")
        for options in self.GRAPH_SAFE:
            for routing in ("library", "host"):
                with self.subTest(options=options, routing=routing):
                    self.check_decoding_in_graphs(ours(dtype="float32", routing=routing, **options),
                                                  tokens)

    def check_decoding_in_graphs(self, model, tokens):
        self.assertTrue(model.moert.graph_safe, model.moert.strategy)
        torch._dynamo.reset()

        def decode(forward, seen=lambda: None):
            cache = transformers.StaticCache(config=model.config, max_cache_len=32)
            model(IDS[:1].cuda(), past_key_values=cache)
            logits = []
            for token in tokens:
                seen()
                logits.append(forward(token, past_key_values=cache).logits.float().cpu())
            return logits

        engine, expected, calls = model.moert, decode(model), []
        passes = blocks_or_experts(model)[0]._passes
        forward = passes.forward
        passes.forward = lambda *a: calls.append(torch.cuda.is_current_stream_capturing()) or \
            forward(*a)
        compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        seen = []
        logits = decode(compiled, lambda: seen.append(
            (len(calls), engine.metrics()["moert_host_syncs_total"])))
        self.assertIn(True, calls)  # it was recorded
        self.assertEqual(len({counts for counts in seen[4:]}), 1, seen)
        for mine, exact in zip(logits, expected):
            self.assertLess((mine - exact).abs().median().item(), 0.05)
        lookups = engine.metrics()["moert_lookups_total"]
        decode(compiled)
        self.assertGreater(engine.metrics()["moert_lookups_total"], lookups)

    def test_generation_in_graphs(self):
        for options in self.GRAPH_SAFE:
            with self.subTest(options):
                torch._dynamo.reset()
                model = ours(dtype="float32", **options)
                greedy = dict(max_new_tokens=12, do_sample=False)
                expected = model.generate(IDS[:1].cuda(), **greedy)
                written = model.generate(IDS[:1].cuda(), cache_implementation="static", **greedy)
                self.assertTrue(torch.equal(written, expected))

    def test_versions_in_graphs(self):
        """Versions change from step to step, and the replay behind the recording knows of it."""
        torch._dynamo.reset()
        cache = self.folder()
        model = ours(experts="bf16,w4a16_g128", cache_dir=cache, budget="60%", dtype="float32",
                     strategy="dynaexq:lo=w4a16_g128")
        self.assertTrue(model.moert.graph_safe)
        compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        ids = IDS[:1].cuda()
        exact = ours(budget=1.0, dtype="float32")(ids).logits
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            logits = compiled(ids).logits
            self.assertLess((logits - exact).abs().amax(-1).median().item(), 2)  # logits up to 17

    def test_strategy_by_budget(self):
        self.assertEqual(ours(budget=1.0).moert.strategy, "resident")
        self.assertEqual(ours(budget=0.5).moert.strategy.split(":")[0], "fate")
        self.assertEqual(ours(budget=0.5, promise="exact").moert.promise, "exact")
        self.assertEqual(ours(budget=1.0, strategy="fate").moert.strategy, "fate")

    def test_captured(self):
        for options in self.GRAPH_SAFE:
            with self.subTest(options):
                self.check_captured(ours(**options))

    def check_captured(self, model):
        self.assertTrue(model.moert.graph_safe)

        def run(x):
            for block in blocks(model):
                x = x + block(x)
            return x

        x = self.x(3)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = run(x)
        for seed in range(3):
            x.copy_(self.x(3) + seed)
            expected = run(x)
            y.zero_()
            with model.moert.step("decode", 3, stream=torch.cuda.current_stream().cuda_stream):
                graph.replay()
            self.assertTrue(torch.equal(y, expected), seed)

    def test_capture_refused(self):
        model = ours(budget=0.5, strategy="fate")
        self.assertFalse(model.moert.graph_safe)
        block, x = blocks(model)[0], self.x(1)
        block(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(moert.Error, "fate needs the host"):
            with torch.cuda.graph(graph):
                block(x)
        self.assertTrue(torch.isfinite(block(x)).all())

    def test_attach(self):
        plain = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
        plain = plain.to("cuda")
        engine = moert.attach(plain, MODEL, budget=0.5)
        self.assertEqual(engine.backend, "cuda")
        with torch.no_grad():
            self.assertTrue(torch.equal(plain(IDS.cuda()).logits, ours()(IDS.cuda()).logits))

    def test_slots(self):
        """A host's own product over slots, its routing on the device."""
        layers = [moert.Source.layer(model_layer=0, num_experts=6, hidden=16, intermediate=16,
                                     top_k=2, routing="external")]
        rows = torch.randn(6, 1024)
        source = moert.Source.from_records(
            "toy", layers, [moert.Source.part(0, 4096)],
            read=lambda layer, expert, part: rows[expert].numpy().tobytes())
        engine = moert.Engine(source, backend="cuda", budget=1.0, strategy="resident")
        stream = torch.cuda.current_stream().cuda_stream
        ids = torch.tensor([[4, 1], [-1, 3]], dtype=torch.int32, device="cuda")
        slots = torch.full_like(ids, 77)
        with engine.step("decode", 2, stream=stream) as step:
            with step.fetch(0, ids, slot_ids=slots) as fetched:
                base, stride, size = fetched.region()
                self.assertEqual(size, 4096)
                self.assertTrue(fetched.device_table)
                torch.cuda.synchronize()
                self.assertEqual(slots[1, 0].item(), -1)
                for expert, slot in ((4, slots[0, 0].item()), (3, slots[1, 1].item())):
                    self.assertEqual(slot, fetched.slot(expert))
                    there = torch.empty(1024, device="cuda")
                    copy_on_device(there, base + slot * stride)
                    self.assertTrue(torch.equal(there.cpu(), rows[expert]))
                with self.assertRaisesRegex(TypeError, "device memory"):
                    fetched.part(4)
            with self.assertRaisesRegex(ValueError, "released"):
                fetched.slot(4)
            with self.assertRaisesRegex(moert.Error, "takes .2, 2."):
                step.fetch(0, ids[:, :1].contiguous())
        self.assertEqual(engine.metrics()["moert_host_syncs_total"], 0)

    def test_wrong_places(self):
        engine = ours().moert
        x = torch.zeros(1, 128)
        with self.assertRaisesRegex(moert.Error, "MOERT_DEVICE"):
            with engine.step("decode", 1) as step:
                step.forward(0, x, torch.empty_like(x))
        cpu = ours(device="cpu").moert
        x = x.cuda()
        with self.assertRaisesRegex(TypeError, "the engine is on the CPU"):
            with cpu.step("decode", 1) as step:
                step.forward(0, x, torch.empty_like(x))
        with self.assertRaisesRegex(RuntimeError, "no gradients"):
            blocks(ours())[0](self.x(1).requires_grad_(True))


def copy_on_device(tensor, address):
    """tensor = the bytes at a device address, by way of the array interface that torch reads."""
    class There:
        __cuda_array_interface__ = {"shape": (tensor.numel(),), "typestr": "<f4", "version": 3,
                                    "data": (ctypes.c_void_p(address).value, False)}
    tensor.copy_(torch.as_tensor(There(), device="cuda"))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
