"""The command line tools that come with the library."""
import os
import pathlib
import pty
import re
import shutil
import subprocess


def path(name):
    """Of moert-run or moert-pack: MOERT_TOOLS, the wheel's own, or where the shell finds it."""
    folders = [os.environ.get("MOERT_TOOLS"), pathlib.Path(__file__).with_name("bin")]
    for folder in folders:
        if folder and (found := pathlib.Path(folder, name)).exists():
            return str(found)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not there: install the wheel (pip install .), or name "
                                "the folder that has it in MOERT_TOOLS")
    return found


def replace_process(name, arguments):
    """Becomes the tool: its terminal, signals and exit status are ours."""
    os.execv(path(name), [name, *arguments])


class ToolError(Exception):
    """A tool failed: `tool`, `code` (its exit status), `message` (what it said last)."""

    def __init__(self, tool, code, message):
        super().__init__(f"{tool} failed with status {code}: {message}")
        self.tool, self.code, self.message = tool, code, message

    def __reduce__(self):
        return type(self), (self.tool, self.code, self.message)


def run(name, arguments, progress=None, notice=None):
    """Runs a tool to its end and returns what it prints, a few lines at most; progress(done, total)
    hears of its progress line, notice(line) of the others. ToolError when it fails."""
    ours, theirs = pty.openpty()  # tools show progress on a terminal only
    try:
        process = subprocess.Popen([path(name), *arguments], stdout=subprocess.PIPE,
                                   stderr=theirs)
    finally:
        os.close(theirs)
    said = []
    try:
        for line in _lines(ours):
            shown = re.search(r": (\d+) of (\d+) \(", line)
            if not shown:
                said = [*said[-4:], line]
                if notice is not None:
                    notice(line)
            elif progress is not None:
                progress(int(shown[1]), int(shown[2]))
    except BaseException:  # Ctrl-C, or progress failed: the tool keeps what it has done
        process.terminate()
        raise
    finally:
        os.close(ours)
        out, _ = process.communicate()
    if process.returncode != 0:
        raise ToolError(name, process.returncode, " ".join(said))
    return out.decode()


def _lines(terminal):
    """What is written to a terminal, line by line, progress lines and all."""
    rest = b""
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:  # EIO: nobody holds the other end any more
            chunk = b""
        *whole, rest = (rest + chunk).replace(b"\r", b"\n").replace(b"\033[K", b"").split(b"\n")
        if not chunk:
            whole.append(rest)
        for line in whole:
            if line.strip():
                yield line.decode(errors="replace").strip()
        if not chunk:
            return
