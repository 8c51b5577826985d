"""k3_vllm.memory on files laid out as a kernel does, and on this machine. Needs no vLLM."""

import importlib.util
import sys
import tempfile
import unittest
from pathlib import Path

if importlib.util.find_spec("k3_vllm") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugin" / "vllm"))

from k3_vllm import memory  # noqa: E402

GIB = 1 << 30


class Memory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        self.put("proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 4194304 kB\nMemAvailable: 46137344 kB\n")

    def put(self, name, text):
        path = Path(self.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def expect(self, available):
        self.assertEqual(memory.used_and_available(self.root), (20 * GIB, available))

    def test_machine(self):
        self.expect(44 * GIB)
        used, available = memory.used_and_available()
        self.assertGreater(used, 0)
        self.assertGreaterEqual(available, 0)

    def test_version_2(self):
        self.put("proc/self/cgroup", "0::/a/b\n")
        self.put("sys/fs/cgroup/a/b/memory.max", f"{8 * GIB}\n")
        self.put("sys/fs/cgroup/a/b/memory.current", f"{6 * GIB}\n")
        self.put("sys/fs/cgroup/a/b/memory.stat", f"file {9 * GIB}\ninactive_file {GIB}\nactive_file {2 * GIB}\n")
        self.expect(5 * GIB)
        self.put("sys/fs/cgroup/a/b/memory.max", "max\n")
        self.expect(44 * GIB)
        self.put("sys/fs/cgroup/memory.max", f"{2 * GIB}\n")  # the group above, or the container's own
        self.put("sys/fs/cgroup/memory.current", f"{GIB}\n")
        self.expect(GIB)
        self.put("sys/fs/cgroup/memory.current", f"{3 * GIB}\n")  # the limit was lowered
        self.expect(0)
        self.put("proc/self/cgroup", "nonsense\n")
        self.expect(44 * GIB)

    def test_version_1(self):
        self.put("proc/self/cgroup", "5:cpu,cpuacct:/n\n4:hugetlb,memory:/m\n0::/\n")
        self.put("sys/fs/cgroup/memory/m/memory.limit_in_bytes", f"{4 * GIB}\n")
        self.put("sys/fs/cgroup/memory/m/memory.usage_in_bytes", f"{3 * GIB}\n")
        self.put("sys/fs/cgroup/memory/m/memory.stat", f"active_file 5\ntotal_active_file {GIB}\ntotal_inactive_file {GIB}\n")
        self.put("sys/fs/cgroup/memory/n/memory.limit_in_bytes", "1\n")
        self.put("sys/fs/cgroup/memory/n/memory.usage_in_bytes", "1\n")
        self.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")  # no limit
        self.put("sys/fs/cgroup/memory/memory.usage_in_bytes", f"{3 * GIB}\n")
        self.expect(3 * GIB)


if __name__ == "__main__":
    unittest.main()
