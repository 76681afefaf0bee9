"""One process of an all-reduce with gloo: python gloo.py INDEX NODES ELEMENTS HOST PORT INTERFACE"""
import json, os, sys, time

index, nodes, elements = map(int, sys.argv[1:4])
host, port, interface = sys.argv[4:7]
os.environ["GLOO_SOCKET_IFNAME"] = interface
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=index, world_size=nodes)
print(json.dumps({"ready": torch.__version__}), flush=True)
for line in sys.stdin:
    values = torch.full((elements,), float(index + 1))
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(values)
    values /= nodes
    seconds = time.perf_counter() - begin
    error = float((values - (nodes + 1) / 2).abs().max())
    print(json.dumps({"seconds": seconds, "error": error}), flush=True)
