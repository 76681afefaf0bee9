"""A peer of hivemind's optimizer with local updates, for `starling-lab compare`: python compare_hivemind.py SETTINGS

The first peer prints `listening` with its address, which the others get as `first`. Then each prints `began` with the
time of a plain step, `averaged` after each averaging of the parameters, `average_failed`, `loaded` when it took
another's state, and `validated` when it has taken over an average, or has not for long. FOLDER/EPOCH-INDEX.f32 holds
the parameters before and after each of the first averagings, as flat f32, so that the caller can check that every
peer holds the mean.
"""

import json
import logging
import os
import sys
import time
from daemons import guard

guard()
c = json.loads(sys.argv[1])
from learner import Learner, emit
import hivemind
import torch
from hivemind.compression import Float16Compression
from hivemind.utils import get_dht_time

# Number of averagings whose parameters are kept.
KEPT = 5


class Report(logging.Handler):
    """Reads the result of an averaging from hivemind's log, the only place that has it."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.kept = 0
        self.averaged = False

    def emit(self, record):
        said = record.getMessage()
        if said.startswith("Averaged parameters with "):
            emit("averaged", members=int(said.split()[3]), epoch=optimizer.local_epoch, steps=learner.steps)
            self.keep()
            self.averaged = True
        elif said.startswith("Averaging failed with "):
            emit("average_failed", why=said)

    def keep(self):
        averager = optimizer.state_averager
        if self.kept >= KEPT or averager._old_tensors is None:
            return
        self.kept += 1
        with averager.get_tensors() as after:
            flat = torch.cat([t.detach().flatten().float() for t in (*averager._old_tensors, *after)])
        path = os.path.join(c["folder"], f"{optimizer.local_epoch}-{c['index']}.f32")
        flat.numpy().tofile(path + ".part")
        os.rename(path + ".part", path)


def wait_for_all():
    dht.store("here", subkey=str(c["index"]), value=1, expiration_time=get_dht_time() + 600)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = dht.get("here", latest=True)
        if found is not None and len(found.value) == c["nodes"]:
            return
        time.sleep(0.1)
    sys.exit("the peers did not find each other")


def give_up(kind, error, _trace):
    """hivemind's threads would keep this process alive, so it exits at once; its group ends with it."""
    emit("failed", why=f"{kind.__name__}: {error}"[:200])
    sys.__excepthook__(kind, error, _trace)
    sys.stderr.flush()
    os._exit(1)


sys.excepthook = give_up
learner = Learner(c)
dht = hivemind.DHT(
    initial_peers=[c["first"]] if c["first"] else None,
    host_maddrs=[f"/ip4/{c['hosts'][c['index']]}/tcp/{c['port']}"],
    start=True,
)
emit("listening", address=str(dht.get_visible_maddrs()[0]))
wait_for_all()
plain = learner.plain_seconds()
optimizer = hivemind.Optimizer(
    dht=dht,
    run_id="compare",
    target_batch_size=c["samples"],
    batch_size_per_step=c["inner"]["batch"],
    params=learner.groups(),
    optimizer=learner.adamw,
    use_local_updates=True,
    delay_state_averaging=c["delayed"],
    matchmaking_time=c["matchmaking_s"],
    averaging_timeout=c["timeout_s"],
    state_averaging_compression=Float16Compression(),
    load_state_compression=Float16Compression(),
    averager_opts={"request_timeout": c["request_s"], "target_group_size": c["nodes"]},
    tracker_opts={"min_refresh_period": 0.2, "default_refresh_period": 0.5, "max_refresh_period": 2.0},
    verbose=True,
)
log = logging.getLogger("hivemind.optim.state_averager")
log.setLevel(logging.INFO)
report = Report()
log.addHandler(report)
load = optimizer.load_state_from_peers


def loaded(**how):
    emit("loaded", steps=learner.steps)
    return load(**how)


optimizer.load_state_from_peers = loaded
emit("began", version=f"{hivemind.__version__}, PyTorch {torch.__version__}", plain_seconds=plain,
     parameters=sum(p.numel() for p in learner.model.parameters()))
learner.validate()
validated = learner.steps
while True:
    # The step takes over the last average. Its parameters are validated then, before the peers drift apart.
    averaged, report.averaged = report.averaged, False
    learner.set_rate(optimizer.opt)
    optimizer.zero_grad()
    learner.backward(learner.model)
    optimizer.step()
    learner.steps += 1
    if averaged or learner.steps - validated >= c["validate_every"]:
        learner.validate()
        validated = learner.steps
