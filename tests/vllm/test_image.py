"""Pictures -> patches, against published check sums of the reference processor (f32 patches)."""

import zlib

import numpy as np
import pytest

pytest.importorskip("torch", reason="NOT RUN: vLLM is not installed")
from PIL import Image  # noqa: E402

from k3_vllm.image import K3ImageProcessor  # noqa: E402

CONFIG = {
    "in_patch_limit": 65536, "patch_size": 14, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "merge_kernel_size": 2, "fixed_output_tokens": None, "patch_limit_on_one_side": 512,
    "transparent_bg_config": {"pattern": "chessboard", "square_size": 8, "white": 255, "gray": 180,
                              "chessboard_square_on_top_left": True},
    "transparent_bg_fill_stage": "after_resize",
}  # fmt: skip


def form(width: int, height: int, channels: int) -> np.ndarray:
    x, y, c = np.meshgrid(np.arange(width), np.arange(height), np.arange(channels))
    return ((37 * x + 91 * y + 53 * c + x * y) % 256).astype(np.uint8)


@pytest.mark.parametrize(
    "size, mode, budget, grid, crc",
    [
        ((303, 181), "RGB", 65536, (1, 14, 22), 0x09E756CB),
        ((303, 181), "RGBA", 65536, (1, 14, 22), 0xFD429F38),
        ((303, 181), "RGB", 64, (1, 8, 12), 0xB6397B0C),
        ((303, 181), "RGBA", 64, (1, 8, 12), 0x346F65FF),
        ((30, 16), "RGB", 65536, (1, 2, 4), 0x71D4615A),
    ],
)
def test_patches_are_the_published_ones(size, mode, budget, grid, crc):
    processor = K3ImageProcessor({**CONFIG, "in_patch_limit": budget})
    out = processor([Image.fromarray(form(*size, len(mode)))])
    assert out["grid_thws"].tolist() == [list(grid)]
    assert zlib.crc32(out["pixel_values"].numpy().tobytes()) == crc


@pytest.mark.parametrize(
    "size, tokens",
    [((1, 1), 1), ((512, 512), 361), ((4000, 3000), 15444), ((8000, 8000), 16641), ((7169, 14), 256),
     ((100000, 13), 256), ((1889, 7377), 16830)],
)  # fmt: skip
def test_token_counts_are_the_published_ones(size, tokens):
    assert K3ImageProcessor(CONFIG).num_tokens(*size) == tokens


def test_several_pictures_follow_each_other():
    processor = K3ImageProcessor(CONFIG)
    pictures = [Image.fromarray(form(30, 16, 3)), Image.fromarray(form(303, 181, 3))]
    both = processor(pictures)
    alone = [processor([picture])["pixel_values"] for picture in pictures]
    assert both["grid_thws"].tolist() == [[1, 2, 4], [1, 14, 22]]
    assert (both["pixel_values"].numpy() == np.concatenate(alone)).all()


def test_unknown_rules_are_refused():
    with pytest.raises(ValueError, match="fixed_output_tokens"):
        K3ImageProcessor({**CONFIG, "fixed_output_tokens": 64})
