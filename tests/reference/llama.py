"""Reads an exported model with NumPy alone, as its config.json describes Llama, and compares its logits with Starling's.

    starling checkpoint export HOME --output FOLDER
    starling eval --home HOME TEXT --logits 24 > logits.json
    python3 tests/reference/llama.py FOLDER logits.json

It shares no code with Starling: names, shapes, rotary layout and constants all come from the exported files. It also
computes with the other rotary layout in use, which must give other logits: otherwise the comparison would say nothing.
"""

import json
import sys
from pathlib import Path

import numpy as np

TOLERANCE = 1e-4


def read_safetensors(path):
    """The tensors of a safetensors file by name: a length, a header in JSON, the values."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, values = json.loads(data[8 : 8 + length]), data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", f"{name} is {entry['dtype']}"
        start, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(values[start:end], "<f4").reshape(entry["shape"]).astype("f8")
    return tensors


def norm(x, gain, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def rotate(x, theta, halves):
    """Turns [tokens, heads, width] by position: element i with i + width / 2, or with its neighbour."""
    tokens, _, width = x.shape
    angles = np.arange(tokens)[:, None] * theta ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    if halves:
        low, high = x[..., : width // 2], x[..., width // 2 :]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)
    turned = np.empty_like(x)
    turned[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    turned[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
    return turned


def attention(config, weights, x, halves):
    tokens, heads, shared = len(x), config["num_attention_heads"], config["num_key_value_heads"]
    width = config["head_dim"]
    q, k, v = (x @ weights[f"self_attn.{name}_proj.weight"].T for name in "qkv")
    q = rotate(q.reshape(tokens, heads, width), config["rope_theta"], halves)
    k = rotate(k.reshape(tokens, shared, width), config["rope_theta"], halves)
    # Each key serves a group of neighbouring queries.
    k, v = (np.repeat(part.reshape(tokens, shared, width), heads // shared, axis=1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(width)
    scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    mixed = np.einsum("hqk,khd->qhd", scores, v).reshape(tokens, heads * width)
    return mixed @ weights["self_attn.o_proj.weight"].T


def logits(config, tensors, tokens, halves=True):
    """The logits after each token: [tokens, vocabulary]."""
    eps = config["rms_norm_eps"]
    x = tensors["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
        x = x + attention(config, weights, norm(x, weights["input_layernorm.weight"], eps), halves)
        normed = norm(x, weights["post_attention_layernorm.weight"], eps)
        gate = normed @ weights["mlp.gate_proj.weight"].T
        up = normed @ weights["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights["mlp.down_proj.weight"].T
    output = tensors["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return norm(x, tensors["model.norm.weight"], eps) @ output.T


def main(folder, compared):
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["hidden_act"] == "silu", config
    tensors = read_safetensors(folder / "model.safetensors")
    assert ("lm_head.weight" in tensors) != config["tie_word_embeddings"]
    said = json.loads(Path(compared).read_text())
    tokens, theirs = np.array(said["tokens"]), np.array(said["logits"])
    # Byte-level tokens have a letter each, whose place is the byte.
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256)) and vocabulary["a"] == ord("a")
    ours, other = (logits(config, tensors, tokens, halves) for halves in (True, False))
    scale = max(1.0, np.abs(theirs).max())
    difference, elsewhere = (np.abs(theirs - mine).max() / scale for mine in (ours, other))
    print(f"{theirs.shape[0]} tokens, {theirs.shape[1]} logits each: {difference:.1e} apart at most")
    assert difference < TOLERANCE, f"the logits are {difference:.1e} apart; {TOLERANCE:.0e} is allowed"
    assert elsewhere > 10 * TOLERANCE, f"the model is too small to tell rotary layouts apart ({elsewhere:.1e})"


if __name__ == "__main__":
    main(*sys.argv[1:])
