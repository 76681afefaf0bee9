"""Standard outputs that outlive the node which shows them.

A node reads what its script prints, through pipes. When the node is killed the script goes on and waits for the next
one; a print into a pipe without a reader would end it.
"""

import os
import stat
import sys


class Outlet:
    """A stream that is silent once its reader has gone."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            self._silence()
            return len(text)

    def flush(self):
        try:
            self.stream.flush()
        except BrokenPipeError:
            self._silence()

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def _silence(self):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.stream.fileno())
        os.close(nowhere)


def outlast():
    """Makes the standard outputs of this process outlive their reader, and shows each line at once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
        except (AttributeError, OSError, ValueError):
            continue
        if is_pipe and hasattr(stream, "reconfigure") and not isinstance(stream, Outlet):
            stream.reconfigure(line_buffering=True)
            setattr(sys, name, Outlet(stream))
