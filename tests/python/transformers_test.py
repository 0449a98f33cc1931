"""A transformers model whose MoE blocks libmoert computes: the same perplexity within 0.1 %, the same
greedy text. Skipped where torch and transformers 5 are not installed."""
import array
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "examples/models/tiny-moe"
sys.path.insert(0, str(ROOT / "examples/python"))

try:
    import torch
    import transformers
    available = int(transformers.__version__.split(".")[0]) >= 5
except ImportError:
    available = False

if available:
    import moert.transformers
    from perplexity import perplexity


@unittest.skipUnless(available, "torch and transformers 5 are not installed")
class Transformers(unittest.TestCase):
    def setUp(self):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self.model.eval()
        text = (ROOT / "tests/data/eval/gsm8k.tokens.u16").read_bytes()
        self.tokens = array.array("H", text)[:1536].tolist()

    def test_perplexity_and_text(self):
        plain = perplexity(self.model, self.tokens, 512)
        prompt = torch.tensor([self.tokens[:24]])
        text = self.model.generate(prompt, max_new_tokens=24, do_sample=False)
        # Fewer rows than a window has: several steps side by side.
        engine = moert.transformers.attach(self.model, MODEL, budget_fraction=0.25, max_tokens=200,
                                           numerics="f32")
        ours = perplexity(self.model, self.tokens, 512)
        print(f"perplexity {plain:.6f}, with libmoert {ours:.6f}: {100 * (ours / plain - 1):+.5f} %")
        self.assertLess(abs(ours / plain - 1), 1e-3)
        self.assertTrue(engine.exact and engine.stats().loads > 0)
        self.assertLessEqual(engine.stats().peak_bytes, engine.stats().budget_bytes)
        self.assertTrue(torch.equal(text, self.model.generate(prompt, max_new_tokens=24,
                                                              do_sample=False)))

    def test_a_batch_and_bf16(self):
        ids = torch.tensor([self.tokens[:32], self.tokens[32:64]])
        with torch.no_grad():
            plain = self.model(ids).logits
            moert.transformers.attach(self.model, MODEL)
            # bf16 activations in libmoert, as its default is.
            self.assertLess((self.model(ids).logits - plain).abs().max().item(), 0.2)
            self.model.to(torch.bfloat16)
            logits = self.model(ids).logits
        self.assertTrue(torch.isfinite(logits).all())
        agree = (logits.argmax(-1) == plain.argmax(-1)).float().mean().item()
        self.assertGreater(agree, 0.9)

    def test_errors(self):
        source = moert.Source.from_weights(
            "other", [moert.Source.layer(num_experts=4, hidden=64, intermediate=16)],
            lambda *what: [0.0] * (what[4] * what[5]))
        with self.assertRaisesRegex(ValueError, "8 MoE blocks"):
            moert.transformers.attach(self.model, source)
        moert.transformers.attach(self.model, MODEL)
        with self.assertRaisesRegex(RuntimeError, "gradients"):
            self.model(torch.tensor([[1, 2, 3]]))


if __name__ == "__main__":
    unittest.main()
