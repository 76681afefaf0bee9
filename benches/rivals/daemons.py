"""hivemind starts daemons of its own, which outlive a peer that is killed."""

import os
import signal
import time


def guard():
    """However this process or who started it ends, the daemons end with it: to be called before they are started."""
    os.setpgrp()
    parent, me = os.getppid(), os.getpid()
    if os.fork() > 0:
        return
    while os.getppid() == me and os.path.exists(f"/proc/{parent}"):
        time.sleep(0.5)
    os.killpg(me, signal.SIGKILL)
