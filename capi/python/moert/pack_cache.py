"""Quantized packs of checkpoints, made once and kept in the cache folder."""
import contextlib
import fcntl
import hashlib
import os
import pathlib
import sys
import time

from . import sizes, tools
from .source import Source


def folder(cache_dir=None):
    """The cache folder of the library."""
    if cache_dir is not None:
        return pathlib.Path(cache_dir)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "moert"


def checkpoint_folder(path):
    """`path`, or the local copy of a repository of the Hugging Face Hub, fetched if need be."""
    if os.path.isdir(path):
        return pathlib.Path(path)
    import huggingface_hub
    return pathlib.Path(huggingface_hub.snapshot_download(
        str(path),
        allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]))


def _identity(model):
    """Of what a checkpoint holds: its config, and of its weight files names, sizes and times."""
    digest = hashlib.sha256((model / "config.json").read_bytes())
    for file in sorted(model.glob("*.safetensors")):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


class Line:
    """A progress line on stderr, where that is a terminal."""

    def __init__(self, what, unit=str):
        self._what, self._unit = what, unit
        self._start, self._next = time.monotonic(), 0.0
        self._shown = False

    def __call__(self, done, total):
        now = time.monotonic()
        if not sys.stderr.isatty() or total <= 0 or now < self._next:
            return
        self._next, self._shown = now + 0.2, True
        left = (now - self._start) * (total - done) / done if done else 0
        sys.stderr.write(f"\r\033[K{self._what}: {self._unit(done)} of {self._unit(total)} "
                         f"({100 * done // total} %), {left:.0f} s left")
        sys.stderr.flush()

    def end(self):
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def quantized(model, schemes, cache_dir=None, progress=None):
    """The pack of a checkpoint's experts in these schemes ("w4a16_g128", or several with commas),
    made by moert-pack if need be: to nearest, streaming, continued after an interruption.
    progress(done, total) counts matrices; None shows a line."""
    model = pathlib.Path(model)
    out = folder(cache_dir) / f"{_identity(model)}-{schemes.replace(',', '+')}"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        with _lock(f"{out}.lock"):
            if not out.exists():
                _quantize(model, out, schemes, progress)
    return Source.open_pack(out)


@contextlib.contextmanager
def _lock(path):
    """Of several processes that want one pack, the first writes it and the others wait."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _quantize(model, out, schemes, progress):
    line = Line(f"quantizing the experts to {schemes}")
    try:
        tools.run("moert-pack", ["quantize", "--model", str(model), "--out", str(out), "--schemes",
                                 schemes], progress or line)
    finally:
        line.end()


def opened(model, cache_dir=None, progress=None):
    """The experts of a checkpoint as they are stored."""
    line = Line("packing the experts", sizes.text)
    try:
        return Source.open(model, cache_dir, progress or line)
    finally:
        line.end()
