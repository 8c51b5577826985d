#!/usr/bin/env bash
# Tests the vLLM plugin in a real vLLM: makes a virtual environment, installs the pinned vLLM without its GPU packages,
# builds and installs the wheel, runs tests/vllm. Where vLLM cannot be installed it says SKIPPED: nothing was tested then.
#
#   tools/test-vllm.sh [pytest arguments]
#
# BUILD (build/release) is the build folder, VENV (build/venv-vllm) the environment; both are kept for the next run.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build/release}
venv=${VENV:-build/venv-vllm}
version=0.33.0

# Packages of the vLLM wheel that only a GPU, audio or remote storage needs.
unused='torchaudio|torchcodec|PyNvVideoCodec|flashinfer-python|apache-tvm-ffi|tilelang|nvidia-[a-z-]*|nvtx|fastsafetensors|instanttensor|quack-kernels|tokenspeed-mla|humming-kernels'

install_vllm() {
    python3 -m venv "$venv"
    local wheels
    wheels=$(mktemp -d)
    "$venv/bin/pip" download -q --no-deps -d "$wheels" "vllm==$version" || return 1
    python3 - "$wheels" >"$wheels/all.txt" <<'PY'
import glob, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/vllm-*.whl")[0])
metadata = wheel.read(next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))).decode()
for line in metadata.split("\n\n")[0].splitlines():
    if line.startswith("Requires-Dist: ") and "extra ==" not in line:
        print(line.removeprefix("Requires-Dist: "))
PY
    grep -vE "^($unused)([^A-Za-z0-9-]|\$)" "$wheels/all.txt" >"$wheels/requirements.txt"
    "$venv/bin/pip" install -q -r "$wheels/requirements.txt" pytest || return 1
    "$venv/bin/pip" install -q --no-deps "$wheels"/vllm-*.whl || return 1
    rm -rf "$wheels"
}

start=$SECONDS
if ! "$venv/bin/python" -c "import importlib.metadata as m; assert m.version('vllm') == '$version'" 2>/dev/null; then
    rm -rf "$venv"
    if ! install_vllm; then
        rm -rf "$venv"
        echo "SKIPPED: no test of the plugin in vLLM was run, because vLLM $version cannot be installed here (see above)"
        exit 0
    fi
fi
echo "vLLM $version: $((SECONDS - start)) s, $(du -sh "$venv" | cut -f1)"

cmake --preset release -B "$build" >/dev/null
cmake --build "$build" --target k3 k3_program
cmake --install "$build" --component vllm --prefix plugin/vllm/k3_vllm >/dev/null
wheel=$(mktemp -d)
"$venv/bin/pip" wheel -q --no-deps -w "$wheel" plugin/vllm
"$venv/bin/pip" install -q --no-deps --force-reinstall "$wheel"/k3_vllm-*.whl
rm -rf "$wheel" plugin/vllm/build plugin/vllm/k3_vllm.egg-info

LIBK3_TEST_PROGRAM=$PWD/$build/bin/k3 exec "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/vllm "$@"
