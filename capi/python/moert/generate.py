"""python -m moert generate: text by transformers, for models that moert-run does not run."""
import argparse
import sys


def _arguments(arguments):
    parser = argparse.ArgumentParser(
        "python -m moert generate", description="Continues a prompt by transformers, with the "
        "experts held by libmoert. moert-run generate does it without torch for its own models.")
    parser.add_argument("model", help="a checkpoint's folder, or a name on the Hugging Face Hub")
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--budget", default="25%", help="8GiB, or 25%% of the experts")
    parser.add_argument("--experts", metavar="SCHEME", help="quantizes them: w4a16_g128")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--trust-remote-code", action="store_true")
    return parser.parse_args(arguments)


def main(arguments):
    a = _arguments(arguments)
    try:
        import torch  # noqa: F401
        import transformers

        import moert
    except ImportError as error:
        print(f"{error}: pip install torch transformers", file=sys.stderr)
        return 1
    trust = {"trust_remote_code": True} if a.trust_remote_code else {}
    try:
        model = moert.from_pretrained(a.model, budget=a.budget, experts=a.experts,
                                      device=a.device, **trust)
        tokenizer = transformers.AutoTokenizer.from_pretrained(model.name_or_path, **trust)
    except (OSError, ValueError, moert.Error) as error:
        print(error, file=sys.stderr)
        return 1
    prompt = tokenizer(a.prompt, return_tensors="pt").to(a.device)
    streamer = transformers.TextStreamer(tokenizer, skip_special_tokens=True)
    model.generate(**prompt, max_new_tokens=a.max_tokens, do_sample=False, streamer=streamer)
    print(f"{100 * model.moert.hit_ratio():.0f} % of experts were in memory", file=sys.stderr)
    return 0
