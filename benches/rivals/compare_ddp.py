"""A member of data-parallel training with PyTorch's DDP over gloo, for `starling-lab compare`: python compare_ddp.py SETTINGS

Prints `began` with the time of a plain step, `stepped` after each step, and `validated` after each validation.
"""

import datetime
import json
import os
import sys
import time

c = json.loads(sys.argv[1])
os.environ["GLOO_SOCKET_IFNAME"] = c["interface"]
from learner import Learner, emit
import torch
import torch.distributed as dist

learner = Learner(c)
dist.init_process_group(
    "gloo",
    init_method=f"tcp://{c['hosts'][0]}:{c['port']}",
    rank=c["index"],
    world_size=c["nodes"],
    timeout=datetime.timedelta(seconds=c["timeout_s"]),
)
# Buffers are constants here, so DDP need not send them before each step.
model = torch.nn.parallel.DistributedDataParallel(
    learner.model, bucket_cap_mb=c["bucket_mb"], broadcast_buffers=False, gradient_as_bucket_view=True
)
dist.barrier()
plain = learner.plain_seconds()
optimizer = learner.adamw(learner.groups())
dist.barrier()
emit("began", version=torch.__version__, plain_seconds=plain, parameters=sum(p.numel() for p in learner.model.parameters()))
try:
    while True:
        begin = time.perf_counter()
        if learner.steps % c["validate_every"] == 0:
            learner.validate()
        learner.set_rate(optimizer)
        optimizer.zero_grad(set_to_none=True)
        learner.backward(model)
        optimizer.step()
        learner.steps += 1
        emit("stepped", steps=learner.steps, members=dist.get_world_size(), seconds=time.perf_counter() - begin)
except Exception as error:
    emit("failed", why=str(error).splitlines()[0][:200])
    # The group cannot go on, and its threads would wait for the processes that have gone.
    os._exit(1)
