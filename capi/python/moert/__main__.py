"""python -m moert COMMAND: what is here, and the tools that come with the library."""
import os
import sys

USAGE = """usage: python -m moert doctor [--json]   what was found: library, kernels, driver, memory
       python -m moert generate MODEL    text by transformers, for every model that it has
       python -m moert run ...           moert-run: text and perplexity without torch
       python -m moert pack ...          moert-pack: makes expert packs, describes and checks
       them"""


def main(arguments=None):
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    if command == "doctor":
        from . import doctor
        return doctor.main(rest)
    if command == "generate":
        from . import generate
        return generate.main(rest)
    if command in ("run", "pack"):
        from . import tools
        try:
            tools.replace_process(f"moert-{command}", rest)
        except FileNotFoundError as error:
            print(error, file=sys.stderr)
            return 1
    if command in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    print(f"'{command}' is not a command\n{USAGE}" if command else USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
