#!/usr/bin/env python3
"""An unmodified llama-server with four slots, with and without the plug-in.

server_test.py SERVER PLUGIN MODEL WORK_DIR [gpu]

gpu: everything lies on the GPU, but for experts where the plug-in is loaded.

Requests one by one, and four prompts of one request, are batched the same way every time: tokens and
probabilities with the plug-in are those without it, digit by digit. Requests that come when they like
share batches as they happen to meet, which changes last bits of llama.cpp's own results. They end in
full, and their first probabilities are those of the request alone but for such bits.
"""
import concurrent.futures
import os
import pathlib
import random
import re
import sys
import time

from running_server import RunningServer

SLOTS = 4
CONTEXT = 256  # of each slot


def prompt(count, seed=0):
    return [3 + (i * 37 + seed * 11) % 256 for i in range(count)]


class Server(RunningServer):
    """A running llama-server. With a budget, the plug-in is loaded."""

    def __init__(self, program, model, log, plugin=None, budget=None, gpu=False):
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "MOERT_STATS": "1"}
        environment.pop("GGML_BACKEND_PATH", None)
        if budget:
            environment.update(GGML_BACKEND_PATH=plugin, MOERT_BUDGET=budget)
            if not gpu:  # named, as experts that all fit are llama.cpp's otherwise
                environment["MOERT_STRATEGY"] = "on-demand"
        command = [program, "--model", model, "--host", "127.0.0.1", "--port", "0", "--parallel", SLOTS,
                   "--ctx-size", SLOTS * CONTEXT, "--threads", 2, "--context-shift", "--no-repack",
                   "--cache-ram", 0, "--slot-prompt-similarity", 0, "--no-warmup", "--offline"]
        if gpu:
            command += ["--n-gpu-layers", 99] + (["--override-tensor", "exps=CPU"] if budget else [])
        super().__init__(command, environment, log)

    def complete(self, tokens, count, **options):
        """The answer to one prompt, or the list of answers to a list of them."""
        status, content = self.get("/completion", "POST", request(tokens, count, **options))
        assert status == 200, content
        return content

    def cancel(self, tokens, count, events):
        """Hangs up after so many events of a stream; with 0, before the server has answered."""
        connection = self.connect("POST", "/completion", request(tokens, count, stream=True))
        if events > 0:
            reply = connection.getresponse()
            for _ in range(events):
                assert reply.readline().startswith(b"data: ") and reply.readline() == b"\n"
        connection.close()

    def wait_until_idle(self):
        for _ in range(600):
            if not any(slot["is_processing"] for slot in self.get("/slots")[1]):
                return
            time.sleep(0.1)
        raise AssertionError("slots go on with requests that nobody waits for")


def request(tokens, count, **options):
    """Greedy, and without bytes beyond ASCII: of parts of a character the server tells no probabilities."""
    return {"prompt": tokens, "n_predict": count, "temperature": 0, "n_probs": 4, "cache_prompt": False,
            "return_tokens": True, "ignore_eos": True,
            "logit_bias": [[3 + byte, False] for byte in range(128, 256)], **options}


def essence(answer):
    if isinstance(answer, list):
        return [essence(one) for one in sorted(answer, key=lambda one: one["index"])]
    return {key: answer[key] for key in ("tokens", "completion_probabilities", "truncated")}


def one_by_one(server):
    """Requests alone on the server, in every slot; the second continues what its slot has cached."""
    answers = []
    for slot in range(SLOTS):
        tokens = prompt(20 + 30 * slot, slot)
        answers.append(server.complete(tokens, 8, id_slot=slot, cache_prompt=True))
        answers.append(server.complete(tokens + prompt(9), 8, id_slot=slot, cache_prompt=True))
        assert answers[-1]["timings"]["cache_n"] > 0
    return [essence(answer) for answer in answers]


def together(server):
    """Four prompts of different lengths, one in each slot."""
    answers = server.complete([prompt(count, count) for count in (3, 120, 47, 80)], 24)
    assert len(answers) == SLOTS
    return essence(answers)


def shifted(server):
    """More tokens than a slot has room for."""
    answer = server.complete(prompt(40, 1), CONTEXT + 50)
    assert answer["truncated"] and len(answer["tokens"]) == CONTEXT + 50, answer["timings"]
    return essence(answer)


def first_probabilities(answer):
    return {top["id"]: top["logprob"] for top in answer["completion_probabilities"][0]["top_logprobs"]}


def in_any_order(server, gpu):
    """Three times as many clients as slots. A GPU has other kernels for other batches: probabilities of
    llama.cpp itself differ too much there."""
    lengths = random.Random(1)
    jobs = [(prompt(lengths.randrange(1, 150), seed), lengths.randrange(1, 60)) for seed in range(12)]
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        answers = list(pool.map(lambda job: server.complete(*job), jobs))
    for (tokens, count), answer in zip(jobs, answers):
        assert len(answer["tokens"]) == count and not answer["truncated"], answer
        if gpu:
            continue
        alone = first_probabilities(server.complete(tokens, 1))
        for token, probability in first_probabilities(answer).items():
            assert abs(probability - alone.get(token, probability)) < 0.02, (tokens, answer, alone)
        assert len(alone.keys() & first_probabilities(answer).keys()) >= 3, (answer, alone)


def given_up(server):
    """Clients that hang up: while tokens come, and while they wait for a slot."""
    jobs = [(prompt(30 + seed, seed), 200, seed % 4) for seed in range(12)]
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(lambda job: server.cancel(*job), jobs))
    server.wait_until_idle()


def all_answers(server, gpu):
    answers = [one_by_one(server), together(server), shifted(server)]
    in_any_order(server, gpu)
    given_up(server)
    # The model before has left nothing behind.
    return answers + [[server.complete(prompt(20), 8, id_slot=slot)["tokens"] for slot in range(SLOTS)]]


def test_budgets(program, plugin, model, work, gpu):
    with Server(program, model, work / "stock.log", gpu=gpu) as server:
        expected = all_answers(server, gpu)
        assert "moert" not in server.end()
    # Where all experts fit they become the GPU's own.
    for budget in ("60%" if gpu else "100%", "25%", "4%"):
        with Server(program, model, work / "with.log", plugin, budget, gpu) as server:
            answers = all_answers(server, gpu)
            said = server.end()
        assert answers == expected, f"other answers at {budget}"
        assert re.search(r"moert: .* [1-9]\d* (loads|experts came beside)", said), said
        assert not gpu or "on the GPU" in said, said
    print("answers of 4 slots are those without the plug-in, at 3 budgets")
    return expected


def test_short_file(program, plugin, model, work, expected):
    """A file that is cut short in use: that request fails. When it is whole again, the next does not."""
    copy = work / "short.gguf"
    whole = pathlib.Path(model).read_bytes()
    copy.write_bytes(whole)
    with Server(program, copy, work / "short.log", plugin, "4%") as server:
        os.truncate(copy, len(whole) - (1 << 20))  # the last tensor is one of experts
        failures = [server.get("/completion", "POST", request(prompt(100, seed), 8))[0] for seed in range(3)]
        assert failures == [500] * 3, failures
        assert server.get("/health")[0] == 200
        with open(copy, "r+b") as file:
            file.seek(len(whole) - (1 << 20))
            file.write(whole[-(1 << 20):])
        assert one_by_one(server) == expected[0]
        said = server.end()
    assert re.search(r"moert: .*truncated while in use", said), said
    print("a file cut short fails its requests alone")


def main():
    program, plugin, model, work = sys.argv[1:5]
    gpu = sys.argv[5:] == ["gpu"]
    work = pathlib.Path(work)
    expected = test_budgets(program, plugin, model, work, gpu)
    if not gpu:  # a GPU's experts all lie in pinned RAM
        test_short_file(program, plugin, model, work, expected)


if __name__ == "__main__":
    main()
