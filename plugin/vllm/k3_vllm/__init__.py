"""k3-vllm: Kimi-K3 in a real vLLM, computed by libk3.

Importing this package imports nothing of vLLM. The two entry points are called by vLLM:
`activate` (group vllm.platform_plugins) and `register` (group vllm.general_plugins).
"""

import os

__version__ = "0.1.0"


def activate() -> str | None:
    """The platform class if this process is to run on libk3, else None.

    LIBK3_VLLM=1 asks for it, LIBK3_VLLM=0 refuses it; unset means: only if no accelerator is here,
    so that installing the package leaves an unrelated vLLM in the same environment alone.
    """
    wish = os.environ.get("LIBK3_VLLM", "")
    if wish not in ("", "0", "1"):
        raise ValueError(f"LIBK3_VLLM must be 0 or 1, not {wish!r}")
    if wish == "0" or (wish == "" and _accelerator_present()):
        return None
    return "k3_vllm.platform.K3Platform"


def register() -> None:
    """Registers models, tokenizer and renderer, if our platform is the current one."""
    from vllm.platforms import current_platform

    if type(current_platform).__module__ == "k3_vllm.platform":
        from k3_vllm import compat

        compat.register()


def _accelerator_present() -> bool:
    """Whether one of vLLM's own accelerator platforms would start here."""
    from vllm.platforms import builtin_platform_plugins

    for name, detect in builtin_platform_plugins.items():
        if name == "cpu":
            continue
        try:
            if detect() is not None:
                return True
        except Exception:  # a broken driver is no accelerator
            continue
    return False
