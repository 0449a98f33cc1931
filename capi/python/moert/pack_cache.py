"""Quantized packs of checkpoints, made once and kept in the cache folder."""
import json
import logging
import os
import pathlib
import re
import sys
import time

from . import tools
from .source import Source

_log = logging.getLogger("moert")


def checkpoint_folder(path, **hub):
    """`path`, or the local copy of a repository of the Hugging Face Hub, fetched if need be. hub:
    options of huggingface_hub.snapshot_download. FileNotFoundError says what is there instead."""
    folder = pathlib.Path(path)
    if not folder.exists() and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(path)) and (
            not str(path).startswith(".")):
        folder = _from_hub(str(path), **hub)
    if folder.is_file() or folder.suffix == ".gguf":
        raise FileNotFoundError(f"{path}: a checkpoint's folder is wanted, not a file" +
                                (_GGUF if folder.suffix == ".gguf" else ""))
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: there is no such folder")
    if not (folder / "config.json").exists():
        gguf = sorted(f.name for f in folder.glob("*.gguf"))
        raise FileNotFoundError(f"{path}: the folder has no config.json, as checkpoints of "
                                "transformers do" +
                                (f", but {gguf[0]}" + _GGUF if gguf else ""))
    return folder


_GGUF = ("; llama.cpp runs GGUF files within a budget through libmoert's plug-in "
         "(docs/guide/llama-cpp.md); python -m moert run doctor FILE.gguf says how they fit")


def _from_hub(name, **options):
    import huggingface_hub
    from huggingface_hub import errors
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(
            name, **options,
            allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]))
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        raise FileNotFoundError(f"{name}: there is no such folder in {os.getcwd()}, and the Hugging "
                                f"Face Hub gives no such repository: {error}") from error


def quantization(folder):
    """What a checkpoint's config says of its quantization, or None."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    kinds = (config, *(v for v in config.values() if isinstance(v, dict)))
    found = next((k["quantization_config"] for k in kinds if k.get("quantization_config")), None)
    beside = pathlib.Path(folder) / "hf_quant_config.json"
    if found is None and beside.exists():  # modelopt's, of older versions
        found = {"quant_method": "modelopt", **json.loads(beside.read_text())["quantization"]}
    return None if found and found.get("quant_method") == "moert" else found


class Line:
    """A progress line on stderr, where that is a terminal."""

    def __init__(self, what):
        self._what = what
        self._start, self._next = time.monotonic(), 0.0
        self._shown = False

    def __call__(self, done, total):
        now = time.monotonic()
        if not sys.stderr.isatty() or total <= 0 or now < self._next:
            return
        self._next, self._shown = now + 0.2, True
        left = (now - self._start) * (total - done) / done if done else 0
        sys.stderr.write(f"\r\033[K{self._what}: {done} of {total} "
                         f"({100 * done // total} %), {left:.0f} s left")
        sys.stderr.flush()

    def end(self):
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def quantized(model, schemes, cache_dir=None, progress=None):
    """The pack of a checkpoint's experts in these schemes ("w4a16_g128", or several with commas),
    made by moert-pack if need be: to nearest, streaming, continued after an interruption. It is the
    one that moert-run --as opens. progress(done, total) counts matrices; None shows a line. The
    logger "moert" is told what is written where."""
    line = Line(f"quantizing the experts to {schemes}")
    cache = [] if cache_dir is None else ["--cache", str(cache_dir)]
    try:
        said = tools.run("moert-pack", ["cache", "--model", str(model), "--schemes", schemes,
                                        *cache], progress or line, _log.warning)
    finally:
        line.end()
    return Source.open_pack(said.rstrip("\n"))
