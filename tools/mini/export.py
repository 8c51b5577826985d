"""Writes and reads the published file format: safetensors shards, index, configs, tokenizer."""
import json, os, shutil, struct
import numpy as np
import torch
import config, quant
from model import is_f32

SHARD_BYTES = 12 << 20              # below the 16 MiB limit of a shard in the repository
NAMES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.uint8: "U8"}
TYPES = {v: k for k, v in NAMES.items()}


def published(masters):
    """Training names and values -> published names, dtypes and shapes, in file order."""
    for name, w in masters.items():
        w = w.detach().float().cpu()
        if name.startswith("aux."):
            continue
        full = name if name.startswith(("vision_tower.", "mm_projector.")) else "language_model." + name
        if ".experts.w" in name:
            continue
        if name.endswith("A_log"):
            w = torch.cat((w, w.new_zeros(config.KDA_DIM - len(w))))
        yield full, w if is_f32(name) else w.bfloat16()
        if name.endswith("shared_experts.down_proj.weight"):       # the layer's routed experts follow
            base = name[:-len("shared_experts.down_proj.weight")]
            packed = {k: quant.pack(masters[f"{base}experts.{k}"].detach().float().cpu())
                      for k in ("w1", "w2", "w3")}
            for e in range(config.EXPERTS):
                for k in ("w1", "w2", "w3"):
                    n = f"language_model.{base}experts.{e}.{k}."
                    yield n + "weight_packed", packed[k][0][e]
                    yield n + "weight_scale", packed[k][1][e]


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, t in tensors:
        size = t.numel() * t.element_size()
        head[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, t in tensors:
            f.write(t.contiguous().view(torch.uint8).numpy().tobytes())


def read_safetensors(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        data = f.read()
    for name, d in head.items():
        if name == "__metadata__":
            continue
        a, b = d["data_offsets"]
        raw = torch.from_numpy(np.frombuffer(data[a:b], np.uint8).copy())
        yield name, raw.view(TYPES[d["dtype"]]).view(d["shape"])


def dump(obj, path):
    with open(path, "w") as f:
        json.dump(obj, f, indent=1)
        f.write("\n")


def target(masters, out, data_dir):
    os.makedirs(out, exist_ok=True)
    shards, size = [[]], 0
    for name, t in published(masters):
        n = t.numel() * t.element_size()
        if size + n > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, t))
        size += n
    index, total = {}, 0
    for i, tensors in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(os.path.join(out, file), tensors)
        for name, t in tensors:
            index[name] = file
            total += t.numel() * t.element_size()
    dump({"metadata": {"total_size": total}, "weight_map": index},
         os.path.join(out, "model.safetensors.index.json"))
    dump(config.target(), os.path.join(out, "config.json"))
    dump(config.PREPROCESSOR, os.path.join(out, "preprocessor_config.json"))
    for f in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copy(os.path.join(data_dir, f), out)
    return total


def draft(weights, out):
    os.makedirs(out, exist_ok=True)
    write_safetensors(os.path.join(out, "model.safetensors"),
                      [(n, w.detach().cpu().bfloat16()) for n, w in weights.items()])
    dump(config.draft(), os.path.join(out, "config.json"))


def load(folder, dtype=torch.float32, device="cpu"):
    """All tensors of an exported model by published name, experts dequantised and stacked back
    (`...experts.w1` [E, F, D]) and A_log cut to its real heads."""
    raw = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".safetensors"):
            raw.update(read_safetensors(os.path.join(folder, f)))
    out, experts = {}, {}
    for name, t in raw.items():
        if name.endswith("weight_packed"):
            base, e, k = name[:-len(".weight_packed")].rsplit(".", 2)
            w = quant.unpack(t, raw[name.replace("weight_packed", "weight_scale")])
            experts.setdefault(f"{base}.{k}", {})[int(e)] = w
        elif not name.endswith("weight_scale"):
            out[name] = t
    for name, parts in experts.items():
        out[name] = torch.stack([parts[e] for e in range(len(parts))])
    for name in out:
        if name.endswith("A_log"):
            assert not out[name][config.KDA_HEADS:].any()
            out[name] = out[name][:config.KDA_HEADS]
    strip = len("language_model.")
    return {(n[strip:] if n.startswith("language_model.") else n): t.to(device, dtype)
            for n, t in out.items()}
