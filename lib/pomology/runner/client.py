"""Papermill's client and engine, with bounds on what a cell prints, and on how long its kernel runs."""

import re
import subprocess
import threading
from typing import Any

from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine

MOST_PRINTED = 2**18  # characters of a cell's stdout, and of its stderr, that its notebook keeps
CUT = f"\n(What was printed after these {MOST_PRINTED:,} characters is not kept.)\n"


class Engine(NBClientEngine):
    """It gives the kernel a log for its stderr, ends it early once `watch` says so, and leaves no process behind."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, input_path, start_timeout, kernel_log, watch, **options):
        options |= {"kernel_name": kernel_name, "startup_timeout": start_timeout, "timeout": None}
        client, ended = Client(nb_man, **options), threading.Event()
        guards: list[subprocess.Popen] = []

        def kill():
            for guard in guards:
                guard.communicate()

        def watched():
            while not ended.wait(0.2):
                process = getattr(getattr(client.km, "provisioner", None), "process", None)  # perhaps none yet
                if process and not guards:
                    # It ends with all that it has started, once this process closes the pipe, or is killed.
                    command = ["/bin/sh", "-c", f"read _; kill -9 -{process.pid} 2>&-"]
                    guards.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))
                if watch():
                    kill()

        thread = threading.Thread(target=watched, daemon=True)
        thread.start()
        try:
            return client.execute(stderr=kernel_log)
        finally:
            ended.set()
            thread.join()
            watch()
            kill()


class Client(PapermillNotebookClient):
    """It joins what a cell prints as it comes: nbclient's own joining behind the cell takes time that grows with the
    square of a line's length, where nothing can stop it."""

    def output(self, outs: list, msg: dict, *about: Any) -> Any:
        more = msg["content"]
        for kept in outs if msg["msg_type"] == "stream" else ():
            if kept["output_type"] == "stream" and kept["name"] == more["name"]:
                kept["text"] = joined(kept["text"], more["text"])
                return kept
        if msg["msg_type"] == "stream":
            more["text"] = joined("", more["text"])
        return super().output(outs, msg, *about)


def joined(text: str, more: str) -> str:
    """What a cell has printed, with more of it; what a carriage return writes over is left out, as a terminal does."""
    if text.endswith(CUT):
        return text
    before, end, line = text.rpartition("\n")
    line = re.sub(r"^.*\r(?=[^\n])", "", line + more, flags=re.MULTILINE)
    text = before + end + line
    return text if len(text) <= MOST_PRINTED else text[:MOST_PRINTED] + CUT
