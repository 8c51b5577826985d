#!/usr/bin/env python3
"""A minute of the load of load.py; bench/serve_load.py runs it for ten."""
import random
import unittest

import api
import load


class Load(unittest.TestCase):
    def test_clients_equal_solo(self):
        seed = random.randrange(1 << 30)
        print("seed", seed)
        run = load.Load(seed, 20 if api.QUICK else 64)
        run.learn()
        run.run(15 if api.QUICK else 60, 2)
        print(f"{run.n_answers} answers, {run.n_left} hung up, {run.preempted:.0f} preemptions, {run.drafted:.0f} draft tokens, "
              f"{run.cached:.0f} cached tokens, memory {run.samples[0][1]} to {run.samples[-1][1]} KiB, heap of the idle server {run.heap_growth_kib:+.0f} KiB")
        self.assertEqual(run.wrong, [], f"seed {seed}")
        self.assertEqual(run.errors, 0)
        self.assertGreater(run.drafted, 0)
        if not api.QUICK:  # sanitizers are too slow to get there, and keep freed memory
            self.assertGreater(run.aborted, 0)
            self.assertGreater(run.preempted, 0)
            self.assertGreater(run.cached, 0)
            self.assertLess(run.growth_kib(), 16384)
            self.assertLess(run.heap_growth_kib, 1024)


if __name__ == "__main__":
    api.main()
