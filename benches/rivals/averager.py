"""One peer of hivemind's averager in f16: python averager.py INDEX NODES ELEMENTS HOST

The first peer prints its address; the others read it from their first line of input.
"""
import json, sys, time
from daemons import guard

guard()
index, nodes, elements = map(int, sys.argv[1:4])
host = sys.argv[4]
import torch, hivemind
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import Float16Compression

torch.set_num_threads(1)
first = None if index == 0 else [json.loads(sys.stdin.readline())["address"]]
dht = hivemind.DHT(initial_peers=first, host_maddrs=[f"/ip4/{host}/tcp/0"], start=True)
values = torch.full((elements,), float(index + 1))
averager = DecentralizedAverager(
    [values], dht, prefix="bench", target_group_size=nodes, min_group_size=nodes, min_matchmaking_time=0.5,
    request_timeout=0.5, compression=Float16Compression(), start=True)
address = str(dht.get_visible_maddrs()[0])
print(json.dumps({"ready": hivemind.__version__, "address": address}), flush=True)
for line in sys.stdin:
    with averager.get_tensors() as tensors:
        tensors[0].fill_(float(index + 1))
    begin = time.perf_counter()
    averager.step(timeout=120)
    seconds = time.perf_counter() - begin
    with averager.get_tensors() as tensors:
        error = float((tensors[0] - (nodes + 1) / 2).abs().max())
    print(json.dumps({"seconds": seconds, "error": error}), flush=True)
averager.shutdown()
dht.shutdown()
