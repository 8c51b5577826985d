"""K3's image rules: picture -> patches, with Pillow doing the resampling.

Order: size rule, bicubic resize in the picture's own mode, chessboard behind transparency, zero
padding to whole merge cells, (x/255 - mean)/std, patches in raster order.
"""

import json
import math
import os

import numpy as np
import torch
from PIL import Image


class K3ImageProcessor:
    """Built from media_proc_cfg of preprocessor_config.json; unknown rules are refused."""

    def __init__(self, cfg: dict):
        if cfg.get("fixed_output_tokens") is not None:
            raise ValueError("preprocessor_config.json: fixed_output_tokens is not supported")
        self.media_proc_cfg = cfg
        self.patch = int(cfg["patch_size"])
        merge = cfg["merge_kernel_size"]
        self.cell = self.patch * int(merge[0] if isinstance(merge, list) else merge)
        self.patch_limit = int(cfg["in_patch_limit"])
        self.side_limit = int(cfg["patch_limit_on_one_side"]) * self.patch
        self.mean = np.asarray(cfg["image_mean"], dtype=np.float32)
        self.std = np.asarray(cfg["image_std"], dtype=np.float32)
        self.background = cfg.get("transparent_bg_config")
        self.fill_before = cfg.get("transparent_bg_fill_stage", "before_resize") == "before_resize"

    @classmethod
    def from_model_dir(cls, path: str) -> "K3ImageProcessor":
        with open(os.path.join(path, "preprocessor_config.json"), encoding="utf-8") as file:
            return cls(json.load(file)["media_proc_cfg"])

    def new_size(self, width: int, height: int) -> tuple[int, int]:
        area = max(1, width // self.patch) * max(1, height // self.patch)
        scale = min(1.0, math.sqrt(self.patch_limit / area), self.side_limit / width, self.side_limit / height)
        return tuple(min(max(1, int(side * scale)), self.side_limit) for side in (width, height))

    def num_tokens(self, width: int, height: int) -> int:
        new_w, new_h = self.new_size(width, height)
        return -(-new_w // self.cell) * -(-new_h // self.cell)

    def media_tokens_calculator(self, media: dict) -> int:
        return self.num_tokens(*_pil(media["image"]).size)

    def __call__(self, images: list) -> dict[str, torch.Tensor]:
        patches, grids = zip(*(self._patches(_pil(image)) for image in images))
        return {
            "pixel_values": torch.from_numpy(np.concatenate(patches)),
            "grid_thws": torch.tensor(grids, dtype=torch.int64),
        }

    def _patches(self, image: Image.Image) -> tuple[np.ndarray, tuple[int, int, int]]:
        width, height = self.new_size(*image.size)
        if image.mode in ("I;16", "I;16B", "I;16L", "I"):  # 16-bit grey: its high byte
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
        if self.fill_before:
            image = self._opaque(image)
        if image.size != (width, height):
            image = image.resize((width, height), resample=Image.Resampling.BICUBIC)
        pixels = np.asarray(self._opaque(image), dtype=np.float32)
        pad = ((0, -height % self.cell), (0, -width % self.cell), (0, 0))
        pixels = np.pad(pixels, pad)
        pixels = (pixels / np.float32(255) - self.mean) / self.std
        p, (rows, cols) = self.patch, (pixels.shape[0] // self.patch, pixels.shape[1] // self.patch)
        cut = pixels.reshape(rows, p, cols, p, 3).transpose(0, 2, 4, 1, 3)
        return np.ascontiguousarray(cut).reshape(rows * cols, 3, p, p), (1, rows, cols)

    def _opaque(self, image: Image.Image) -> Image.Image:
        """RGB, with transparency put on the configured chessboard."""
        has_alpha = image.mode in ("RGBA", "LA", "PA") or (image.mode != "RGB" and "transparency" in image.info)
        if not has_alpha or self.background is None:
            return image.convert("RGB")
        rgba = np.asarray(image.convert("RGBA"), dtype=np.float32)
        alpha = rgba[:, :, 3:] / np.float32(255)
        mixed = alpha * rgba[:, :, :3] + (np.float32(1) - alpha) * self._board(*image.size)[:, :, None]
        return Image.fromarray(mixed.astype(np.uint8))  # truncates, as the reference does

    def _board(self, width: int, height: int) -> np.ndarray:
        bg = self.background
        if bg.get("pattern") != "chessboard":
            raise ValueError(f"preprocessor_config.json: background pattern {bg.get('pattern')!r} is not supported")
        square = int(bg.get("square_size", 16))
        odd = (np.arange(height)[:, None] // square + np.arange(width)[None, :] // square) % 2
        white = 0 if bg.get("chessboard_square_on_top_left", True) else 1
        return np.where(odd == white, bg.get("white", 255), bg.get("gray", 200)).astype(np.float32)


def _pil(image) -> Image.Image:
    """vLLM may wrap a picture together with its bytes."""
    return image.media if hasattr(image, "media") and hasattr(image, "original_bytes") else image
