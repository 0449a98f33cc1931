"""lm-evaluation-harness over a model whose experts libmoert holds: a task of its own, made here,
and the same scores as transformers alone. lm_eval_test.py MODEL_DIR"""
import json
import pathlib
import sys
import tempfile

import lm_eval
import transformers
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import moert

QUESTIONS = [("12 plus 7 is", ["19", "3", "120"], 0), ("A dozen is", ["7", "12", "100"], 1),
             ("2 times 3 is", ["5", "9", "6"], 2), ("10 minus 4 is", ["6", "14", "40"], 0)]

TASK = """task: moert_sums
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
"""


def scores(model, tokenizer, folder):
    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, device="cpu")
    found = lm_eval.simple_evaluate(harness, tasks=["moert_sums"],
                                    task_manager=TaskManager(include_path=folder),
                                    bootstrap_iters=0)
    choices = [sample["resps"] for sample in found["samples"]["moert_sums"]]
    likelihoods = [float(r[0][0]) for sample in choices for r in sample]
    return found["results"]["moert_sums"]["acc,none"], likelihoods


def main():
    path = sys.argv[1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "sums.json")
        data.write_text("\n".join(json.dumps({"question": q, "choices": c, "answer": a})
                                  for q, c, a in QUESTIONS))
        pathlib.Path(folder, "sums.yaml").write_text(TASK.format(data=data))
        plain = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
        expected = scores(plain, tokenizer, folder)
        ours = scores(moert.from_pretrained(path, budget="25%", dtype="float32", numerics="f32"),
                      tokenizer, folder)
    difference = max(abs(a - b) for a, b in zip(expected[1], ours[1]))
    print(f"accuracy {ours[0]} of {expected[0]}; {len(ours[1])} log-likelihoods, largest "
          f"difference {difference:.1e}")
    assert ours[0] == expected[0] and len(ours[1]) == 12 and difference < 1e-2


if __name__ == "__main__":
    main()
