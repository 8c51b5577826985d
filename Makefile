# Two commands do everything on a fresh Debian machine: `make demo` and `make test`.
.PHONY: demo test test-vllm build setup clean

build: setup
	cmake --preset release >/dev/null
	cmake --build build/release

setup:
	tools/setup.sh

demo: build
	tools/demo.sh

test: build
	tools/test.sh

test-vllm: setup
	tools/test-vllm.sh

clean:
	rm -rf build/release build/debug build/asan build/tsan build/fuzz build/clang build/test-logs
