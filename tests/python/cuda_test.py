"""transformers models on a CUDA device: the same logits as on the CPU. Skipped without a device, or
with a library that has no CUDA backend."""
import pathlib
import sys
import tempfile
import unittest

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import models  # noqa: E402

import moert  # noqa: E402

MODEL = pathlib.Path(__file__).resolve().parents[2] / "examples/models/tiny-moe"
IDS = torch.tensor([[5, 9, 33, 71, 8, 64, 12], [99, 4, 17, 23, 51, 6, 88]])


def on(device, path=MODEL, **options):
    return moert.from_pretrained(path, **{"budget": "50%", "dtype": "float32", "numerics": "f32",
                                          "device": device, **options})


@unittest.skipUnless(torch.cuda.is_available() and moert.probe().cuda_usable,
                     "no CUDA device, or a library without CUDA: " +
                     moert.probe().cuda_status.decode())
class Cuda(unittest.TestCase):
    def close(self, mine, expected, bound=1e-3):
        self.assertEqual(mine.device.type, "cuda")
        self.assertLess((mine.cpu() - expected).abs().max().item(), bound)

    def test_logits(self):
        for routing in ("library", "host"):
            with self.subTest(routing):
                model = on("cuda", routing=routing)
                self.assertEqual((model.moert.backend, model.moert.device), ("cuda", 0))
                self.close(model(IDS.cuda()).logits, on("cpu", routing=routing)(IDS).logits)
                self.assertGreater(model.moert.stats().loads, 0)

    def test_a_stream_of_its_own(self):
        model, expected = on("cuda"), on("cpu")(IDS).logits
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            logits = model(IDS.cuda()).logits
        stream.synchronize()
        self.close(logits, expected)

    def test_generation(self):
        expected = on("cpu").generate(IDS[:1], max_new_tokens=12, do_sample=False)
        for options in ({}, {"cache_implementation": "static"}):
            written = on("cuda").generate(IDS[:1].cuda(), max_new_tokens=12, do_sample=False,
                                          **options)
            self.assertTrue(torch.equal(written.cpu(), expected), options)

    def test_compiled(self):
        for mode in ("default", "reduce-overhead"):
            model = on("cuda")
            compiled = torch.compile(model, mode=mode)
            for _ in range(3):
                logits = compiled(IDS.cuda()).logits
            self.close(logits, on("cpu")(IDS).logits)

    def test_by_structure(self):
        with tempfile.TemporaryDirectory() as folder:
            model = models.make("DeepseekV3")
            model.save_pretrained(folder)
            with torch.no_grad():
                expected = model(IDS).logits
            self.close(on("cuda", folder)(IDS.cuda()).logits, expected)

    def test_wrong_places(self):
        engine = on("cuda").moert
        x = torch.zeros(1, 128)
        with self.assertRaises(moert.Error), engine.step("decode", 1) as step:
            step.forward(0, x, torch.empty_like(x))


if __name__ == "__main__":
    unittest.main()
