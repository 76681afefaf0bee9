"""One process of data-parallel training with PyTorch's DDP over gloo, on one thread of the CPU.

python ddp.py INDEX NODES PORT STEPS MODEL(JSON) OPTIONS(JSON): prints {"torch", "seconds": median time of a step}.
The model and the optimizer are those of `train_step.py`; parameters and tokens are random.
"""
import json, os, sys, time

index, nodes, port, steps = map(int, sys.argv[1:5])
c, o = json.loads(sys.argv[5]), json.loads(sys.argv[6])
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "pytorch"))
import torch
import torch.distributed as dist
from train_step import Model

torch.set_num_threads(o["threads"])
torch.manual_seed(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=nodes)
local = Model(c)
# One process needs no averaging: its step is the plain one.
model = torch.nn.parallel.DistributedDataParallel(local) if nodes > 1 else local
decayed = [p for p in model.parameters() if p.dim() > 1]
gains = [p for p in model.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": o["weight_decay"]}, {"params": gains, "weight_decay": 0.0}],
    lr=1e-3,
    betas=(o["beta1"], o["beta2"]),
    eps=o["eps"],
    fused=True,
)
tokens = torch.randint(c["vocab"], (o["batch"], c["seq_len"] + 1))
inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
times = []
for step in range(steps + 3):
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    model(inputs, targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), o["clip"])
    optimizer.step()
    if step >= 3:
        times.append(time.perf_counter() - begin)
print(json.dumps({"torch": torch.__version__, "seconds": sorted(times)[len(times) // 2]}), flush=True)
