#!/usr/bin/env python3
"""A sitting of made-up programs: settings are swept, turns rotate, every sample and failure is kept, lost cells
are named; and tables without an origin, or of mixed ones, are refused."""
import json
import pathlib
import tempfile
import unittest

import origins
import side_by_side as sitting


def plan():
    return {"question": "q", "unit": "tokens/s", "better": "more",
            "cells": {"small": {"more": "{two}"}, "large": {"more": 9}},
            "subjects": [
                {"name": "ours", "ours": True, "sample": "0.rates", "command": ["printf", '[{"rates": [%s, %s]}]', "{rate}", "{more}"],
                 "settings": {"slow": {"values": {"rate": 1}}, "fast": {"values": {"rate": 8}}}},
                {"name": "rival", "sample": "rate", "command": ["sh", "-c", "{words}"],
                 "settings": {"works": {"values": {"words": 'echo "{\\"rate\\": 7}"'}}, "fails": {"values": {"words": "exit 3"}}}}]}


class Turns(unittest.TestCase):
    def setUp(self):
        self.data = {"better": "more", "unit": "tokens/s", "ours": ["ours"], "samples": []}
        sitting.Sitting(plan(), {"two": "2"}, self.data, lambda: None).measure(["small", "large"], rounds=2)

    def test_the_best_setting_takes_part(self):
        self.assertEqual(list(sitting.values_of(self.data, "small", "ours", "turns")), ["fast"])
        self.assertEqual(sitting.values_of(self.data, "large", "ours", "turns"), {"fast": [8, 9, 8, 9]})

    def test_failures_of_the_sweep_are_kept(self):
        failed = [s for s in self.data["samples"] if "failed" in s]
        self.assertEqual({(s["subject"], s["setting"], s["part"]) for s in failed}, {("rival", "fails", "sweep")})
        self.assertTrue(all("exit 3" in s["failed"] for s in failed), failed)

    def test_another_program_begins_each_round(self):
        turns = [s["subject"] for s in self.data["samples"] if s["part"] == "turns" and s["cell"] == "small"]
        self.assertEqual(turns, ["ours", "rival", "rival", "ours"])

    def test_a_program_may_take_part_in_fewer_rounds(self):
        of, data = plan(), {**self.data, "samples": []}
        of["subjects"][1]["rounds"] = 1
        sitting.Sitting(of, {"two": "2"}, data, lambda: None).measure(["small"], rounds=3)
        self.assertEqual(sitting.values_of(data, "small", "ours", "turns"), {"fast": [8, 2] * 3})
        self.assertEqual(sitting.values_of(data, "small", "rival", "turns"), {"works": [7]})

    def test_lost_cells_are_named(self):
        self.assertEqual(sitting.lost(self.data), ["small to rival (7)"])

    def test_the_table_has_spread_and_setting(self):
        table = sitting.table(self.data)
        self.assertIn("| tokens/s | ours, `fast` | rival, `works` |", table)
        self.assertIn("| large | 8.5 (8 to 9) | 7 (7 to 7) |", table)

    def test_cells_name_settings_that_differ(self):
        for sample in self.data["samples"]:
            if (sample["cell"], sample["subject"], sample["part"]) == ("small", "ours", "turns"):
                sample["setting"] = "slow"
        table = sitting.table(self.data)
        self.assertIn("| tokens/s | ours, `slow` | rival, `works` |", table)
        self.assertIn("| small | 5 (2 to 8) | 7 (7 to 7) |", table)
        self.assertIn("| large | 8.5 (8 to 9), `fast` | 7 (7 to 7) |", table)


class SharedCommands(unittest.TestCase):
    def test_cells_that_share_a_command_run_it_once_a_round_and_none_again(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            text = "echo {size} >> {log}; echo text; echo '{\"one\": 1, \"two\": 2}'"
            both = {"command": ["sh", "-c", text]}
            of = {"better": "more", "axes": [{"first": {"path": "one"}, "second": {"path": "two"}}, {"small": {"size": 3}}],
                  "subjects": [{"name": "ours", "ours": True, "sample": "{path}", "settings": {"it": {}}, **both},
                               {"name": "rival", "cells": ["first"], "sample": "two", "settings": {"it": {}}, **both}]}
            data = {"better": "more", "ours": ["ours"], "samples": []}
            cells = list(sitting.cells_planned(of))
            self.assertEqual(cells, ["first, small", "second, small"])
            for _ in range(2):
                sitting.Sitting(of, {"log": str(log)}, data, lambda: None).measure(cells, rounds=2)
            self.assertEqual(log.read_text(), "3\n3\n")
            self.assertEqual(sitting.medians(data), {"first, small": {"ours": 1, "rival": 2}, "second, small": {"ours": 2}})
            data |= {"readme": {"first, ": "First", "none": "None", "second, ": "Second"}, "unit": "u", "commit": "0123456789", "device": {"device": "GPU"}, "link": {}}
            self.assertEqual([*sitting.readme_rows(data)],
                             [("First: small; u", "ours 1", "rival 2", "small to rival (2)", "01234567, GPU, link free"),
                              ("Second; u", "ours 2", "", "none", "01234567, GPU, link free")])


class Kept(unittest.TestCase):
    def test_no_folder_is_kept(self):
        self.assertEqual(sitting.without_folders("A=/x/y/z.so /opt/bench -m /m/a.gguf -ot blk/x"), "A=z.so bench -m a.gguf -ot blk/x")


class Origins(unittest.TestCase):
    def caption(self, data, word=""):
        with tempfile.TemporaryDirectory() as folder:
            old, origins.report.DATA = origins.report.DATA, pathlib.Path(folder)
            try:
                (origins.report.DATA / "x.json").write_text(json.dumps(data))
                return origins.caption("x", origins.Table(lambda: "", ("x",), word))
            finally:
                origins.report.DATA = old

    def test_one_commit_on_one_machine(self):
        data = {"runs": [{"commit": "0123456789ab", "device": {"device": "GPU"}}, {"commit": "01234567"}]}
        self.assertEqual(self.caption(data), "*Commit 01234567, GPU.*")

    def test_mixed_commits_need_a_word(self):
        data = {"commits": {"a": "11111111", "b": "22222222"}}
        with self.assertRaises(origins.Refused):
            self.caption(data)
        self.assertIn("b is older", self.caption(data, "b is older"))

    def test_mixed_machines_need_a_word(self):
        with self.assertRaises(origins.Refused):
            self.caption([{"commit": "11111111", "device": "A"}, {"commit": "11111111", "device": "B"}])

    def test_no_commit_needs_a_word(self):
        with self.assertRaises(origins.Refused):
            self.caption({"rows": []})


if __name__ == "__main__":
    unittest.main()
