#!/usr/bin/env python3
"""Checks what the documents name against the sources: files, tests, tools and their flags, strategies and
their keys, functions, classes and fields.

Words that stand for something of the reader's (PACK, DIR...) are left alone.
"""
import re
import sys

import pages

SOURCES = (".h", ".cc", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt", ".rs", ".go")
FOLDERS = ("lib", "kernels", "capi", "include", "examples", "tests", "docs", "cmake")
# Flags of other programs.
FLAGS_OF_OTHERS = {"--check", "--component", "--copier", "--cpu-moe", "--cpu-offload-gb", "--fit",
                   "--mlock", "--n-cpu-moe", "--no-repack", "--no-warmup", "--sanitizers", "--set", "--slow",
                   "--target", "--test-dir", "--wrap"}
WORDS_OF_OTHERS = {"ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps", "ffn_gate_inp", "graph_compute",
                   "generate_until", "max_num_batched_tokens", "grouped_mm"}


def read(*folders):
    return "\n".join(p.read_text(encoding="utf-8", errors="replace") for f in folders
                     for p in sorted((pages.ROOT / f).rglob("*")) if p.suffix in SOURCES and p.is_file())


def strategies():
    """{name: keys} of the generated reference."""
    text = (pages.ROOT / "docs" / "reference" / "strategies.md").read_text(encoding="utf-8")
    text = text.split("<!-- registry -->")[1].split("<!-- /registry -->")[0]
    found = {}
    for part in text.split("\n### ")[1:]:
        found[part.split("`")[1]] = set(re.findall(r"^\| `([\w-]+)` \|", part, re.M))
    return found


def code_of(line):
    return [line.text] if line.kind == "code" else re.findall(r"`([^`]+)`", line.text)


def expanded(name):
    """`a.{h,cc}` and `a.*` as paths to look for."""
    braces = re.match(r"(.*)\{([^}]*)\}(.*)", name)
    return [braces[1] + b + braces[3] for b in braces[2].split(",")] if braces else [name]


def file_errors(text):
    for name in re.findall(r"(?<![\w./-])((?:%s)/[\w./{},*-]+)" % "|".join(FOLDERS), text):
        for path in expanded(name.rstrip(".,")):
            path = path.rstrip("/")
            if "NAME" in path or "<" in path or "NNN" in path:
                continue
            if not (pages.ROOT / path).exists() and not list(pages.ROOT.glob(path)) and \
                    not list(pages.ROOT.glob(path + ".*")) and not (pages.ROOT / "include" / path).exists():
                yield f"{path}: no such file"


def test_errors(text):
    for kind, name in re.findall(r"\b(unit|gpu|parity|concurrency)\.([\w.]+)_test\b", text):
        path = f"tests/{kind}/{name.replace('.', '/')}_test.cc"
        if not (pages.ROOT / path).exists():
            yield f"{kind}.{name}_test: no such test"


def tool_errors(text, flags):
    for tool, rest in re.findall(r"\b(moert-(?:run|pack|bench|sim))\b([^`\n]*)", text):
        for flag in re.findall(r"(?<![\w-])--([a-z][\w-]*)", rest):
            if flag not in flags and "--" + flag not in FLAGS_OF_OTHERS:
                yield f"{tool} --{flag}: no such flag"
    # A flag by itself, or the continuation of a command.
    for flag in re.findall(r"^\s*\[?--([a-z][\w-]*)", text):
        if flag not in flags and "--" + flag not in FLAGS_OF_OTHERS:
            yield f"--{flag}: no such flag of the tools"


def spec_errors(text, known):
    for spec in re.findall(r"[\w-]+:[\w]+=[\w,=.%/:-]+", text):
        name, _, rest = spec.partition(":")
        if name not in known:
            continue
        for key in re.findall(r"(?:^|,)([a-z_]+)=", rest):
            if key not in known[name]:
                yield f"{spec}: {name} has no key {key}"


def symbol_errors(text, symbols):
    for name in re.findall(r"\b(?:moert|MOERT)_\w+", text):
        if name not in symbols and not any(s.startswith(name) for s in symbols):
            yield f"{name}: no such name in the sources"


def word_errors(text, words):
    """Names in backquotes that look like the code's: snake_case, CamelCase, Class::Member."""
    for name in re.findall(r"(?:[A-Za-z]+::)*[A-Za-z]\w*", text if re.fullmatch(r"[\w:.()<>{}, *&]+", text) else ""):
        last = name.split("::")[-1]
        looks = "::" in name or re.fullmatch(r"[a-z]+(_[a-z0-9]+)+|[A-Z][a-z]+([A-Z][a-z0-9]+)+", last)
        if looks and last not in words:
            yield f"{name}: no such name in the sources"


def main():
    code = [p for f in ("lib", "kernels", "capi", "include", "examples", "tests", "cmake")
            for p in (pages.ROOT / f).rglob("*") if p.suffix in SOURCES]
    words = WORDS_OF_OTHERS | {p.stem for p in code}
    for path in code:
        if pages.ROOT / "tests" / "docs" not in path.parents:
            words |= set(re.findall(r"[A-Za-z_]\w*", path.read_text(encoding="utf-8", errors="replace")))
    flags = set(re.findall(r'"(?:--)?([a-z][\w-]*)', read("examples/cli")))
    symbols = set(re.findall(r"\b(?:moert|MOERT)_\w+", read("capi", "include", "lib", "examples", "cmake", "tests") +
                             (pages.ROOT / "CMakeLists.txt").read_text()))
    known = strategies()
    found = []
    for path in pages.pages():
        page = str(path.relative_to(pages.ROOT))
        for line in pages.lines_of(path):
            for text in code_of(line):
                errors = [*file_errors(text), *test_errors(text), *tool_errors(text, flags), *spec_errors(text, known),
                          *symbol_errors(text, symbols)]
                if line.kind != "code":
                    errors += word_errors(text, words)
                found += [f"{page}:{line.number}: {e}" for e in errors]
    print("\n".join(found) or f"{len(known)} strategies, {len(flags)} flags and words of the tools, {len(symbols)} symbols")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
