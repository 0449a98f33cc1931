#!/usr/bin/env python3
"""A day in the life of an unmodified llama-server with the plug-in: four agents at once, a budget that moves.

day_test.py SERVER PLUGIN MODEL WORK_DIR [FAKE_GPU]

FAKE_GPU: a folder with a stand-in for CUDA, whose free memory moves in the budget's place.

Agents send growing conversations with tools and results of tools, ask for short answers, whole or as they come, and begin
anew where a slot is full. MOERT_BUDGET_FILE has another budget every second or so. No request fails, a question asked alone
has the same answer at every budget, and what the server holds at the smallest budget does not grow from round to round.
"""
import concurrent.futures
import itertools
import os
import pathlib
import re
import sys
import threading
import time

import chat_client
from running_server import RunningServer

AGENTS = 4
CONTEXT = 1024  # tokens of each
TURNS, ROUNDS = 200, 4
# The first is also that of the comparisons.
BUDGETS = ["8%", "60%", "25%", "100%", "15%"]
FREE_BYTES = ["1000000", "9000000", "30000000", "2000000", "20000000"]
INTERVAL, TOOL = 1.2, 0.5  # seconds: of a budget, of an agent's tool
GROWTH = 4 << 20  # bytes: heaps are not returned to the byte
TOOLS = [{"type": "function", "function": {
    "name": "read_file", "description": "Returns lines of a file",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
                   "required": ["path"]}}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{
    "id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "main.c", "line": 1}'}}]}
QUESTION = "Which way does the river run?"


def text(seed, words):
    return " ".join(f"word{(seed * 7919 + i * 104729) % 997}" for i in range(words))


class Agent:
    """Turns of one conversation after the other."""

    def __init__(self, server, number):
        self.server, self.number, self.messages, self.tokens = server, number, [], 0

    def turn(self, number):
        if not self.messages or self.tokens > CONTEXT // 2:
            self.messages = [{"role": "system", "content": text(self.number, 24)}]
        if number % 3 == 2:
            time.sleep(TOOL)
            self.messages += [CALL, {"role": "tool", "tool_call_id": "call_1", "content": text(number, 40)}]
        else:
            self.messages.append({"role": "user", "content": text(number, 12)})
        stream = number % 2 == 1
        body = {"messages": self.messages, "max_tokens": 8, "tools": TOOLS, "stream": stream, "temperature": 0.8,
                "seed": number, "cache_prompt": True, **({"stream_options": {"include_usage": True}} if stream else {})}
        events = list(chat_client.by_http(self.server, body))
        self.tokens = next(event["usage"]["total_tokens"] for event in events if event.get("usage"))
        self.messages.append({"role": "assistant", "content": chat_client.text_of(events, stream)})


class Moving:
    """A file, and a thread that changes it."""

    def __init__(self, path, texts):
        self.path, self.texts, self.stopping = path, texts, threading.Event()
        self.set(texts[0])

    def set(self, text):
        new = self.path.with_suffix(".new")
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(self.path)

    def move(self):
        for text in itertools.cycle(self.texts[1:] + self.texts[:1]):
            self.set(text)
            if self.stopping.wait(INTERVAL):
                return

    def __enter__(self):
        self.stopping.clear()
        self.thread = threading.Thread(target=self.move)
        self.thread.start()

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()
        self.set(self.texts[0])


def rest(server, expected):
    """At the smallest budget, alone: the answer, and the bytes that are held."""
    for _ in range(4):  # budgets are looked at once a second, and a followed one gives back bit by bit
        time.sleep(1.1)
        answer = chat_client.answer(server, QUESTION, 16)[0]
        assert expected in (None, answer), (answer, expected)
    return answer, server.memory()


def settings(work, gpu):
    """What moves, the server's flags, and its environment."""
    if gpu is None:
        moving = Moving(work / "budget", BUDGETS)
        return moving, [], {"MOERT_BUDGET_FILE": str(moving.path)}
    moving = Moving(work / "free", FREE_BYTES)
    moving.set(FREE_BYTES[1])  # that an engine can begin with
    return moving, ["-ngl", 99, "-ot", "exps=CPU"], {"FAKE_GPU_BYTES": str(moving.path), "LD_LIBRARY_PATH": str(gpu)}


def main():
    program, plugin, model, work = (pathlib.Path(word).resolve() for word in sys.argv[1:5])
    gpu = pathlib.Path(sys.argv[5]).resolve() if sys.argv[5:] else None
    moving, flags, variables = settings(work, gpu)
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "MOERT_STATS": "1", "GGML_BACKEND_PATH": str(plugin),
                   "MOERT_STATS_FILE": str(work / "day.stats"), **variables}
    command = [program, "--model", model, "--host", "127.0.0.1", "--port", "0", "--parallel", AGENTS, "--jinja",
               "--ctx-size", AGENTS * CONTEXT, "--threads", 2, "--no-repack", "--cache-ram", 0, "--no-warmup", "--offline",
               *flags]
    held, answer = [], None
    with RunningServer(command, environment, work / "day.log", gpu) as server:
        agents = [Agent(server, number) for number in range(AGENTS)]
        for number in range(ROUNDS):
            with moving, concurrent.futures.ThreadPoolExecutor(AGENTS) as pool:
                each = range(number * TURNS // (ROUNDS * AGENTS), (number + 1) * TURNS // (ROUNDS * AGENTS))
                list(pool.map(lambda agent: [agent.turn(t) for t in each], agents))
            answer, memory = rest(server, answer)
            held.append(memory)
        said = server.end()
    moved = len(re.findall(r"^moert: .* from now on$", said, re.M))
    print(f"{AGENTS} agents, {TURNS} turns, {moved} budgets; held at the smallest: "
          f"{', '.join(f'{h / 2**20:.1f}' for h in held)} MiB")
    assert moved >= 2 * ROUNDS, said
    assert gpu is None or "on the GPU" in said, said
    assert max(held[1:]) <= held[0] + GROWTH, held
    assert re.search(r"^# .* tokens, ", (work / "day.stats").read_text(encoding="utf-8")), "no statistics"


if __name__ == "__main__":
    main()
