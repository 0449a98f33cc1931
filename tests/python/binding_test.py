"""The binding: what it declares is moert.h, errors reach their caller, nothing leaks."""
import array
import ctypes
import gc
import os
import pathlib
import re
import tempfile
import threading
import time
import unittest

import moert
import moert.pack_cache
import moert.tools
from moert import _c

ROOT = pathlib.Path(__file__).resolve().parents[2]
HIDDEN = 64
try:
    TOOLS = moert.tools.path("moert-run") and moert.tools.path("moert-pack")
except FileNotFoundError:
    TOOLS = None


def layers(experts=8, top_k=2):
    return [moert.Source.layer(model_layer=l, num_experts=experts, top_k=top_k, hidden=HIDDEN,
                               intermediate=48) for l in range(2)]


def weights(layer, expert, part, first_row, rows, cols):
    start = first_row * cols
    salt = expert * 97 + layer * 31
    return [(((start + i) * 2654435761 + salt >> 7) % 2001) / 8000 - 0.125
            for i in range(rows * cols)]


def floats(seed, rows=1):
    return array.array("f", (((i * 37 + seed * 101) % 199) / 99 - 1 for i in range(rows * HIDDEN)))


class Binding(unittest.TestCase):
    @unittest.skipUnless(TOOLS, "the tools are not built")
    def test_a_checkpoint_is_quantized_once_for_tools_and_python(self):
        model = ROOT / "examples/models/tiny-moe"
        with tempfile.TemporaryDirectory() as cache:
            moert.tools.run("moert-run", ["generate", "--model", str(model), "--cache", cache, "--as",
                                          "w4a16_g128", "--prompt", "x", "--max-tokens", "1"])
            source = moert.pack_cache.quantized(model, "w4a16_g128", cache)
            self.assertEqual([name for name, _ in source.versions()], ["w4a16_g128"])
            self.assertEqual(len(list(pathlib.Path(cache).glob("*/moert.json"))), 1)

    @unittest.skipUnless(TOOLS, "the tools are not built")
    def test_what_is_quantized_is_said_with_its_size(self):
        with tempfile.TemporaryDirectory() as cache, self.assertLogs("moert", "WARNING") as said:
            moert.pack_cache.quantized(ROOT / "examples/models/tiny-moe", "w4a16_g128", cache)
        self.assertRegex(" ".join(said.output), r"writing [\d.]+ MiB into " + re.escape(cache))

    def test_a_checkpoint_is_opened_in_place_unless_a_pack_is_asked_for(self):
        model = ROOT / "examples/models/tiny-moe"
        with tempfile.TemporaryDirectory() as cache:
            moert.Source.open(model, cache)
            moert.Source.open(model, cache, mode="in_place")
            self.assertEqual(list(pathlib.Path(cache).iterdir()), [])
            moert.Source.open(model, cache, mode="pack")
            self.assertEqual(len(list(pathlib.Path(cache).glob("*/moert.json"))), 1)
        with self.assertRaisesRegex(ValueError, "legal are pack_if_there, pack, in_place"):
            moert.Source.open(model, mode="copy")

    def test_structs_are_those_of_the_header(self):
        frozen = (ROOT / "tests/abi/layout.c").read_text()
        for kind, name in _c._NAMES.items():
            size = re.search(rf"ABI_SIZE\(moert_{name}, (\d+)\)", frozen)
            self.assertIsNotNone(size, name)
            self.assertGreaterEqual(int(size[1]), ctypes.sizeof(kind), name)
            for field, _ in kind._fields_[1:]:
                offset = re.search(rf"ABI_(?:FIELD|LAST)\(moert_{name}, {field}, (\d+)\)", frozen)
                if offset and "ABI_FIELD" in offset[0]:
                    self.assertEqual(int(offset[1]), getattr(kind, field).offset, (name, field))

    def test_a_host_predicts(self):
        source = moert.Source.from_weights("w", layers(), weights)
        engine = moert.Engine(source, strategy="importance:alpha=0", budget=0.5)
        calls, y = [], floats(0)

        def predict(layer, partial, next_input):
            self.assertEqual((layer, len(partial), len(next_input)), (0, HIDDEN, HIDDEN))
            next_input[:] = list(floats(5))
            calls.append(layer)
            if len(calls) == 1:
                raise RuntimeError("a host's bug")
            return len(calls) > 2

        for s in range(6):
            with engine.step("decode", 1, predict_next=predict) as step:
                for l in range(2):
                    step.forward(l, floats(2 * s + l), y)
        stats = engine.stats()
        self.assertGreaterEqual(len(calls), 3)
        metrics = engine.metrics()
        self.assertEqual(metrics["moert_predictions_resident_forward_total"], len(calls) - 2)
        self.assertEqual(metrics["moert_lookups_total"], stats.lookups)
        self.assertEqual(stats.policy_fallbacks, 2)

    def test_errors_of_the_library(self):
        with self.assertRaises(moert.Error) as refused:
            moert.Source.from_weights("none", [], weights)
        self.assertEqual(refused.exception.code, "INVALID_ARGUMENT")
        source = moert.Source.from_weights("w", layers(), weights)
        with self.assertRaisesRegex(moert.Error, "on-demand"):
            moert.Engine(source, strategy="no-such")
        engine = moert.Engine(source)
        with engine.step("decode", 1) as step:
            with self.assertRaises(ValueError):
                step.forward(0, floats(1), array.array("f", [0.0] * 8))
            with self.assertRaises(TypeError):
                step.forward(0, array.array("d", [0.0] * HIDDEN), floats(1))
            with self.assertRaisesRegex(moert.Error, "layer is 5"):
                step.forward(5, floats(1), floats(1))
        self.assertIn("importance", moert.strategies())

    def test_budgets_as_people_write_them(self):
        for value, expected in ((1 << 30, (1 << 30, 0.0)), ("8GiB", (8 << 30, 0.0)),
                                ("1.5 MB", (1500000, 0.0)), (0.25, (0, 0.25)), ("25%", (0, 0.25)),
                                (1.0, (0, 1.0)), ("0.5", (0, 0.5)),
                                ("8589934592", (8 << 30, 0.0))):
            self.assertEqual(moert.sizes.budget(value), expected, value)
        for value in ("8 gigs", "", "-1GiB", 0, -3, 1.5, 0.0, "200%", "50", "8"):
            with self.assertRaisesRegex(ValueError, "legal are bytes"):
                moert.sizes.budget(value)
        with self.assertRaisesRegex(TypeError, "legal are bytes"):
            moert.sizes.budget(None)

    def test_plans_and_probes_take_nothing(self):
        source = moert.Source.from_weights("w", layers(), weights)
        memory = moert.plan(source, budget="50%")
        self.assertEqual((memory.total_experts, memory.slots), (16, 8))
        self.assertEqual((source.name, source.layers, source.spec(1).num_experts), ("w", 2, 8))
        self.assertEqual([name for name, _ in source.versions()], ["bf16"])
        with self.assertRaisesRegex(moert.Error, "budget"):
            moert.plan(source, budget=1)
        self.assertIn("reference", moert.probe().kernels.decode())
        import copy
        with self.assertRaisesRegex(TypeError, "owns memory"):
            copy.deepcopy(source)

    def test_errors_of_the_host(self):
        broken = []

        def read(layer, expert, part, *shape):
            if broken and part == "gate_proj":
                raise OSError(f"expert {expert} is gone")
            return weights(layer, expert, part, *shape)

        engine = moert.Engine(moert.Source.from_weights("w", layers(), read))
        broken.append(True)
        with self.assertRaisesRegex(moert.Error, r"OSError: expert \d is gone") as failed:
            with engine.step("decode", 1) as step:
                step.forward(0, floats(1), floats(1))
        self.assertEqual(failed.exception.code, "DATA_LOSS")
        broken.clear()
        with engine.step("decode", 1) as step:
            step.forward(0, floats(1), floats(1))
            step.cancel()
            with self.assertRaisesRegex(moert.Error, "CANCELLED"):
                step.forward(1, floats(1), floats(1))
            with self.assertRaisesRegex(moert.Error, "CANCELLED"):
                step.end()

    def test_numbers_and_paths_are_not_cut(self):
        source = moert.Source.from_weights("w", layers(), weights)
        with self.assertRaisesRegex(OverflowError, f"budget_bytes is {2**64}"):
            moert.Engine(source, budget=2**64)
        with self.assertRaisesRegex(OverflowError, f"threads is {2**32 + 1}"):
            moert.Engine(source, threads=2**32 + 1)
        with self.assertRaisesRegex(OverflowError, f"rows is {2**64 + 1}"):
            moert.Engine(source).step("decode", rows=2**64 + 1)
        for opens in (moert.Source.open, moert.Source.open_pack):
            for wrong in (None, 5):
                with self.assertRaises(TypeError):
                    opens(wrong)
            with self.assertRaisesRegex(ValueError, "a path with a NUL"):
                opens("a\0b")
        with self.assertRaisesRegex(moert.Error, "/no/such"):
            moert.Source.open(b"/no/such")
        with self.assertRaisesRegex(TypeError, "a moert.Source is wanted"):
            moert.Engine("/a/folder")
        with self.assertRaisesRegex(ValueError, "legal are prefill, decode"):
            moert.Engine(source).step("decoding", rows=1)

    def test_closing_waits_for_calls_of_other_threads(self):
        source = moert.Source.from_weights("w", layers(), weights)
        for _ in range(30):  # destroyed under a call, it would crash
            engine = moert.Engine(source, threads=1)
            step = engine.step("decode", rows=1)

            def ask():
                try:
                    while True:
                        engine.metrics()
                        engine.set_budget(0.9)
                except moert.Error:
                    pass

            def compute():
                out = floats(0)
                try:
                    while True:
                        step.forward(0, floats(1), out)
                except moert.Error:
                    pass

            threads = [threading.Thread(target=f) for f in (ask, ask, compute, compute)]
            for thread in threads:
                thread.start()
            time.sleep(0.002)
            engine.close()
            step.abandon()
            for thread in threads:
                thread.join()

    @unittest.skipUnless((pathlib.Path(os.environ.get("MOERT_TOOLS", "")) / "moert-pack").is_file(),
                         "moert-pack is not built")
    def test_one_of_several_quantizes(self):
        opened = []
        with tempfile.TemporaryDirectory() as cache:
            threads = [threading.Thread(target=lambda: opened.append(moert.open_experts(
                ROOT / "examples/models/tiny-moe", "w4a16_g128", cache).versions()[0][0]))
                for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(opened, ["w4a16_g128"] * 3)

    def test_memory_of_parts_holds_all_experts(self):
        layer = [moert.Source.layer(num_experts=8, hidden=HIDDEN, intermediate=HIDDEN,
                                    routing="external")]
        small = bytearray(8 * 64 - 1)
        with self.assertRaisesRegex(ValueError, "8 experts of 64 bytes, 64 apart from offset 0 on, "
                                                "end at 512; the memory has 511 bytes"):
            moert.Source.from_records("r", layer, [moert.Source.part(0, 64, memory=small)])

    def test_budgets_do_not_change_the_output(self):
        def run(**options):
            engine = moert.Engine(moert.Source.from_weights("w", layers(), weights),
                                  virtual_clock=True, **options)
            y, out = array.array("f", bytes(4 * 3 * HIDDEN)), []
            with engine.step("prefill", 3, request_ids=[4, 4, 5]) as step:
                for layer in range(engine.layers):
                    step.forward(layer, floats(2, rows=3), y)
                    out.append(y.tobytes())
            return out, engine
        full, engine = run()
        self.assertTrue(engine.exact and not engine.graph_safe)
        needs = engine.graph_needs()
        self.assertEqual((needs.capturable, needs.eager_every), (0, 0))
        self.assertIn(b"computes on the host", needs.obstacle)
        tight, engine = run(budget=0.25)
        self.assertEqual(full, tight)
        self.assertGreater(engine.stats().loads, 0)
        self.assertEqual(engine.memory().total_experts, 16)
        self.assertEqual(len(engine.residency(0)), 8)
        routed = array.array("f", bytes(4 * HIDDEN))
        ids, used = array.array("i", [6, 1]), array.array("i", [0, 0])
        with engine.step("decode", 1) as step:
            step.forward_routed(0, floats(2), ids, array.array("f", [0.5, 0.5]), routed, used)
        self.assertEqual(used, ids)
        self.assertTrue(any(routed))
        # With scores the same comes out; of another shape they are refused.
        scored, scores = array.array("f", bytes(4 * HIDDEN)), array.array("f", [0.5] * 8)
        half = array.array("f", [0.5, 0.5])
        step = engine.step("decode", 1)
        step.forward_routed(0, floats(2), ids, half, scored, scores=scores, next_scores=scores)
        with self.assertRaises(moert.Error):
            step.forward_routed(0, floats(2), ids, half, array.array("f", scored), scores=scores[1:])
        step.abandon()
        self.assertEqual(scored, routed)

    def test_shards_add_up(self):
        def run(source, ids=None, **options):
            engine = moert.Engine(source, virtual_clock=True, numerics="f32", **options)
            y = array.array("f", bytes(4 * 2 * HIDDEN))
            with engine.step("decode", 2) as step:
                if ids is None:
                    step.forward(1, floats(3, rows=2), y)
                else:
                    step.forward_routed(1, floats(3, rows=2), array.array("i", ids),
                                        array.array("f", [0.5, 0.25, 1, 2]), y)
            return y

        def close(sum_of, whole):
            for value, *parts in zip(whole, *sum_of):
                self.assertAlmostEqual(value, sum(parts), delta=1e-5)
        source = moert.Source.from_weights("w", layers(), weights)
        shards = [{"first_expert": 0, "num_experts": 3}, {"first_expert": 3, "num_experts": 5}]
        close([run(source, shard=shard) for shard in shards], run(source))
        lists = [[[0, 2, 7], [1, 5]], [[1, 3, 4, 5, 6], [0, 2, 3, 4, 6, 7]]]
        close([run(source, shard={"experts": experts}) for experts in lists], run(source))
        with self.assertRaisesRegex(moert.Error, "shard"):
            run(source, shard={"first_expert": 7, "num_experts": 3})
        # A host that routes itself; -1 is an expert that is not here.
        external = moert.Source.from_weights("w", [moert.Source.layer(
            model_layer=l, num_experts=8, top_k=2, hidden=HIDDEN, intermediate=48,
            routing="external") for l in range(2)], weights)
        close([run(external, [6, -1, -1, 0]), run(external, [-1, 1, 3, -1])],
              run(external, [6, 1, 3, 0]))
        with self.assertRaisesRegex(moert.Error, "rout"):
            run(external)

    def test_shards_are_checked(self):
        source = moert.Source.from_weights("w", layers(), weights)
        source.check_shards([{"num_experts": 3}, {"first_expert": 3, "num_experts": 5}])
        with self.assertRaisesRegex(moert.Error, "both own expert 2 of layer 0"):
            source.check_shards([{"num_experts": 3}, {"first_expert": 2, "num_experts": 6}])
        with self.assertRaisesRegex(moert.Error, "no shard owns expert"):
            source.check_shards([{"num_experts": 3}])

    def test_records_of_the_host(self):
        """Part 0 lies in memory, part 1 in a file, part 2 comes by a function."""
        def content(layer, expert, part):
            return bytes((layer * 97 + expert * 31 + part * 7 + i) % 256 for i in range(600))

        def all_of(layer, part):
            return b"".join(content(layer, e, part) for e in range(6))

        broken = []

        def read(layer, expert, part):
            if broken:
                raise OSError("the disk is gone")
            return content(layer, expert, part)[:100]

        external = [moert.Source.layer(model_layer=l, num_experts=6, top_k=2, hidden=16,
                                       intermediate=16, routing="external") for l in range(2)]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "experts.bin")
            file.write_bytes(b"head" + all_of(0, 1) + all_of(1, 1))
            parts = []
            for l in range(2):
                parts += [moert.Source.part(l, 600, memory=bytearray(all_of(l, 0)), alignment=256),
                          moert.Source.part(l, 600, file=0, offset=4 + l * 3600),
                          moert.Source.part(l, 100)]
            source = moert.Source.from_records("toy", external, parts, [file], read)
        del parts
        gc.collect()
        engine = moert.Engine(source, budget=0.34)  # of 12 experts, 4
        del source
        for turn in range(6):
            with engine.step("decode", 1) as step:
                for layer in range(2):
                    chosen = [(turn * 2 + layer) % 6, (turn + 3) % 6]
                    with step.fetch(layer, array.array("i", chosen)) as slots:
                        for expert in chosen:
                            for part, size in ((0, 600), (1, 600), (2, 100)):
                                self.assertEqual(slots.part(expert, part).tobytes(),
                                                 content(layer, expert, part)[:size])
                        other = min(set(range(6)) - set(chosen))
                        self.assertEqual(slots.slot(other), -1)
                        with self.assertRaises(KeyError):
                            slots.part(other)
                        with self.assertRaises(KeyError):
                            slots.slot(6)
                    with self.assertRaisesRegex(ValueError, "released"):
                        slots.part(chosen[0])
        self.assertGreater(engine.stats().evictions, 0)
        with engine.step("decode", 1) as step:
            with self.assertRaisesRegex(moert.Error, "expert 6 does not exist"):
                step.fetch(0, array.array("i", [6]))
            with self.assertRaisesRegex(moert.Error, "at most 4 at once"):
                step.fetch(0, array.array("i", range(6)))
        engine.set_budget(0.1)
        broken.append(True)
        with self.assertRaisesRegex(moert.Error, "OSError: the disk is gone"):
            with engine.step("decode", 1) as step:
                for expert in range(6):
                    step.fetch(0, array.array("i", [expert])).release()
        with self.assertRaisesRegex(TypeError, "read-only"):
            moert.Source.part(0, 1, memory=b"x")

    def test_weights_go_with_their_last_user(self):
        class Weights:
            def __call__(self, *what):
                return weights(*what)
        mine = Weights()
        alive = [True]
        import weakref
        weakref.finalize(mine, alive.clear)
        source = moert.Source.from_weights("w", layers(), mine)
        engine = moert.Engine(source)
        del mine, source
        gc.collect()
        self.assertTrue(alive)
        del engine
        gc.collect()
        self.assertFalse(alive)

    def test_threads_share_an_engine(self):
        experts = 16
        reads = [0] * experts

        def read(layer, expert, part, *shape):
            if part == "gate_proj" and shape[0] == 0:
                reads[expert] += 1
                if reads[expert] % 3 == 2:
                    raise OSError(f"expert <{expert}> is gone")
            return weights(layer, expert, part, *shape)

        engine = moert.Engine(moert.Source.from_weights("w", layers(experts, 1), read),
                              budget=0.25)
        end = time.monotonic() + float(os.environ.get("MOERT_SOAK_SECONDS", "1"))
        wrong, counts = [], {"answered": 0, "failed": 0}

        def work(mine):
            x, y = floats(mine), floats(0)
            try:
                while time.monotonic() < end:
                    try:
                        with engine.step("decode", 1) as step:
                            step.forward_routed(mine % 2, x, array.array("i", [mine]),
                                                array.array("f", [1.0]), y)
                        counts["answered"] += 1
                    except moert.Error as e:
                        counts["failed"] += 1
                        if f"expert <{mine}> is gone" not in e.message:
                            wrong.append(f"{mine} got {e}")
            except BaseException as e:
                wrong.append(repr(e))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(experts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertGreater(min(counts.values()), 0)


if __name__ == "__main__":
    unittest.main()
