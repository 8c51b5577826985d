"""Where the tests find the model, and how they run vLLM in this process.

LIBK3_TEST_MODEL and LIBK3_TEST_DRAFT name other checkpoints of the same tokenizer than the bundled ones.
A test that cannot run says NOT RUN and why.
"""

import os
import pathlib
import sys

import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
MODEL = os.environ.get("LIBK3_TEST_MODEL", str(REPO / "models" / "mini"))
DRAFT = os.environ.get("LIBK3_TEST_DRAFT", str(REPO / "models" / "mini-dspark"))

sys.path.insert(0, str(pathlib.Path(__file__).parent))
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # scheduler and worker in this process
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def not_run(reason: str):
    print(f"NOT RUN: {reason}")
    pytest.skip(f"NOT RUN: {reason}")


@pytest.fixture(scope="session")
def model() -> str:
    if not os.path.exists(os.path.join(MODEL, "config.json")):
        not_run(f"{MODEL} is not there")
    return MODEL


@pytest.fixture(scope="session")
def draft() -> str:
    if not os.path.exists(os.path.join(DRAFT, "config.json")):
        not_run(f"{DRAFT} is not there")
    return DRAFT


@pytest.fixture(scope="session")
def vllm():
    return pytest.importorskip("vllm", reason="NOT RUN: vLLM is not installed")
