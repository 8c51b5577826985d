"""The package without vLLM, and the ctypes binding against the header.

    python3 tests/vllm/test_package.py          needs numpy and a C compiler
"""

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
if importlib.util.find_spec("k3_vllm") is None:
    sys.path.insert(0, str(REPO / "plugin" / "vllm"))

from k3_vllm import lib  # noqa: E402

STRUCTS = {
    "k3_info": lib.Info,
    "k3_kv_config": lib.KvConfig,
    "k3_kv_layout": lib.KvLayout,
    "k3_batch": lib.Batch,
    "k3_commit_args": lib.CommitArgs,
    "k3_draft_args": lib.DraftArgs,
    "k3_image": lib.Image,
    "k3_stats_t": lib.Stats,
}


class Package(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_importing_the_package_imports_nothing_of_vllm(self):
        code = "import k3_vllm, sys; assert not [m for m in sys.modules if m.split('.')[0] in ('vllm', 'torch')]"
        path = str(Path(lib.__file__).parents[1])
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})

    def test_structs_have_the_layout_of_the_header(self):
        """A C program prints size and offsets of every struct; ctypes must agree."""
        lines = []
        for c_name, cls in STRUCTS.items():
            lines.append(f'printf("{c_name} %zu", sizeof({c_name}));')
            lines += [f'printf(" %zu", offsetof({c_name}, {field}));' for field, _ in cls._fields_]
            lines.append('printf("\\n");')
        source, program = self.folder / "layout.c", self.folder / "layout"
        source.write_text(
            "#include <k3/k3.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{\n%s\nreturn 0;\n}\n"
            % "\n".join(lines)
        )
        subprocess.run(["cc", "-I", str(REPO / "include"), "-o", program, source], check=True)
        output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        for line in output.splitlines():
            c_name, size, *offsets = line.split()
            cls = STRUCTS[c_name]
            self.assertEqual(ctypes.sizeof(cls), int(size), c_name)
            self.assertEqual([getattr(cls, field).offset for field, _ in cls._fields_], [int(o) for o in offsets], c_name)

    def test_no_struct_or_constant_of_the_header_is_missing(self):
        header = (REPO / "include/k3/k3.h").read_text()
        self.assertEqual(set(re.findall(r"^\} (k3_\w+);", header, re.M)), set(STRUCTS))
        self.assertEqual(int(re.search(r"K3_ABI_VERSION (\d+)", header)[1]), lib.ABI_VERSION)
        for c_name, cls in STRUCTS.items():
            body = re.search(r"typedef struct \{((?:(?!typedef).)*?)\n\} %s;" % c_name, header, re.S)[1]
            body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
            names = re.findall(r"[\s*](\w+)(?:\[\d+\])?(?=\s*[,;])", body)
            self.assertEqual(names, [name for name, _ in cls._fields_], c_name)

    def test_missing_library_is_one_clear_sentence(self):
        with self.assertRaisesRegex(lib.K3Error, "libk3 cannot be loaded from /nonexistent/libk3.so"):
            lib.load("/nonexistent/libk3.so")

    def test_other_abi_version_is_refused(self):
        with self.assertRaisesRegex(lib.K3Error, "ABI version 99, this k3-vllm needs 1"):
            lib.load(old_library(self.folder))

    def test_sources_stay_small(self):
        sizes = {p.name: len(p.read_text().splitlines()) for p in Path(lib.__file__).parent.glob("*.py")}
        self.assertLess(max(sizes.values()), 500, sizes)


def old_library(folder: Path) -> str:
    """A library whose ABI version is 99."""
    source, path = folder / "old.c", folder / "libk3.so"
    source.write_text("int k3_abi_version(void) { return 99; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    return str(path)


if __name__ == "__main__":
    unittest.main()
