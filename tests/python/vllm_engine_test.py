"""An engine of vLLM on the CPU with and without the plug-in: tokens and their log-probabilities.
vllm_engine_test.py MODEL_DIR"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib

PROMPTS = ["Question: 12 x 7?", "The", "def add(a, b):\n",
           "Natalia sold 48 clips in April and half as many in May."]


def generate(model, options):
    """Of one engine, in this process: of each prompt its tokens and their log-probabilities."""
    from vllm import LLM, SamplingParams
    quantized = {} if options is None else {
        "quantization": "moert",
        "hf_overrides": {"quantization_config": {"quant_method": "moert", **options}}}
    llm = LLM(model, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4,
              enable_prefix_caching=False, disable_log_stats=True, **quantized)
    answers = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=0),
                           use_tqdm=False)
    outputs = [answer.outputs[0] for answer in answers]
    return {"tokens": [list(output.token_ids) for output in outputs],
            "logprobs": [[step[token].logprob for token, step in zip(output.token_ids, output.logprobs)]
                         for output in outputs]}


def announce(folder):
    """What an installed wheel says of its entry points, so that vLLM finds the plug-in by itself."""
    root = pathlib.Path(__file__).parents[2]
    points = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    info = pathlib.Path(folder, "moert-0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Name: moert\nVersion: 0\n")
    (info / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in members.items())
        for group, members in points.items()))


def run(model, options, folder):
    """generate() in a process of its own: vLLM has one engine in each."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}",
                   "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_TARGET_DEVICE": "cpu",
                   "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, model, json.dumps(options)]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    answers = [line for line in result.stdout.splitlines() if line.startswith('{"tokens"')]  # not vLLM's log
    assert result.returncode == 0 and len(answers) == 1, result.stdout
    return json.loads(answers[0])


def main():
    if len(sys.argv) > 2:
        print(json.dumps(generate(sys.argv[1], json.loads(sys.argv[2]))))
        return
    folder = tempfile.TemporaryDirectory()
    announce(folder.name)
    expected = run(sys.argv[1], None, folder.name)
    ours = run(sys.argv[1], {"budget": "25%", "numerics": "f32"}, folder.name)
    assert ours["tokens"] == expected["tokens"], (ours["tokens"], expected["tokens"])
    difference = max(abs(a - b) for x, y in zip(ours["logprobs"], expected["logprobs"]) for a, b in zip(x, y))
    print(f"{sum(map(len, ours['tokens']))} tokens of {len(PROMPTS)} prompts: the same; "
          f"log-probabilities differ by at most {difference:.1e}")
    assert difference < 1e-2, difference


if __name__ == "__main__":
    main()
