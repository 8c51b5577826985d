"""ctypes binding of include/k3/k3.h: the structs, the calls, errors as exceptions.

Everything here mirrors the header one to one; a library of another ABI version is refused.
Arrays cross the boundary by their address (no copies); they need to live only during the call.
"""

import ctypes
import json
import os
from array import array
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

ABI_VERSION = 1
SLOT_KEEP, SLOT_RESET, SLOT_RESTORE = range(3)
E_NONFINITE = -11

I32 = POINTER(c_int32)
LogFn = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
GatherFn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t)
_PYBUF_WRITE = 0x200  # PyBUF_WRITE of CPython: the view may be written to
_memory_view = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


class K3Error(RuntimeError):
    """A call into libk3 failed; the text is the library's own sentence."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status


class _Struct(ctypes.Structure):
    """A struct of k3.h: its first field is its own size."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(self), **fields)


def _fields(spec: str) -> list:
    """Parses 'type name name; type name' into ctypes fields; pointers are plain addresses."""
    kinds = {"u32": c_uint32, "i32": c_int32, "i64": c_int64, "i32*": c_void_p, "u64*": c_void_p, "f32*": c_void_p}
    out = []
    for part in spec.split(";"):
        kind, *names = part.split()
        out += [(name, kinds[kind]) for name in names]
    return out


class Info(_Struct):
    _fields_ = _fields(
        "u32 size; i32 vocab_size hidden_size num_layers num_kda_layers num_mla_layers num_experts"
        " num_experts_per_token bos_token_id eos_token_id pad_token_id media_token_id max_model_len"
        " max_num_seqs max_num_batched_tokens has_vision image_patch_size image_merge_size"
        " draft_layers draft_tokens draft_mask_id threads tp_rank tp_size; i64 weight_bytes"
        " latent_bytes_per_token state_bytes record_bytes workspace_bytes"
    ) + [("isa", ctypes.c_char * 16), ("mode", ctypes.c_char * 8)]


class KvConfig(_Struct):
    _fields_ = _fields("u32 size; i32 num_blocks block_tokens n_slots; i64 page_bytes")


class KvLayout(_Struct):
    _fields_ = _fields("u32 size; i32 snapshot_blocks; i64 page_bytes pool_bytes slot_bytes")


class Batch(_Struct):
    _fields_ = _fields(
        "u32 size; i32 n_reqs n_tokens n_logit_rows n_media n_snap; i32* token_ids q_start ctx_len"
        " slot slot_op restore_block n_spec mla_off mla_table logit_row media_token; u64* media_key;"
        " i32* media_row media_count snap_req snap_pos snap_block req_status"
    )


class CommitArgs(_Struct):
    _fields_ = _fields("u32 size; i32 n_reqs n_snap pad_; i32* accepted snap_req snap_pos snap_block req_status")


class DraftArgs(_Struct):
    _fields_ = _fields(
        "u32 size; i32 n_reqs n_draft pad_; i32* req last_token; f32* temperature; u64* seed;"
        " i32* ids; f32* confidence logits"
    )


class Image(ctypes.Structure):
    _fields_ = [
        ("key", c_uint64),
        ("pixels", c_void_p),
        ("n_patches", c_int32),
        ("grid_t", c_int32),
        ("grid_h", c_int32),
        ("grid_w", c_int32),
    ]


class Stats(_Struct):
    _fields_ = _fields(
        "u32 size; i32 slots_used; i64 steps rows spec_rows spec_accepted snapshots restores"
        " nonfinite images image_bytes forward_ns commit_ns draft_ns image_ns weight_bytes_read threads_active"
    )


def i32(values) -> array:
    """An array of int32. A step makes twenty short ones: this is three times as fast as numpy's."""
    return array("i", values)


def u64(values) -> array:
    return array("Q", values)


def _address(values: array) -> int:
    return values.buffer_info()[0]


def library_path() -> str:
    """The library inside the package, or the one that LIBK3_PATH names (used by tests)."""
    return os.environ.get("LIBK3_PATH") or os.path.join(os.path.dirname(__file__), "libk3.so.1")


def load(path: str | None = None) -> ctypes.CDLL:
    path = path or library_path()
    try:
        lib = ctypes.CDLL(path)
    except OSError as err:
        raise K3Error(0, f"libk3 cannot be loaded from {path}: {err}") from None
    found = lib.k3_abi_version()
    if found != ABI_VERSION:
        raise K3Error(0, f"{path} has ABI version {found}, this k3-vllm needs {ABI_VERSION}")
    lib.k3_status_text.restype = c_char_p
    lib.k3_last_error.restype = c_char_p
    lib.k3_last_error.argtypes = [c_void_p]
    lib.k3_set_collective.argtypes = [c_void_p, GatherFn, c_void_p]
    lib.k3_close.argtypes = [c_void_p]
    lib.k3_close.restype = None
    lib.k3_free_image.argtypes = [c_void_p, c_uint64]
    lib.k3_free_image.restype = None
    lib.k3_forward.argtypes = [c_void_p, c_void_p, c_void_p, c_int64]
    out = [I32, c_int32, I32, c_char_p, c_size_t]
    lib.k3_text_open.argtypes = [c_char_p, POINTER(c_void_p), c_char_p, c_size_t]
    lib.k3_text_close.argtypes = [c_void_p]
    lib.k3_text_close.restype = None
    lib.k3_text_encode.argtypes = [c_void_p, c_char_p, c_size_t, c_int32, *out]
    lib.k3_text_chat.argtypes = [c_void_p, c_char_p, c_size_t, *out]
    lib.k3_open.argtypes = [c_char_p, LogFn, c_void_p, POINTER(c_void_p), c_char_p, c_size_t]
    return lib


class Text:
    """Tokenizer and chat format of a checkpoint directory; any number of threads may use one."""

    def __init__(self, path: str):
        self._lib = load()
        handle, error = c_void_p(), ctypes.create_string_buffer(1024)
        status = self._lib.k3_text_open(path.encode(), ctypes.byref(handle), error, len(error))
        if status != 0:
            raise K3Error(status, error.value.decode(errors="replace"))
        self._handle = handle

    def __del__(self):
        if getattr(self, "_handle", None):
            self._lib.k3_text_close(self._handle)

    def encode(self, text: str, specials: bool) -> list[int]:
        data = text.encode("utf-8", errors="replace")
        return self._ids(self._lib.k3_text_encode, data, len(data), int(specials))

    def chat(self, request: dict) -> list[int]:
        data = json.dumps(request, ensure_ascii=False).encode("utf-8", errors="replace")
        return self._ids(self._lib.k3_text_chat, data, len(data))

    def _ids(self, call, data: bytes, *args) -> list[int]:
        cap, n, error = len(data) + 1024, c_int32(), ctypes.create_string_buffer(1024)
        while True:  # a second time only if the first guess of the length was too small
            ids = np.empty(cap, dtype=np.int32)
            status = call(self._handle, data, *args, ids.ctypes.data_as(I32), cap, ctypes.byref(n), error, len(error))
            if status != 0:
                raise ValueError(error.value.decode(errors="replace"))
            if n.value <= cap:
                return ids[: n.value].tolist()
            cap = n.value


class Engine:
    """One k3_engine. Methods raise K3Error; arguments are arrays of the header's types."""

    def __init__(self, options: dict, log=None, path: str | None = None):
        self._lib = load(path)
        self._handle = None
        self._gather = None
        self._gather_error: Exception | None = None
        # The library keeps the callbacks until close, so they must live as long as this object.
        self._log = LogFn(lambda _user, level, text: log(level, text.decode(errors="replace"))) if log else LogFn()
        handle, text = c_void_p(), ctypes.create_string_buffer(1024)
        status = self._lib.k3_open(
            json.dumps(options).encode(), self._log, None, ctypes.byref(handle), text, len(text)
        )
        if status != 0:
            raise K3Error(status, text.value.decode(errors="replace"))
        self._handle = handle
        self.info = Info()
        self._check(self._lib.k3_query(handle, ctypes.byref(self.info)))

    def close(self):
        if self._handle is not None:
            self._lib.k3_close(self._handle)
            self._handle = None

    def _check(self, status: int):
        if status != 0:
            cause, self._gather_error = self._gather_error, None
            raise K3Error(status, self._lib.k3_last_error(self._handle).decode(errors="replace")) from cause

    def set_collective(self, gather):
        """gather(view) fills a writable view of tp_size equal parts, of which only this rank's is set."""

        def call(_user, buffer, n_bytes) -> int:
            try:
                gather(_memory_view(buffer, n_bytes * self.info.tp_size, _PYBUF_WRITE))
                return 0
            except Exception as err:  # must not cross C; it becomes the cause of the step's error
                self._gather_error = err
                return 1

        self._gather = GatherFn(call)
        self._check(self._lib.k3_set_collective(self._handle, self._gather, None))

    def kv_init(self, config: KvConfig) -> KvLayout:
        layout = KvLayout()
        self._check(self._lib.k3_kv_init(self._handle, ctypes.byref(config), ctypes.byref(layout)))
        return layout

    def forward(self, arrays: dict, logits: np.ndarray):
        """arrays: the pointer fields of k3_batch by name; logits: float32 [rows, vocab]."""
        batch = Batch(
            n_reqs=len(arrays["ctx_len"]),
            n_tokens=len(arrays["token_ids"]),
            n_logit_rows=len(arrays["logit_row"]),
            n_media=len(arrays["media_key"]),
            n_snap=len(arrays["snap_req"]),
            **{name: _address(values) for name, values in arrays.items()},
        )
        stride = logits.shape[1] if logits.size else int(self.info.vocab_size)
        self._check(
            self._lib.k3_forward(self._handle, ctypes.byref(batch), logits.ctypes.data, stride)
        )

    def commit(self, accepted, snap_req, snap_pos, snap_block, req_status):
        args = CommitArgs(
            n_reqs=len(accepted),
            n_snap=len(snap_req),
            accepted=_address(accepted),
            snap_req=_address(snap_req),
            snap_pos=_address(snap_pos),
            snap_block=_address(snap_block),
            req_status=_address(req_status),
        )
        self._check(self._lib.k3_commit(self._handle, ctypes.byref(args)))

    def draft(self, req, last_token, n_draft: int) -> np.ndarray:
        ids = np.empty((len(req), n_draft), dtype=np.int32)
        args = DraftArgs(
            n_reqs=len(req),
            n_draft=n_draft,
            req=_address(req),
            last_token=_address(last_token),
            ids=ids.ctypes.data,
        )
        self._check(self._lib.k3_draft(self._handle, ctypes.byref(args)))
        return ids

    def encode_image(self, key: int, pixels: np.ndarray, grid: tuple[int, int, int]):
        pixels = np.ascontiguousarray(pixels, dtype=np.float32)
        image = Image(key, pixels.ctypes.data, len(pixels), *grid)
        self._check(self._lib.k3_encode_image(self._handle, c_int32(1), ctypes.byref(image)))

    def free_image(self, key: int):
        self._lib.k3_free_image(self._handle, key)

    def slot_release(self, slot: int):
        self._check(self._lib.k3_slot_release(self._handle, c_int32(slot)))

    def stats(self) -> Stats:
        stats = Stats()
        self._check(self._lib.k3_stats(self._handle, ctypes.byref(stats)))
        return stats
