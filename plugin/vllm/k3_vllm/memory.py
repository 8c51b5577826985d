"""How much memory this process may still take: what the machine has, or what its control groups (containers) leave.

The same as src/cli/memory.c of `k3 serve`; imports nothing of vLLM.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Folder, limit, usage, and the files that give way when memory is needed, in the words of control groups 2 and 1.
V2 = "sys/fs/cgroup", "memory.max", "memory.current", ("active_file", "inactive_file")
V1 = (
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _words(path: Path) -> dict[str, int]:
    """The lines `word number ...` of a file; {} without it."""
    lines = (line.split() for line in _text(path).splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _rooms(root: Path) -> Iterator[int]:
    """What each group that the process is in leaves, those above it included. A folder that is not there belongs to
    the part of the hierarchy that a container does not see."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(",") or not path.startswith("/"):
            continue
        mount, limit, usage, files = V1 if controllers else V2
        group = PurePosixPath(path)
        for at in (group, *group.parents):
            folder = root / mount / at.relative_to("/")
            allowed, taken = _text(folder / limit).strip(), _text(folder / usage).strip()
            if allowed.isdigit() and taken.isdigit():
                stat = _words(folder / "memory.stat")
                yield max(int(allowed) - int(taken), 0) + sum(stat.get(word, 0) for word in files)


def used_and_available(root: str = "/") -> tuple[int, int]:
    """Bytes used on the machine, and bytes that this process can have, files that give way included."""
    values = _words(Path(root) / "proc/meminfo")
    total, available = values["MemTotal:"] * 1024, values["MemAvailable:"] * 1024
    return total - available, min([available, *_rooms(Path(root))])
