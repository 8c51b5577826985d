"""Chat messages -> prompt ids: vLLM's K3 renderer, but with the parts of a message kept apart.

vLLM's own joins text and picture placeholders into one string, with line breaks that K3 was not
trained on and a placeholder that a user could type. Here the parts stay parts.
"""

from vllm.renderers.chat_utils import parse_chat_messages, parse_chat_messages_async
from vllm.renderers.inputs.preprocess import parse_dec_only_prompt
from vllm.renderers.kimi_k3 import KimiK3Renderer, _merge_k3_media_io_kwargs


class K3Renderer(KimiK3Renderer):
    def render_messages(self, messages, params):
        parsed = parse_chat_messages(messages, self.model_config, **_parse_options(params))
        return self._prompt(*parsed, self._apply_chat_template(_for_libk3(parsed[0]), params))

    async def render_messages_async(self, messages, params):
        parsed = await parse_chat_messages_async(messages, self.model_config, **_parse_options(params))
        ids = await self._apply_chat_template_async(_for_libk3(parsed[0]), params)
        return self._prompt(*parsed, ids)

    @staticmethod
    def _prompt(conversation, images, uuids, ids):
        prompt = parse_dec_only_prompt(ids)
        if images is not None:
            prompt["multi_modal_data"] = images
        if uuids is not None:
            prompt["multi_modal_uuids"] = uuids
        return conversation, prompt


def _for_libk3(conversation: list[dict]) -> list[dict]:
    """vLLM has taken the pictures out; libk3 wants to see an address, any address, in their place."""

    def part(item: dict) -> dict:
        return {"type": "image", "image": ""} if item.get("type") == "image" else item

    return [
        {**message, "content": [part(item) for item in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in conversation
    ]


def _parse_options(params) -> dict:
    return {
        "content_format": "openai",
        "media_io_kwargs": _merge_k3_media_io_kwargs(params.media_io_kwargs),
        "mm_processor_kwargs": params.mm_processor_kwargs,
    }
