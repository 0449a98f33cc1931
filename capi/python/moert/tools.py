"""The command line tools that come with the library."""
import os
import pathlib
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
        raise FileNotFoundError(f"{name} is not there: install the wheel (pip install .), or name the "
                                "folder that has it in MOERT_TOOLS")
    return found


def replace_process(name, arguments):
    """Becomes the tool: its terminal, signals and exit status are ours."""
    os.execv(path(name), [name, *arguments])


def lines(name, arguments):
    """Runs a tool and yields what it prints on stderr, piece by piece as progress lines come.
    Raises ToolError with its last words when it fails."""
    process = subprocess.Popen([path(name), *arguments], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    last, text = "", b""
    try:
        while chunk := process.stderr.read1(4096):
            *whole, text = (text + chunk).replace(b"\r", b"\n").split(b"\n")
            for line in whole:
                if line.strip():
                    last = line.decode(errors="replace").strip()
                    yield last
    except BaseException:
        process.terminate()
        raise
    finally:
        code = process.wait()
        process.stderr.close()
    if code != 0:
        raise ToolError(name, code, text.decode(errors="replace").strip() or last)


class ToolError(Exception):
    """A tool failed: `tool`, `code` (its exit status), `message` (its last line)."""

    def __init__(self, tool, code, message):
        super().__init__(f"{tool} failed with status {code}: {message}")
        self.tool, self.code, self.message = tool, code, message
