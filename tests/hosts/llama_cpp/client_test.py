#!/usr/bin/env python3
"""llama-server with the plug-in by the three commands of a page, and a client of its chat API.

client_test.py SERVER PLUGIN PAGE WORK_DIR [MODEL]

The commands are those of PAGE (docs/guide/one-card.md), but for the budget, of which MODEL has no need, and the port.
MODEL: a GGUF with a vocabulary; without it, the bundled model. Answers are those of the server without the plug-in,
whole and as they come. Exits with 77 where SERVER or PLUGIN is not there.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import chat_client
from running_server import RunningServer

HERE = pathlib.Path(__file__).resolve().parent
QUESTIONS = ["Hello", "Write a program that counts words."]
TOKENS = 48


def commands_of(page):
    """The two that start the server, and the one that asks it."""
    block = re.search(r"```sh\n(export GGML_BACKEND_PATH=.*?)```", page.read_text(encoding="utf-8"), re.S)
    lines = block[1].strip().splitlines()
    assert len(lines) == 3 and lines[2].startswith("curl "), lines
    return "\n".join(lines[:2]), lines[2]


def prepared(work, plugin, model):
    """A home with the plug-in and a folder with the model, as the page names them."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "home").mkdir(parents=True)
    (work / "home/moert").symlink_to(plugin.parent)
    if model is None:
        subprocess.run([sys.executable, HERE / "trained_gguf.py", HERE.parents[2] / "examples/models/tiny-moe",
                        work / "MODEL.gguf"], check=True)
    else:
        (work / "MODEL.gguf").symlink_to(model)


def answers(server):
    """Of every question, whole and in parts, which are the same."""
    found = []
    for question in QUESTIONS:
        whole, parts = (chat_client.answer(server, question, TOKENS, stream)[0] for stream in (False, True))
        assert whole and whole == parts, (whole, parts)
        found.append(whole)
    return found


def by_curl(line, server):
    asked = line.replace("localhost:8080", f"127.0.0.1:{server.port}")
    assert asked != line, line
    reply = subprocess.run(["bash", "-c", asked], capture_output=True, check=True, timeout=300)
    assert json.loads(reply.stdout)["choices"][0]["message"]["content"], reply.stdout


def main():
    program, plugin, page, work = (pathlib.Path(word).resolve() for word in sys.argv[1:5])
    for needed in (program, plugin):
        if not needed.exists():
            print(f"skipped: there is no {needed}")
            return 77
    prepared(work, plugin, pathlib.Path(sys.argv[5]).resolve() if sys.argv[5:] else None)
    start, ask = commands_of(page)
    start, budgets = re.subn(r"MOERT_BUDGET=\S+", "MOERT_BUDGET=25%", start)
    assert budgets == 1, start
    environment = {**os.environ, "HOME": str(work / "home"), "PATH": f"{program.parent}:{os.environ['PATH']}",
                   "LLAMA_ARG_PORT": "0", "OMP_WAIT_POLICY": "passive", "MOERT_STATS": "1"}
    environment.pop("GGML_BACKEND_PATH", None)
    with RunningServer(start, environment, work / "with.log", work) as server:
        found = answers(server)
        if shutil.which("curl"):
            by_curl(ask, server)
        said = server.end()
    assert re.search(r"^moert: \S*MODEL\.gguf: .* a budget of", said, re.M), said
    assert re.search(r"^moert: .* [1-9]\d* loads", said, re.M), said
    stock = start.splitlines()[1].split(" ", 1)[1]
    with RunningServer(stock, environment, work / "stock.log", work) as server:
        assert found == answers(server), "other answers than without the plug-in"
        assert "moert:" not in server.end()
    print(f"{chat_client.NAME}: answers of three commands are those without the plug-in")
    return 0


if __name__ == "__main__":
    sys.exit(main())
