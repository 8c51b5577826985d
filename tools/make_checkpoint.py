#!/usr/bin/env python3
"""Writes Kimi-K3 checkpoints in the published format, without any real weights.

  make_checkpoint.py golden A DIR              the golden models A and B: every value follows from integer
  make_checkpoint.py golden B DIR              hashes of tensor names, so that published logits must come out
  make_checkpoint.py random DIR [--size 2G]    random weights at any size; see random --help

Random checkpoints are hard on an engine on purpose: decays from about 1 down to e^-5 per token, pairs of experts
whose router scores nearly tie, MXFP4 groups that use all sixteen codes. Everything follows from --seed.
"""
import argparse
import contextlib
import json
import math
import os
import shutil
import struct
import sys
import zlib

import numpy as np

ITEM_BYTES = {"BF16": 2, "F32": 4, "U8": 1}
MIB = 1 << 20


# ---- architectures -------------------------------------------------------------------------------------------

def golden_arch(name):
    """The two golden models: A is small with unequal sizes everywhere, B has the real head geometry."""
    arch = dict(
        vocab=320, hidden=160, layers=9, inter=224, mla_layers=[4, 8, 9], block=3, heads=4, q_lora=48, kv_lora=64,
        nope=24, rope=16, v_dim=40, kda_heads=3, kda_dim=32, taps=4, a_log=8, experts=16, top=4, shared=2,
        expert_inter=64, latent=96, groups=1, top_groups=1)
    if name == "B":
        arch.update(
            vocab=384, hidden=256, layers=13, inter=320, mla_layers=[4, 8, 12, 13], block=12, heads=2, q_lora=96,
            kv_lora=512, nope=128, rope=64, v_dim=128, kda_heads=2, kda_dim=128, a_log=128, experts=24,
            expert_inter=96, latent=128)
    return arch


def multiple(x, n):
    return max(n, int(round(x / n)) * n)


def random_arch(hidden, opt):
    """The proportions of the real model at another width; every size can be set by an option."""
    layers = opt.layers
    given = lambda value, default: default if value is None else value
    kda_dim = given(opt.kda_dim, 128 if hidden >= 512 else 32)
    arch = dict(
        vocab=opt.vocab, hidden=hidden, layers=layers, inter=given(opt.inter, multiple(hidden * 4.7, 32)),
        mla_layers=opt.mla_layers or sorted({i for i in range(4, layers + 1, 4)} | {layers}),
        block=given(opt.block, 12), heads=given(opt.heads, max(1, round(hidden * 96 / 7168))),
        q_lora=multiple(hidden * 0.21, 16), kv_lora=given(opt.kv_lora, 512 if hidden >= 512 else 64),
        nope=given(opt.nope, 128 if hidden >= 512 else 24), rope=given(opt.rope, 64 if hidden >= 512 else 16),
        v_dim=given(opt.v_dim, 128 if hidden >= 512 else 40),
        kda_heads=given(opt.kda_heads, max(1, round(hidden * 96 / 7168 * 128 / kda_dim))), kda_dim=kda_dim,
        taps=opt.taps, experts=opt.experts, top=min(opt.top, opt.experts), shared=2,
        expert_inter=given(opt.expert_inter, multiple(hidden * 0.43, 32)),
        latent=given(opt.latent, multiple(hidden * 0.5, 32)), groups=opt.groups, top_groups=opt.top_groups)
    arch["a_log"] = max(arch["kda_dim"], arch["kda_heads"])
    if opt.vision:
        arch["vision"] = dict(hidden=128, qkv=192, heads=4, inter=512, layers=4, grid=16, patch=14, merge=2)
    return arch


def config_of(arch):
    """config.json: nested, with the fields that decide the computation and those libraries add."""
    vocab, layers = arch["vocab"], arch["layers"]
    quant = {
        "quant_method": "compressed-tensors", "quantization_status": "compressed", "format": "mxfp4-pack-quantized",
        "global_compression_ratio": None, "kv_cache_scheme": None,
        "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                   "re:.*lm_head.*", "re:.*vision_tower.*", "re:.*mm_projector.*"],
        "config_groups": {"group_0": {
            "format": "mxfp4-pack-quantized", "targets": ["Linear"], "input_activations": None,
            "output_activations": None,
            "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                        "scale_dtype": "torch.uint8", "symmetric": True, "zp_dtype": None, "dynamic": False,
                        "actorder": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {}}}}}
    text = {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16",
        "vocab_size": vocab, "hidden_size": arch["hidden"], "num_hidden_layers": layers,
        "intermediate_size": arch["inter"], "hidden_act": "situ", "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-5, "attn_res_block_size": arch["block"],
        "num_attention_heads": arch["heads"], "num_key_value_heads": arch["heads"], "q_lora_rank": arch["q_lora"],
        "kv_lora_rank": arch["kv_lora"], "qk_nope_head_dim": arch["nope"], "qk_rope_head_dim": arch["rope"],
        "v_head_dim": arch["v_dim"], "mla_use_nope": True, "mla_use_output_gate": True,
        "linear_attn_config": {
            "num_heads": arch["kda_heads"], "head_dim": arch["kda_dim"], "short_conv_kernel_size": arch["taps"],
            "gate_lower_bound": -5.0, "use_full_rank_gate": True,
            "kda_layers": [i for i in range(1, layers + 1) if i not in arch["mla_layers"]],
            "full_attn_layers": arch["mla_layers"]},
        "num_experts": arch["experts"], "num_experts_per_token": arch["top"], "num_shared_experts": arch["shared"],
        "moe_intermediate_size": arch["expert_inter"], "routed_expert_hidden_size": arch["latent"],
        "latent_moe_use_norm": True, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "routed_scaling_factor": 1.0,
        "topk_method": "noaux_tc", "use_grouped_topk": True, "num_expert_group": arch["groups"],
        "topk_group": arch["top_groups"], "num_nextn_predict_layers": 0, "max_position_embeddings": 1048576,
        "tie_word_embeddings": False, "bos_token_id": vocab - 3, "eos_token_id": vocab - 2,
        "pad_token_id": vocab - 1, "use_cache": True, "initializer_range": 0.02, "quantization_config": quant}
    config = {
        "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "dtype": "bfloat16",
        "bos_token_id": vocab - 3, "eos_token_id": vocab - 2, "pad_token_id": vocab - 1, "ignore_index": -100,
        "tie_word_embeddings": False, "text_config": text}
    if "vision" in arch:
        v = arch["vision"]
        config["image_placeholder"] = "<|kimi_image_placeholder|>"
        config["media_placeholder_token_id"] = vocab - 4
        config["vision_config"] = {
            "_attn_implementation": "flash_attention_2", "activation_func": "gelu_pytorch_tanh", "attn_bias": False,
            "init_pos_emb_height": v["grid"], "init_pos_emb_time": 4, "init_pos_emb_width": v["grid"],
            "linear_bias": False, "merge_kernel_size": [v["merge"], v["merge"]], "merge_type": "sd2_tpool",
            "mlp_type": "mlp2", "mm_hidden_size": v["hidden"], "mm_projector_type": "patchmergerv2",
            "norm_type": "rmsnorm", "patch_embed_proj_bias": False, "patch_size": v["patch"],
            "pos_emb_interpolation_mode": "bilinear", "pos_emb_type": "divided_fixed",
            "projector_hidden_act": "gelu", "projector_ln_eps": 1e-5, "qkv_hidden_size": v["qkv"],
            "text_hidden_size": arch["hidden"], "vt_hidden_size": v["hidden"], "vt_intermediate_size": v["inter"],
            "vt_num_attention_heads": v["heads"], "vt_num_hidden_layers": v["layers"]}
    return config


def preprocessor_config(vision):
    return {"auto_map": {"AutoProcessor": "kimi_k3_processor.KimiK3Processor",
                         "AutoImageProcessor": "kimi_k3_vision_processing.KimiK3VisionProcessor"},
            "media_proc_cfg": {
                "in_patch_limit": 65536, "patch_size": vision["patch"], "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3, "merge_kernel_size": vision["merge"], "fixed_output_tokens": None,
                "patch_limit_on_one_side": 512, "in_patch_limit_each_frame": 16384, "in_patch_limit_video": 655360,
                "sample_fps": 8.0, "max_num_frames_each_video": None, "temporal_merge_kernel_size": 4,
                "timestamp_mode": "hh:mm:ss.fff",
                "transparent_bg_config": {"pattern": "chessboard", "square_size": 8,
                                          "chessboard_square_on_top_left": True, "white": 255, "gray": 180},
                "transparent_bg_fill_stage": "after_resize"}}


# ---- tensors: name, dtype, shape, and the interval base +- amplitude its values are drawn from ----------------

class Tensor:
    def __init__(self, name, dtype, shape, amplitude=0.0, base=0.0):
        self.name, self.dtype, self.shape, self.amplitude, self.base = name, dtype, tuple(shape), amplitude, base
        self.count = math.prod(shape)
        self.bytes = self.count * ITEM_BYTES[dtype]


def linear(name, rows, cols, gain=1.0):
    return Tensor(name + ".weight", "BF16", (rows, cols), gain * math.sqrt(3.0 / cols))


def norm(name, n, dtype="BF16"):
    return Tensor(name + ".weight", dtype, (n,), 0.25, 1.0)


def kda_tensors(p, arch):
    hidden, d = arch["hidden"], arch["kda_dim"]
    width = arch["kda_heads"] * d
    yield linear(p + "q_proj", width, hidden, 0.03)  # small gains make the epsilon of the L2 norms visible
    yield linear(p + "k_proj", width, hidden, 0.03)
    yield linear(p + "v_proj", width, hidden)
    for x in "qkv":
        yield Tensor(p + x + "_conv1d.weight", "F32", (width, 1, arch["taps"]), 1.0)
    yield Tensor(p + "A_log", "F32", (arch["a_log"],), 1.0)
    yield Tensor(p + "dt_bias", "F32", (width,), 3.0, -2.0)
    yield linear(p + "f_a_proj", d, hidden)
    yield linear(p + "f_b_proj", width, d)
    yield linear(p + "b_proj", arch["kda_heads"], hidden)
    yield norm(p + "o_norm", d, "F32")
    yield linear(p + "g_proj", width, hidden)
    yield linear(p + "o_proj", hidden, width)


def mla_tensors(p, arch, gated=True):
    hidden, heads, q, kv = arch["hidden"], arch["heads"], arch["q_lora"], arch["kv_lora"]
    yield linear(p + "q_a_proj", q, hidden, 0.005)
    yield norm(p + "q_a_layernorm", q)
    yield linear(p + "q_b_proj", heads * (arch["nope"] + arch["rope"]), q, 1.5)
    yield linear(p + "kv_a_proj_with_mqa", kv + arch["rope"], hidden, 0.005)
    yield norm(p + "kv_a_layernorm", kv)
    yield linear(p + "kv_b_proj", heads * (arch["nope"] + arch["v_dim"]), kv, 1.5)
    if gated:
        yield linear(p + "g_proj", heads * arch["v_dim"], hidden)
    yield linear(p + "o_proj", hidden, heads * arch["v_dim"])


def mlp_tensors(p, inter, hidden, gains=(1.0, 1.0, 1.0)):
    yield linear(p + "gate_proj", inter, hidden, gains[0])
    yield linear(p + "up_proj", inter, hidden, gains[1])
    yield linear(p + "down_proj", hidden, inter, gains[2])


def moe_tensors(p, arch):
    hidden, latent, inter = arch["hidden"], arch["latent"], arch["expert_inter"]
    yield linear(p + "gate", arch["experts"], hidden)
    yield Tensor(p + "gate.e_score_correction_bias", "F32", (arch["experts"],), 0.3)
    yield linear(p + "routed_expert_down_proj", latent, hidden)
    yield norm(p + "routed_expert_norm", latent)
    yield linear(p + "routed_expert_up_proj", hidden, latent)
    yield from mlp_tensors(p + "shared_experts.", arch["shared"] * inter, hidden, (2.0, 4.0, 0.25))
    for e in range(arch["experts"]):  # the six tensors of an expert lie back to back, as published
        for w, rows, cols in (("w1", inter, latent), ("w2", latent, inter), ("w3", inter, latent)):
            yield Tensor(f"{p}experts.{e}.{w}.weight_packed", "U8", (rows, cols // 2))
            yield Tensor(f"{p}experts.{e}.{w}.weight_scale", "U8", (rows, cols // 32))


def layer_tensors(i, arch):
    p, hidden = f"language_model.model.layers.{i}.", arch["hidden"]
    for name in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
        yield norm(p + name, hidden)
    for name in ("self_attention_res_proj", "mlp_res_proj"):
        yield linear(p + name, 1, hidden, 1.5)
    attention = mla_tensors if i + 1 in arch["mla_layers"] else kda_tensors
    yield from attention(p + "self_attn.", arch)
    if i == 0:
        yield from mlp_tensors(p + "mlp.", arch["inter"], hidden, (2.0, 8.0, 0.5))
    else:
        yield from moe_tensors(p + "block_sparse_moe.", arch)


def outer_tensors(arch):
    p, hidden = "language_model.", arch["hidden"]
    yield Tensor(p + "model.embed_tokens.weight", "BF16", (arch["vocab"], hidden), 1.0)
    yield linear(p + "lm_head", arch["vocab"], hidden, 2.0)
    yield norm(p + "model.norm", hidden)
    yield norm(p + "model.output_attn_res_norm", hidden)
    yield linear(p + "model.output_attn_res_proj", 1, hidden, 1.5)


def vision_tensors(arch):
    v, p = arch["vision"], "vision_tower."
    hidden, merged = v["hidden"], v["hidden"] * v["merge"] ** 2
    patch = 3 * v["patch"] ** 2
    yield Tensor(p + "patch_embed.proj.weight", "BF16", (hidden, 3, v["patch"], v["patch"]), math.sqrt(3.0 / patch))
    yield Tensor(p + "patch_embed.pos_emb.weight", "BF16", (v["grid"], v["grid"], hidden), 1.0)
    for i in range(v["layers"]):
        b = f"{p}encoder.blocks.{i}."
        yield norm(b + "norm0", hidden)
        yield norm(b + "norm1", hidden)
        yield linear(b + "wqkv", 3 * v["qkv"], hidden)
        yield linear(b + "wo", hidden, v["qkv"])
        yield linear(b + "mlp.fc0", v["inter"], hidden)
        yield linear(b + "mlp.fc1", hidden, v["inter"])
    yield norm(p + "encoder.final_layernorm", hidden)
    yield linear("mm_projector.proj.0", merged, merged)
    yield linear("mm_projector.proj.2", arch["hidden"], merged)
    yield norm("mm_projector.post_norm", arch["hidden"])


def groups_of(arch):
    """Groups of tensors that stay in one shard: the layers, then what lies outside them."""
    for i in range(arch["layers"]):
        yield list(layer_tensors(i, arch))
    yield list(outer_tensors(arch))
    if "vision" in arch:
        yield list(vision_tensors(arch))


def total_bytes(arch):
    return sum(t.bytes for group in groups_of(arch) for t in group)


# ---- values ----------------------------------------------------------------------------------------------------

def to_bf16(x):
    """float32 to bfloat16 bits, nearest even; values are finite."""
    bits = np.ascontiguousarray(x, dtype="<f4").view("<u4")
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def name_hash(name):
    """FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) % (1 << 64)
    return h


def hash_stream(name, count):
    """The i-th value is splitmix64's output for the state hash(name) + (i + 1) * golden ratio."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(name_hash(name))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def golden_values(t, arch):
    bits = hash_stream(t.name, t.count)
    if t.name.endswith("weight_packed"):
        return (bits >> np.uint64(56)).astype(np.uint8)
    if t.name.endswith("weight_scale"):
        return (121 + (bits >> np.uint64(62))).astype(np.uint8)
    unit = (bits >> np.uint64(40)).astype(np.float64) * 2.0 ** -23 - 1.0
    x = (t.base + t.amplitude * unit).astype("<f4")
    if t.name.endswith("A_log"):
        x[arch["kda_heads"]:] = 0
    if t.dtype == "F32":
        return x
    h = to_bf16(x)
    if t.name.endswith("kv_a_proj_with_mqa.weight"):
        rows = h.reshape(t.shape)[arch["kv_lora"]:]
        rows[rows & 0x7F80 != 0] += 8 << 7  # times 256 is eight steps of the exponent
    return h


class RandomValues:
    """Uniform values through a table of 65,536 entries: as fast as memory."""

    def __init__(self, seed):
        self.seed = seed
        self.unit = np.arange(65536, dtype=np.float64) / 32768.0 - 1.0
        self.tables = {}

    def table(self, base, amplitude):
        key = (base, amplitude)
        if key not in self.tables:
            self.tables[key] = to_bf16(np.float32(base) + np.float32(amplitude) * self.unit.astype(np.float32))
        return self.tables[key]

    def __call__(self, t, arch):
        rng = np.random.Generator(np.random.SFC64([self.seed, zlib.crc32(t.name.encode())]))
        if t.name.endswith("weight_packed"):
            return np.frombuffer(rng.bytes(t.count), np.uint8)
        if t.name.endswith("weight_scale"):
            return (121 + (np.frombuffer(rng.bytes(t.count), np.uint8) >> 6)).astype(np.uint8)
        if t.dtype == "F32":
            return self.small(t, arch, rng)
        h = self.table(t.base, t.amplitude)[np.frombuffer(rng.bytes(2 * t.count), "<u2")]
        if t.name.endswith("kv_a_proj_with_mqa.weight") and "language_model" in t.name:
            rows = h.reshape(t.shape)[arch["kv_lora"]:]
            rows[rows & 0x7F80 != 0] += 8 << 7
        if t.name.endswith("block_sparse_moe.gate.weight"):
            # Experts 2j and 2j + 1 differ in the last bit of one weight: their scores nearly tie.
            rows = h.reshape(t.shape)
            pairs = t.shape[0] // 2
            rows[1:2 * pairs:2] = rows[0:2 * pairs:2]
            rows[1:2 * pairs:2, 0] ^= 1
        return h

    def small(self, t, arch, rng):
        x = (t.base + t.amplitude * rng.uniform(-1.0, 1.0, t.count)).astype("<f4")
        if t.name.endswith("A_log"):
            x[arch["kda_heads"]:] = 0
        if t.name.endswith("dt_bias"):
            x = rng.uniform(-9.0, 6.0, t.count).astype("<f4")  # decays from 1 - 1e-4 to e^-5
        if t.name.endswith("e_score_correction_bias"):
            x[1::2] = x[0:2 * (t.count // 2):2]
        return x


# ---- files -----------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def replacing(path, mode):
    """The new contents of `path`, which take its name when they are whole. A server that has the old file mapped keeps it: written
    over, its weights would change under it, and cut short, they would end it."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, mode) as f:
            yield f
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)
        raise


def copy_files(folder, *paths):
    for path in paths:
        with open(path, "rb") as f, replacing(os.path.join(folder, os.path.basename(path)), "wb") as g:
            shutil.copyfileobj(f, g)


LARGE = 64 << 20  # bytes of a file whose weights are read again and again


def write_file(path, tensors, values, arch):
    header, offset = {}, 0
    for t in tensors:
        header[t.name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [offset, offset + t.bytes]}
        offset += t.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors:
            f.write(values(t, arch))
        if offset >= LARGE:
            # What the page cache keeps of a writer lies in small pages; a reader that asks for large ones gets them
            # for what comes from the disk only. They are worth a fifth of the speed of decoding.
            f.flush()
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return offset


def split_evenly(groups, n):
    """n lists of groups in order, of about equal bytes."""
    total = sum(t.bytes for g in groups for t in g)
    shards, done = [[] for _ in range(n)], 0
    for g in groups:
        size = sum(t.bytes for t in g)
        shards[min(n - 1, int((done + size / 2) * n / total))].extend(g)
        done += size
    return [s for s in shards if s]


def write_json(path, value):
    with replacing(path, "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def write_checkpoint(folder, arch, values, n_shards):
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), config_of(arch))
    if "vision" in arch:
        write_json(os.path.join(folder, "preprocessor_config.json"), preprocessor_config(arch["vision"]))
    shards = split_evenly(list(groups_of(arch)), n_shards)
    if len(shards) == 1:
        return write_file(os.path.join(folder, "model.safetensors"), shards[0], values, arch)
    weight_map, total = {}, 0
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        total += write_file(os.path.join(folder, name), tensors, values, arch)
        weight_map.update((t.name, name) for t in tensors)
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": {"total_size": total}, "weight_map": weight_map})
    return total


# ---- the draft --------------------------------------------------------------------------------------------------

def draft_arch(target, opt):
    hidden, layers = target["hidden"], target["layers"]
    n_taps = min(4, layers)
    return dict(
        kind=opt.draft_kind, vocab=target["vocab"], hidden=hidden, layers=2, inter=2 * hidden, heads=4, kv_heads=2,
        q_lora=96, kv_lora=target["kv_lora"], nope=48, rope=target["rope"], v_dim=48, head_dim=32, rank=32,
        taps=sorted({(i + 1) * layers // n_taps - 1 for i in range(n_taps)}), target_layers=layers,
        causal=opt.draft_causal, stream=opt.draft_stream, tap_norms=opt.draft_tap_norms)


def draft_config(arch):
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 50000.0,
            "beta_fast": 32, "beta_slow": 1}
    config = {
        "dtype": "bfloat16", "hidden_size": arch["hidden"], "intermediate_size": arch["inter"],
        "num_hidden_layers": arch["layers"], "num_attention_heads": arch["heads"], "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "vocab_size": arch["vocab"], "draft_vocab_size": arch["vocab"],
        "max_position_embeddings": 1048576, "rope_theta": 50000.0, "target_hidden_size": arch["hidden"],
        "target_num_hidden_layers": arch["target_layers"], "markov_rank": arch["rank"],
        "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True,
        "bos_token_id": arch["vocab"] - 3, "eos_token_id": arch["vocab"] - 2, "pad_token_id": arch["vocab"] - 1}
    special = {"mask_token_id": arch["vocab"] - 5, "target_layer_ids": arch["taps"]}
    if arch["stream"]:
        special["aux_hidden_stream"] = arch["stream"]
    if arch["kind"] == "mla":
        config.update(special, model_type="k3_dspark", architectures=["K3DSparkModel"],
                      num_key_value_heads=arch["heads"], q_lora_rank=arch["q_lora"], kv_lora_rank=arch["kv_lora"],
                      qk_nope_head_dim=arch["nope"], qk_rope_head_dim=arch["rope"], v_head_dim=arch["v_dim"],
                      mla_use_nope=False, mla_use_output_gate=False, num_target_layers=len(arch["taps"]),
                      rope_parameters=dict(rope, mscale=1.0, mscale_all_dim=1.0))
    else:
        config.update(model_type="qwen3", num_key_value_heads=arch["kv_heads"], head_dim=arch["head_dim"],
                      attention_bias=False, attention_dropout=0.0, num_target_layers=arch["target_layers"],
                      block_size=7, dflash_config=special, rope_scaling=rope)
    if arch["tap_norms"]:
        config["fc_norm"] = True
    if arch["causal"]:
        config["is_causal"] = True
    return config


def draft_tensors(arch):
    hidden, mla, d = arch["hidden"], arch["kind"] == "mla", arch["head_dim"]
    yield linear("context_proj" if mla else "fc", hidden, len(arch["taps"]) * hidden)
    yield norm("context_norm" if mla else "hidden_norm", hidden)
    for i in range(len(arch["taps"]) if arch["tap_norms"] else 0):
        yield norm(f"fc_norm.{i}", hidden)
    for i in range(arch["layers"]):
        p = f"layers.{i}."
        yield norm(p + "input_layernorm", hidden)
        yield norm(p + "post_attention_layernorm", hidden)
        if mla:
            yield from mla_tensors(p + "self_attn.", arch, gated=False)
        else:
            yield linear(p + "self_attn.q_proj", arch["heads"] * d, hidden)
            yield linear(p + "self_attn.k_proj", arch["kv_heads"] * d, hidden)
            yield linear(p + "self_attn.v_proj", arch["kv_heads"] * d, hidden)
            yield linear(p + "self_attn.o_proj", hidden, arch["heads"] * d)
            yield norm(p + "self_attn.q_norm", d)
            yield norm(p + "self_attn.k_norm", d)
        yield from mlp_tensors(p + "mlp.", arch["inter"], hidden)
    yield norm("final_norm" if mla else "norm", hidden)
    yield linear("markov_head.markov_w1", arch["vocab"], arch["rank"])
    yield linear("markov_head.markov_w2", arch["vocab"], arch["rank"])
    yield linear("confidence_head.proj", 1, hidden + arch["rank"])
    yield Tensor("confidence_head.proj.bias", "BF16", (1,), 1.0)


# ---- command line ------------------------------------------------------------------------------------------------

def parse_size(text):
    unit = {"K": 10 ** 3, "M": 10 ** 6, "G": 10 ** 9}.get(text[-1:].upper())
    return int(float(text[:-1]) * unit) if unit else int(text)


def width_for(size, opt):
    """The width whose checkpoint comes nearest to `size` bytes."""
    low, high = 1, 4096  # in steps of 64
    while high - low > 1:
        middle = (low + high) // 2
        if total_bytes(random_arch(64 * middle, opt)) <= size:
            low = middle
        else:
            high = middle
    return min((64 * low, 64 * high), key=lambda h: abs(total_bytes(random_arch(h, opt)) - size))


def make_random(opt):
    hidden = opt.hidden or (width_for(opt.size, opt) if opt.size else 256)
    arch = random_arch(hidden, opt)
    if not all(1 <= i <= arch["layers"] for i in arch["mla_layers"]):
        sys.exit("make_checkpoint: --mla-layers are numbers 1..layers")
    values = RandomValues(opt.seed)
    total = write_checkpoint(opt.dir, arch, values, opt.shards)
    print(f"{opt.dir}: {total / MIB:.1f} MiB, hidden {arch['hidden']}, {arch['layers']} layers, "
          f"{arch['experts']} experts, seed {opt.seed}")
    if opt.draft:
        draft = draft_arch(arch, opt)
        os.makedirs(opt.draft, exist_ok=True)
        write_json(os.path.join(opt.draft, "config.json"), draft_config(draft))
        total = write_file(os.path.join(opt.draft, "model.safetensors"), list(draft_tensors(draft)), values, draft)
        print(f"{opt.draft}: {total / MIB:.1f} MiB, {draft['kind']} draft, taps {draft['taps']}")


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    golden = commands.add_parser("golden", help="a golden model, one file")
    golden.add_argument("name", choices=["A", "B"])
    golden.add_argument("dir")
    rand = commands.add_parser("random", help="random weights")
    rand.add_argument("dir")
    rand.add_argument("--size", type=parse_size, help="bytes of tensors, as 2G or 500M: chooses the width")
    rand.add_argument("--hidden", type=int, help="width (default 256, or from --size)")
    rand.add_argument("--layers", type=int, default=13)
    rand.add_argument("--mla-layers", type=lambda s: sorted({int(x) for x in s.split(",")}),
                      help="1-based, as 4,8,9 (default: every fourth and the last)")
    rand.add_argument("--vocab", type=int, default=8192)
    rand.add_argument("--experts", type=int, default=32)
    rand.add_argument("--top", type=int, default=8, help="experts per token")
    rand.add_argument("--groups", type=int, default=1, help="expert groups")
    rand.add_argument("--top-groups", type=int, default=1)
    rand.add_argument("--taps", type=int, default=4, help="taps of the short convolution")
    for name in ("inter", "block", "heads", "kv-lora", "nope", "rope", "v-dim", "kda-heads", "kda-dim",
                 "expert-inter", "latent"):
        rand.add_argument("--" + name, type=int)
    rand.add_argument("--vision", action="store_true", help="with a small vision tower and projector")
    rand.add_argument("--draft", metavar="DIR", help="also write a DSpark draft")
    rand.add_argument("--draft-kind", choices=["mla", "gqa"], default="mla")
    rand.add_argument("--draft-causal", action="store_true")
    rand.add_argument("--draft-stream", choices=["prefix", "attn_res"])
    rand.add_argument("--draft-tap-norms", action="store_true")
    rand.add_argument("--shards", type=int, default=4)
    rand.add_argument("--seed", type=int, default=1)
    return parser.parse_args(argv)


def main(argv):
    opt = parse_args(argv)
    if opt.command == "golden":
        arch = golden_arch(opt.name)
        total = write_checkpoint(opt.dir, arch, golden_values, 1)
        print(f"{opt.dir}: golden model {opt.name}, {total} bytes")
    else:
        make_random(opt)


if __name__ == "__main__":
    main(sys.argv[1:])
