"""The K3 architectures as vLLM's configuration code sees them: flags and the image processor.

vLLM inspects these classes (capabilities, multimodal processor) and never builds or runs them: the
worker opens the checkpoint in libk3. The processor triple is vLLM's own, with K3's image rules
(image.py) and the placeholder bound by token id instead of by text.
"""

from collections.abc import Mapping

import torch
from transformers import BatchFeature
from vllm.models.kimi_k3.common.mm_preprocess import (
    KimiK3DummyInputsBuilder,
    KimiK3MultiModalProcessor,
    KimiK3ProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.parse import ImageProcessorItems
from vllm.multimodal.processing import BaseProcessingInfo, PromptReplacement, PromptUpdateDetails

from k3_vllm.image import K3ImageProcessor
from k3_vllm.tokenizer import PLACEHOLDER


class _MetadataModel(torch.nn.Module):
    """What vLLM's registry needs to classify a class as a text-generation model."""

    def __init__(self, *, vllm_config, prefix: str = ""):
        super().__init__()
        raise NotImplementedError("k3-vllm computes in libk3; this class is never built")

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        raise NotImplementedError


class _Processor:
    """What the vLLM processor calls `hf_processor`: tokens and patches of one prompt."""

    def __init__(self, tokenizer, image_processor: K3ImageProcessor):
        self.tokenizer = tokenizer
        self.image_processor = image_processor

    def __call__(self, text=None, images=None, return_tensors=None, **_kwargs) -> BatchFeature:
        data: dict = {}
        if text is not None:
            texts = [text] if isinstance(text, str) else text
            data["input_ids"] = [self.tokenizer.encode(one) for one in texts]
        if images is not None:
            data.update(self.image_processor(images if isinstance(images, list) else [images]))
        return BatchFeature(data=data, tensor_type=return_tensors)


class K3ProcessingInfo(KimiK3ProcessingInfo):
    def __init__(self, ctx):
        # Not the parent's: it loads K2.5's image processor, which drops transparency.
        BaseProcessingInfo.__init__(self, ctx)
        tokenizer = self.get_tokenizer()
        self.hf_config = self.get_hf_config()
        self.media_token_id = self.hf_config.media_placeholder_token_id
        self.media_token = tokenizer.decode([self.media_token_id])
        self.image_processor = K3ImageProcessor.from_model_dir(ctx.model_config.model)
        self.hf_processor = _Processor(tokenizer, self.image_processor)

    def get_hf_processor(self, **_kwargs: object) -> _Processor:
        return self.hf_processor


class K3DummyInputsBuilder(KimiK3DummyInputsBuilder):
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return PLACEHOLDER * mm_counts.get("image", 0)


class K3MultiModalProcessor(KimiK3MultiModalProcessor):
    def _get_prompt_updates(self, mm_items, hf_processor_mm_kwargs, out_mm_kwargs):
        """One media token per image becomes the whole block: begin, size, content, pads, end.

        The tokenizer makes a media token only from the placeholder, and the chat renderer only from
        an image part, so text of a user cannot take the place of a picture.
        """
        tokenizer, pad = self.info.get_tokenizer(), self.info.media_token_id

        def block(index: int) -> PromptUpdateDetails:
            images = mm_items.get_items("image", ImageProcessorItems)
            size = images.get_image_size(index)  # of the upload, not of the resized picture
            n_pads = self.info.image_processor.num_tokens(size.width, size.height)
            head = tokenizer.encode(f"<|media_begin|>image {size.width}x{size.height}<|media_content|>")
            ids = [*head, *([pad] * n_pads), *tokenizer.encode("<|media_end|>")]
            return PromptUpdateDetails.select_token_id(ids, pad)

        return [PromptReplacement(modality="image", target=[pad], replacement=block)]


@MULTIMODAL_REGISTRY.register_processor(
    K3MultiModalProcessor, info=K3ProcessingInfo, dummy_inputs=K3DummyInputsBuilder
)
class KimiK3ForConditionalGeneration(_MetadataModel):
    supports_multimodal = True
    supports_multimodal_raw_input_only = False
    supports_encoder_tp_data = False
    requires_raw_input_tokens = False
    is_hybrid = True
    has_inner_state = True
    supports_pp = False

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        if modality != "image":
            raise ValueError(f"Kimi-K3 accepts text and images, not {modality}")
        return PLACEHOLDER


class K3DSparkModel(_MetadataModel):
    """The draft; vLLM asks only whether the architecture exists."""
