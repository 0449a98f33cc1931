"""A llama-server that runs, with its log, its port and its end."""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import time


def innermost(pid):
    """The program that a shell, or a shell's shell, waits for."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return innermost(int(children[0])) if children else pid


class RunningServer:
    """`command`: words, or a line of a shell. It has to listen on 127.0.0.1."""

    def __init__(self, command, environment, log, folder=None):
        self.log = pathlib.Path(log)
        shell = isinstance(command, str)
        with open(log, "wb") as output:
            self.process = subprocess.Popen(command if shell else [str(word) for word in command], env=environment,
                                            cwd=folder, shell=shell, executable="/bin/bash" if shell else None,
                                            stdout=output, stderr=output, start_new_session=True)
        self.port = self.wait_for_port()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait_for_port(self):
        for _ in range(3000):
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.log.read_text(errors="replace"))
            if found:
                self.port = int(found[1])
                if self.get("/health")[0] == 200:
                    return self.port
            assert self.process.poll() is None, self.log.read_text(errors="replace")
            time.sleep(0.1)
        raise AssertionError("the server does not start: " + self.log.read_text(errors="replace"))

    def connect(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def get(self, path, method="GET", body=None):
        """(status, content)"""
        connection = self.connect(method, path, body)
        reply = connection.getresponse()
        content = json.loads(reply.read())
        connection.close()
        return reply.status, content

    def memory(self):
        """Bytes that the server holds and that are not of files."""
        status = pathlib.Path(f"/proc/{innermost(self.process.pid)}/status").read_text()
        return int(re.search(r"RssAnon:\s*(\d+)", status)[1]) << 10

    def end(self):
        """Everything that the server and the plug-in said."""
        os.kill(innermost(self.process.pid), signal.SIGTERM)
        status = self.process.wait(60)
        said = self.log.read_text(errors="replace")
        assert status == 0, said
        return said
