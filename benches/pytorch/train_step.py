"""The model of `starling-kernels` in PyTorch, on the CPU or on CUDA: the other side of `bench-train`.

Ways: `eager` in f32; `compiled-bf16` with torch.compile, and products and attention in bf16 by autocast. Attention is
`scaled_dot_product_attention` (on CUDA in bf16 it is a flash kernel), AdamW is fused.

Reads commands from standard input, one a line, and answers each with one JSON object on a line:

    step N   N training steps; {"seconds": wall time, "cpu_seconds": of all threads, "loss": of the last step, "grad_norm"}
    exit

Parameters (flat f32, in the order of Starling's schema) and tokens (u32, `batch` sequences of seq_len + 1) come from
files, so that both sides compute the same step; `bench-train` checks that their first losses agree.
"""

import argparse
import json
import os
import sys
import time

# Waiting threads must not spin: the other side runs on the same cores in turn.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, kv = c["d_model"], c["kv_heads"] * (c["d_model"] // c["heads"])
        self.c = c
        self.input_layernorm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Linear(d, d + 2 * kv, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)
        self.post_attention_layernorm = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Linear(d, 2 * c["ffn"], bias=False)
        self.down_proj = nn.Linear(c["ffn"], d, bias=False)

    def weights(self):
        """The order of the schema: q, k, v and gate, up are neighbours there, so each group is one matrix."""
        return [
            self.input_layernorm,
            self.qkv.weight,
            self.o_proj.weight,
            self.post_attention_layernorm,
            self.gate_up.weight,
            self.down_proj.weight,
        ]

    def forward(self, x, cos, sin):
        c = self.c
        b, t, d = x.shape
        dim = d // c["heads"]
        kv = c["kv_heads"] * dim
        qkv = self.qkv(F.rms_norm(x, (d,), self.input_layernorm, c["norm_eps"]))
        q, k, v = qkv.split([d, kv, kv], dim=-1)
        q = rotate(q.view(b, t, c["heads"], dim).transpose(1, 2), cos, sin)
        k = rotate(k.view(b, t, c["kv_heads"], dim).transpose(1, 2), cos, sin)
        v = v.view(b, t, c["kv_heads"], dim).transpose(1, 2)
        # PyTorch before 2.5 does not know this argument, and a model without groups needs none.
        grouped = {"enable_gqa": True} if c["heads"] != c["kv_heads"] else {}
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
        x = x + self.o_proj(y.transpose(1, 2).reshape(b, t, d))
        gate, up = self.gate_up(F.rms_norm(x, (d,), self.post_attention_layernorm, c["norm_eps"])).chunk(2, dim=-1)
        return x + self.down_proj(F.silu(gate) * up)


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c["vocab"], c["d_model"])
        self.layers = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = nn.Parameter(torch.ones(c["d_model"]))
        self.lm_head = nn.Linear(c["d_model"], c["vocab"], bias=False)
        if c["tied"]:
            self.lm_head.weight = self.embed.weight
        half = c["d_model"] // c["heads"] // 2
        wavelengths = c["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(c["seq_len"], dtype=torch.float64)[:, None] * wavelengths
        self.register_buffer("cos", angles.cos().float())
        self.register_buffer("sin", angles.sin().float())

    def load(self, flat):
        tensors = [self.embed.weight, *(w for layer in self.layers for w in layer.weights()), self.norm]
        if not self.c["tied"]:
            tensors.append(self.lm_head.weight)
        at = 0
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(torch.from_numpy(flat[at : at + tensor.numel()]).view(tensor.shape))
                at += tensor.numel()
        assert at == len(flat), f"{len(flat)} parameters given, {at} needed"

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.lm_head(F.rms_norm(x, (x.shape[-1],), self.norm, self.c["norm_eps"]))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=json.loads, required=True, help="sizes, as JSON")
    parser.add_argument("--options", type=json.loads, required=True, help="AdamW's options, as JSON")
    parser.add_argument("--parameters", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--way", default="eager", choices=["eager", "compiled-bf16"])
    args = parser.parse_args()
    c, o = args.model, args.options
    torch.set_num_threads(o["threads"])
    model = Model(c)
    model.load(np.fromfile(args.parameters, "<f4"))
    model.to(args.device)
    tokens = torch.from_numpy(np.fromfile(args.tokens, "<u4").astype(np.int64)).view(o["batch"], c["seq_len"] + 1)
    tokens = tokens.to(args.device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    gains = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": o["weight_decay"]}, {"params": gains, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(o["beta1"], o["beta2"]),
        eps=o["eps"],
        fused=True,
    )

    bf16 = args.way == "compiled-bf16"
    forward = torch.compile(model, dynamic=False) if bf16 else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16, enabled=bf16):
            loss = forward(inputs, targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), o["clip"])
        optimizer.step()
        return loss, norm

    def wait():
        if args.device != "cpu":
            torch.cuda.synchronize()

    print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads()}), flush=True)
    for line in sys.stdin:
        command = line.split()
        if command[:1] != ["step"]:
            break
        wait()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(command[1])):
            loss, norm = step()
        wait()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        answer = {"seconds": wall, "cpu_seconds": cpu, "loss": loss.item(), "grad_norm": float(norm)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
