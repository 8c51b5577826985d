"""What the black-box tests of the program share: running it, and where the synthetic checkpoints lie."""
import os
import struct
import subprocess
import sys
import tempfile
import unittest

K3 = os.environ.pop("TEST_K3_PROGRAM")
MODELS = os.environ.pop("TEST_K3_MODELS")
SOURCE = os.environ.pop("TEST_K3_SOURCE")
DATA = os.path.join(SOURCE, "tests", "data")
# Seconds; for commands that hang, which are then named. A busy machine must not turn a test red, so it is little less
# than the limit of the whole test (CMakeLists.txt), which no slow command outlasts either.
LIMIT = 1500


def run(*args, stdin=b"", env=None, ok=True):
    """(stdout, stderr) as bytes of `k3 args`; fails the test on another exit code than expected."""
    full = {k: v for k, v in os.environ.items() if not k.startswith("K3_")}
    full.update(env or {})
    p = subprocess.run([K3, *map(str, args)], input=stdin, capture_output=True, env=full, timeout=LIMIT)
    if ok and p.returncode != 0:
        raise AssertionError(f"k3 {' '.join(map(str, args))}: exit {p.returncode}: {p.stderr.decode()}")
    if not ok and p.returncode not in (1, 2):
        raise AssertionError(f"k3 {' '.join(map(str, args))}: exit {p.returncode}, 1 or 2 expected")
    return p.stdout, p.stderr


def unwritable(*args, stdin=b""):
    """Standard output is full: the call fails and says so."""
    with open("/dev/full", "wb") as full:
        p = subprocess.run([K3, *map(str, args)], input=stdin, stdout=full, stderr=subprocess.PIPE, timeout=LIMIT)
    if p.returncode != 1 or b"cannot be written" not in p.stderr:
        raise AssertionError(f"k3 {' '.join(map(str, args))}: exit {p.returncode}: {p.stderr.decode()}")


def refused(*args, word, **kw):
    """The call fails, prints nothing but one line on stderr, and names `word`."""
    out, err = run(*args, ok=False, **kw)
    if out != b"" or err.count(b"\n") != 1 or word.encode() not in err:
        raise AssertionError(f"k3 {' '.join(map(str, args))}: stdout {out!r}, stderr {err!r}, expected '{word}'")


def on_terminal(*args):
    """(stdout as bytes, what a terminal at stderr was sent as text) of `k3 args`."""
    master, slave = os.openpty()
    shown = b""
    with tempfile.TemporaryFile() as out:
        p = subprocess.Popen([K3, *map(str, args)], stdout=out, stderr=slave)
        os.close(slave)
        try:
            while part := os.read(master, 1 << 16):  # a terminal hands out what it has, in pieces
                shown += part
        except OSError:  # EIO: the other end is closed and all is read
            pass
        os.close(master)
        if p.wait(timeout=LIMIT) != 0:
            raise AssertionError(f"k3 {' '.join(map(str, args))}: exit {p.returncode}: {shown.decode()}")
        out.seek(0)
        return out.read(), shown.decode()


def model(name):
    return os.path.join(MODELS, name)


def floats(blob):
    return struct.unpack(f"<{len(blob) // 4}f", blob)


def main():
    unittest.main(argv=[sys.argv[0]])
