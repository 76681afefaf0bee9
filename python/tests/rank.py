"""One process of a trainer of several, for test_ranks.py: rank.py RANK WORLD FILE ddp|fsdp"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from starling_flock import Flock

rank, world, file, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
torch.manual_seed(1 + rank)


class Numbers(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, n):
        return torch.tensor([n / 1000, 1.0, -n / 1000])


inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
if kind == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(inner, mesh=init_device_mesh("cpu", (world,)))
    model = inner
else:
    model = nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def validate():
    # All processes take part, and the first one's word counts.
    return model(torch.ones(4, 3)).square().mean()


flock = Flock(model, samples=1000, optimizer=optimizer, evaluate=validate)
loader = DataLoader(Numbers(), batch_size=2, sampler=flock.sampler)
seen = []
for batch in flock.batches(loader):
    seen += [round(1000 * n) for n in batch[:, 0].tolist()]
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    flock.step(loss)
print(json.dumps({"seen": seen, "unit": flock.unit, "flying": flock.flying}))
dist.destroy_process_group()
