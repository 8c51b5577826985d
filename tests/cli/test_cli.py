#!/usr/bin/env python3
"""The program from outside: golden answers, equality under every option that must not matter, refusals."""
import json
import os
import tempfile
import unittest

import cli
from cli import floats, model, refused, run

# Prompt and answers of golden model A (text model 7.1, 7.3), given as in its definition.
MASK = (1 << 64) - 1


def golden_prompt(vocab, n=80):
    h = 0xCBF29CE484222325
    for b in b"prompt":
        h = ((h ^ b) * 0x100000001B3) & MASK
    ids = []
    for i in range(1, n + 1):
        z = (h + i * 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        ids.append((z ^ z >> 31) % vocab)
    return ids


GREEDY = {"A": [226, 237, 77, 105, 65, 284, 217, 57, 61, 77, 227, 288, 195, 195, 231, 127],
          "B": [376, 358, 191, 28, 70, 22, 346, 264, 212, 340, 249, 257, 102, 368, 319, 232]}
LOGITS = {"A": {0: [-1.448694, 0.114559, 4.313544, 3.265646], 79: [1.112265, 0.141947, -2.210398, -1.334069]},
          "B": {0: [0.662944, 0.782148, -3.414977, -0.063343], 79: [-0.463827, -1.039049, 2.839223, -1.980993]}}
VOCAB = {"A": 320, "B": 384}


def text_ids(ids):
    return ",".join(map(str, ids))


class Golden(unittest.TestCase):
    def test_prompt_is_the_published_one(self):
        self.assertEqual(golden_prompt(320)[:8], [237, 9, 264, 122, 94, 30, 40, 91])
        self.assertEqual(golden_prompt(384)[:8], [45, 73, 328, 186, 286, 158, 168, 155])

    def test_greedy(self):
        for name, want in GREEDY.items():
            out, _ = run("run", "-m", model(name), "--ids", text_ids(golden_prompt(VOCAB[name])), "-n", 16,
                         "--mode", "f32", "--output-ids")
            self.assertEqual(out.decode(), " ".join(map(str, want)) + "\n")

    def test_logits(self):
        for name, rows in LOGITS.items():
            ids, vocab = golden_prompt(VOCAB[name]), VOCAB[name]
            out, _ = run("logits", "-m", model(name), "--ids", text_ids(ids), "--mode", "f32", "-o", "-")
            self.assertEqual(len(out), 4 * 80 * vocab)
            got = floats(out)
            for t, want in rows.items():
                for i, x in enumerate(want):
                    self.assertLess(abs(got[t * vocab + i] - x), 1e-4 * 5, (name, t, i))


class SameAnswer(unittest.TestCase):
    def test_chunks_threads(self):
        ids = text_ids(golden_prompt(320))
        for mode in ("f32", "bf16"):
            want, _ = run("logits", "-m", model("A"), "--ids", ids, "--mode", mode, "-o", "-", "--threads", 1)
            got, _ = run("logits", "-m", model("A"), "--ids", ids, "--mode", mode, "-o", "-", "--threads", 2, "--fixed-threads")
            self.assertEqual(got, want, (mode, "fixed threads"))
            for chunk, threads in ((1, 1), (7, 2), (70, 3)):
                got, _ = run("logits", "-m", model("A"), "--ids", ids, "--mode", mode, "-o", "-", "--chunk", chunk,
                             "--threads", threads)
                self.assertEqual(got, want, (mode, chunk, threads))

    def test_sampling_is_seeded(self):
        args = ("run", "-m", model("A"), "--ids", "5,6,7", "-n", 12, "--output-ids", "--temperature", "0.9")
        one, _ = run(*args, "--seed", 1)
        self.assertEqual(run(*args, "--seed", 1, "--chunk", 1, "--threads", 2)[0], one)
        self.assertNotEqual(run(*args, "--seed", 2)[0], one)
        # The most probable token alone is the greedy answer.
        greedy, _ = run("run", "-m", model("A"), "--ids", "5,6,7", "-n", 12, "--output-ids")
        self.assertEqual(run(*args, "--top-k", 1)[0], greedy)
        self.assertEqual(run(*args, "--top-p", "1e-6")[0], greedy)

    def test_isa_from_option_and_environment(self):
        args = ("logits", "-m", model("A"), "--ids", "1,2,3", "-o", "-")
        want, _ = run(*args, "--isa", "ref")
        self.assertEqual(run(*args, env={"K3_ISA": "ref"})[0], want)
        self.assertEqual(run(*args, "--isa", "ref", env={"K3_ISA": "nonsense"})[0], want)


class Text(unittest.TestCase):
    """Prompts as text, on a model with the genuine tokenizer and random weights."""
    args = ("run", "-m", model("words"), "-n", 24)

    def ids_of(self, text):
        return run("tokenize", "-m", model("words"), stdin=text)[0].strip().replace(b" ", b",").decode()

    def test_text_is_the_ids_text(self):
        text = "Na\u00efve \u4f60\u597d: 1 + 1 ="
        for extra in ((), ("--temperature", "1.5", "--seed", 7)):
            out, _ = run(*self.args, "-p", text, *extra)
            ids, _ = run(*self.args, "--ids", self.ids_of(text.encode()), "--output-ids", *extra)
            self.assertEqual(len(ids.split()), 24)
            plain, _ = run("detokenize", "-m", model("words"), stdin=ids)
            # Special tokens are left out of the text; none was drawn, or the two would differ by their names.
            self.assertEqual(out, plain + b"\n")

    def test_prompt_file_and_stdin(self):
        want, _ = run(*self.args, "-p", "one two")
        with tempfile.NamedTemporaryFile() as f:
            f.write(b"one two")
            f.flush()
            self.assertEqual(run(*self.args, "--prompt-file", f.name)[0], want)
        self.assertEqual(run(*self.args, "--prompt-file", "-", stdin=b"one two")[0], want)
        refused(*self.args, "--prompt-file", "/nonexistent", word="/nonexistent")
        refused(*self.args, "--prompt-file", "-", word="empty")

    def test_special_names_are_text(self):
        self.assertNotEqual(run(*self.args, "-p", "<|end_of_msg|>")[0], run(*self.args, "--ids", "163586")[0])


class Info(unittest.TestCase):
    def test_json(self):
        out, err = run("info", "-m", model("A"), "--json", "--max-num-seqs", 3, "--max-model-len", 1000)
        self.assertEqual(err, b"")
        x = json.loads(out)
        self.assertEqual(x["config"]["kda_layers"], 6)
        self.assertEqual(x["config"]["mla_layers"], 3)
        self.assertEqual(x["tensors"]["count"], 1002)
        with open(model("A") + "/model.safetensors", "rb") as f:
            header_bytes = int.from_bytes(f.read(8), "little")
        self.assertEqual(x["tensors"]["bytes"], os.path.getsize(model("A") + "/model.safetensors") - 8 - header_bytes)
        self.assertEqual(x["plan"]["max_num_seqs"], 3)
        self.assertEqual(x["plan"]["max_model_len"], 1000)
        self.assertEqual(x["plan"]["blocks"], 1 + 3 * 16)

    def test_draft(self):
        out, _ = run("info", "-m", model("tiny"), "--draft", model("tiny-mla"), "--json")
        draft = json.loads(out)["draft"]
        self.assertEqual((draft["attention"], draft["taps"], draft["stream"], draft["causal"]),
                         ("mla", "0 1 2", "prefix", False))
        out, _ = run("info", "-m", model("one"), "--draft", model("tiny-gqa"))
        self.assertRegex(out.decode(), "attention +gqa")
        self.assertRegex(out.decode(), "trained width +7")  # as its configuration says; the other's says nothing
        self.assertNotIn("block_size", draft)
        refused("info", "-m", model("A"), "--draft", model("tiny-mla"), word="vocab_size")
        refused("info", "-m", model("A"), "--draft", "/nonexistent", word="/nonexistent")

    def test_text_has_the_same(self):
        out, _ = run("info", "-m", model("tiny"))
        for word in (b"vision tower", b"routed experts", b"Memory plan"):
            self.assertIn(word, out)


class Bench(unittest.TestCase):
    def test_json(self):
        """Shape and arithmetic of the report; no time is judged."""
        out, err = run("bench", "-m", model("A"), "--json", "--prefill", 9, "--decode", 3, "--rounds", 2, "--isa", "ref")
        self.assertEqual(err, b"")
        x = json.loads(out)
        self.assertEqual((x["isa"], x["rounds"]), ("ref", 2))
        self.assertEqual((x["prefill"]["tokens"], x["decode"]["tokens"]), (9, 3))
        # 3.80 MB of weights, 0.17 MB of state, 480 bytes for each of 11 tokens of context on average.
        self.assertEqual(x["decode"]["bytes_per_token"], 3799200 + 147456 + 20736 + 11 * 480)
        for part, share in (("prefill", "share_of_bf16_peak"), ("decode", "share_of_read_roof")):
            y = x[part]
            self.assertTrue(0 < y["share_min"] <= y[share] <= y["share_max"])
            self.assertGreater(y["tokens_per_s"], 0)
        # Speed, limit and share are of one slice of work.
        p, d = x["prefill"], x["decode"]
        self.assertAlmostEqual(p["gflop_per_s"] / p["peak_gflop_per_s"] / p["share_of_bf16_peak"], 1, 2)
        self.assertAlmostEqual(d["gb_per_s"] / d["read_roof_gb_per_s"] / d["share_of_read_roof"], 1, 2)

    def test_text(self):
        out, _ = run("bench", "-m", model("A"), "--prefill", 2, "--decode", 1, "--rounds", 1)
        self.assertIn(b"share of the roof", out)
        self.assertIn(b"share of the peak", out)


class Tokenizer(unittest.TestCase):
    tok = os.path.join(cli.DATA, "tokenizer")

    def test_round_trip(self):
        for text in ("Hello, 123 world\n", "\u4f60\u597d \U0001f600 e\u0301", " a\tb\r\n\r\n", ""):
            ids, _ = run("tokenize", "-m", self.tok, stdin=text.encode())
            self.assertEqual(run("detokenize", "-m", self.tok, stdin=ids)[0].decode(), text)

    def test_specials(self):
        text = b"<|end_of_msg|>"
        plain, _ = run("tokenize", "-m", self.tok, stdin=text)
        special, _ = run("tokenize", "-m", self.tok, "--special", stdin=text)
        self.assertGreater(len(plain.split()), 1)
        self.assertEqual(special, b"163586\n")

    def test_bad_ids(self):
        refused("detokenize", "-m", self.tok, stdin=b"1 2 x", word="'x'")
        refused("detokenize", "-m", self.tok, stdin=b"-4", word="'-4'")
        refused("detokenize", "-m", self.tok, stdin=b"99999999999", word="token id")
        refused("detokenize", "-m", self.tok, stdin=b"163840", word="163840")
        refused("tokenize", model("A"), word="tiktoken.model")


class Names(unittest.TestCase):
    def test_underscores(self):
        """Between the words of an option's name - and _ are the same, as for vLLM; both at once are one given twice."""
        a = model("A")
        dashes, _ = run("info", a, "--max-model-len", 8, "--max-num-seqs", 3, "--json")
        other, _ = run("info", a, "--max_model_len", 8, "--max_num-seqs=3", "--json")
        self.assertEqual(dashes, other)
        refused("info", a, "--max_model_len", 8, "--max-model-len", 8, word="--max-model-len is given twice")
        refused("info", a, "--max_model_len", "x", word="--max-model-len is 'x'")
        for name in ("--max__model_len", "--_max_model_len", "--max_model_le", "--max_model_len_"):
            refused("info", a, name, 8, word=f"unknown option '{name}'")

    def test_units(self):
        """1k is 1,000 and 1K 1,024, as for vLLM."""
        a = model("A")
        for text, n in (("1k", 1000), ("1K", 1024), ("4K", 4096)):
            self.assertEqual(run("info", a, "--max-num-seqs", text, "--json"), run("info", a, "--max-num-seqs", n, "--json"))
        self.assertNotEqual(run("info", a, "--max-num-seqs", 1000, "--json"), run("info", a, "--max-num-seqs", 1024, "--json"))
        for text in ("5k", "1m", "k", "1kk", "1 k", "1x", "0k", "-1k", "9223372036854775807k", "18014398509481985K", "1.5k"):
            refused("info", a, "--max-num-seqs", text, word="a whole number from 1 to 4096")
        refused("serve", a, "--kv-cache-memory-bytes", "9007199254740993K", word="a whole number from 1")


class Refusals(unittest.TestCase):
    def test_options(self):
        a = model("A")
        refused(word="name a command")
        refused("frobnicate", word="frobnicate")
        refused("help", "frobnicate", word="frobnicate")
        refused("info", word="k3 info DIR")
        refused("encode-image", "x.png", word="--model")
        refused("info", "-m", a, "extra", word="extra")
        refused("info", "-m", a, "--jsno", word="--jsno")
        # What somebody typed stays as it is, also where it is the engine's word for an option.
        refused("info", "-m", a, "--max_modle_len", 3, word="unknown option '--max_modle_len'")
        refused("info", "-m", a, "max_model_len", word="unexpected 'max_model_len'")
        refused("run", "-m", a, "--ids", "max_tokens", "--output-ids", word="'max_tokens' is not a token id")
        refused("info", "-m", a, "--json=1", word="--json")
        refused("info", "-m", a, "-m", a, word="twice")
        refused("serve", a, "-m", a, word="twice")
        refused("--jsno", word="unknown option '--jsno'")
        refused("info", "-m", word="needs a value")
        refused("info", "-m", "", word="empty")
        refused("info", "-m", a, "--max-num-seqs", 0, word="a whole number from 1 to 4096")
        refused("run", "-m", a, word="exactly one")
        refused("run", "-m", a, "--ids", "1", "-p", "x", word="exactly one")
        refused("run", "-m", a, "--ids", "1,,x", "--output-ids", word="'x'")
        refused("run", "-m", a, "--ids", ",", "--output-ids", word="no token")
        refused("run", "-m", a, "--ids", "320", "--output-ids", word="320")
        refused("run", "-m", a, "--ids", "1", word="tiktoken.model")
        refused("run", "-m", a, "--ids", "1", "--output-ids", "--seed", 4, word="--seed has no effect without a --temperature above 0")
        refused("run", "-m", a, "--ids", "1", "--output-ids", "--mode", "fp8", word="expected bf16 or f32")
        refused("run", "-m", a, "--ids", "1", "--output-ids", "--mode", "bf", word="expected bf16 or f32")
        refused("run", "-m", a, "--ids", "1", "--output-ids", "--temperature", "nan", word="a number from 0 to 100")
        refused("run", "-m", a, "--ids", "1", "--output-ids", "-n", "2x", word="max-tokens")
        refused("run", "-m", a, "--ids", "1", "--output-ids", "-n", "2147483647", word="--max-tokens 2147483647")
        refused("run", "-m", a, "--ids", "1", "--output-ids", "--isa", "amx", word="ref")
        refused("run", "-m", a, "--ids", "1", "--output-ids", "--isa", "", word="--isa is ''")
        refused("run", "-m", a, "--ids", "1", "--output-ids", env={"K3_ISA": "sse9"}, word="k3 run: K3_ISA: unknown name 'sse9'")
        refused("info", "-m", a, "--max-model-len", 2000000000, word="k3 info: --max-model-len is 2000000000, the model takes")
        refused("run", "-m", a, "--prompt-file", "/nonexistent", word="tiktoken.model")
        refused("logits", "-m", a, "--ids", "1", "-o", "/nonexistent/x", word="/nonexistent/x")
        refused("logits", "-m", a, "--ids", "1", "-o", "/dev/full", word="/dev/full")
        refused("logits", "-m", a, "--ids", "1", "--threads", "-1", "-o", "-", word="threads")

    def test_longer_than_the_model_takes(self):
        """Told in words of the command, which may have no option for it."""
        with tempfile.TemporaryDirectory() as d:
            os.symlink(os.path.join(model("A"), "model.safetensors"), os.path.join(d, "model.safetensors"))
            with open(os.path.join(model("A"), "config.json")) as f:
                text = f.read()
            self.assertEqual(text.count('"max_position_embeddings": 1048576'), 1)
            with open(os.path.join(d, "config.json"), "w") as f:
                f.write(text.replace('"max_position_embeddings": 1048576', '"max_position_embeddings": 8'))
            refused("bench", d, "--prefill", 8, "--decode", 1, word="the number of tokens is 9, the model takes at most 8")
            refused("logits", d, "--ids", "1,1,1,1,1,1,1,1,1", "-o", "-", word="the number of tokens is 9,")
            refused("info", d, "--max-model-len", 9, word="--max-model-len is 9,")
            refused("run", d, "--ids", "1", "-n", 8, "--output-ids", word="1 tokens of prompt and --max-tokens 8 are more than the 8")

    def test_full_disk(self):
        a = model("A")
        for args in (("help",), ("help", "run"), ("run", "-h"), ("--version",), ("info", a), ("info", a, "--json"),
                     ("run", a, "--ids", "1", "--output-ids"), ("logits", a, "--ids", "1", "-o", "-")):
            cli.unwritable(*args)
        cli.unwritable("tokenize", Tokenizer.tok, stdin=b"x")
        cli.unwritable("detokenize", Tokenizer.tok, stdin=b"5")

    def test_environment(self):
        refused("info", "-m", model("A"), env={"K3_ISSA": "ref"}, word="K3_ISSA")

    def test_missing_and_damaged(self):
        with tempfile.TemporaryDirectory() as empty:
            for command in (("info",), ("run", "-p", "x"), ("chat", "--once", "x"), ("serve",), ("bench",),
                            ("logits", "--ids", "1", "-o", "-"), ("tokenize",), ("detokenize",),
                            ("encode-image", "x.png", "--info")):
                file = "tiktoken.model" if "tokenize" in command[0] else "config.json"
                refused(command[0], "-m", "/nonexistent/model", *command[1:], word="/nonexistent/model: no such folder")
                refused(command[0], "-m", cli.K3, *command[1:], word=f"{cli.K3}: not a folder")
                refused(command[0], "-m", empty, *command[1:], word=f"no {file} in {empty}")
            refused("info", model("tiny"), "--draft", empty, word=f"{empty}/config.json: no such file")
        with tempfile.TemporaryDirectory() as d:
            for name in os.listdir(model("A")):
                with open(os.path.join(model("A"), name), "rb") as f, open(os.path.join(d, name), "wb") as g:
                    blob = f.read()
                    g.write(blob[:-5] if name.endswith(".safetensors") else blob)
            for command in (("info",), ("run", "--ids", "1", "--output-ids"), ("logits", "--ids", "1", "-o", "-")):
                refused(command[0], "-m", d, *command[1:], word="model.safetensors")


class Help(unittest.TestCase):
    def test_every_command_is_explained(self):
        out, _ = run("help")
        commands = [line.split()[0] for line in out.decode().splitlines()
                    if line.startswith("  ") and not line.startswith("  K3_")]
        self.assertIn("run", commands)
        for command in commands:
            self.assertTrue(os.path.exists(os.path.join(cli.SOURCE, "docs", "man", f"k3-{command}.scd.in")), command)
            text, _ = run("help", command)
            self.assertTrue(text.startswith(f"k3 {command} - ".encode()))
            for words in (("-h",), ("--help",), ("-m", "/nonexistent", "--help"), ("--bogus", "-h"), ("x", "y", "-h")):
                self.assertEqual(run(command, *words)[0], text, words)
            self.assertEqual(run("--help", command)[0], text)
            for line in text.decode().splitlines():
                self.assertTrue(len(line) <= 80 or " " not in line.strip() or line.startswith("Usage"), line)
                self.assertEqual(line, line.rstrip())

    def test_help_is_no_help_where_a_value_stands(self):
        refused("run", "-p", "--help", word="k3 run DIR")

    def test_help_lists_what_can_be_given(self):
        text = " ".join(run("help", "run")[0].decode().split())
        self.assertIn("(apply or ignore; default apply)", text)
        isa = text.split("(here: ")[1].split(")")[0].replace(" or ", ", ").split(", ")
        for name in isa:
            run("logits", model("A"), "--ids", "1", "-o", "-", "--isa", name)
        self.assertIn("standard input", run("help", "tokenize")[0].decode())
        self.assertIn("standard input", run("help", "detokenize")[0].decode())

    def test_bare_folder(self):
        for command in (("info",), ("logits", "--ids", "1,2", "-o", "-")):
            self.assertEqual(run(command[0], model("A"), *command[1:])[0], run(*command, "-m", model("A"))[0])

    def test_version(self):
        self.assertRegex(run("--version")[0].decode(), r"^k3 \d+\.\d+\.\d+ \(ABI \d+\)\n$")

    def test_progress_on_a_terminal(self):
        out, shown = cli.on_terminal("run", "-m", model("A"), "--ids", text_ids(golden_prompt(320)), "-n", 1,
                                     "--mode", "f32", "--output-ids", "--chunk", 8)
        self.assertEqual(out, b"226\n")
        self.assertIn("loading", shown)
        self.assertIn("reading the prompt [", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), repr(shown[-20:]))

    def test_nothing_on_stderr_when_piped(self):
        self.assertEqual(run("run", "-m", model("A"), "--ids", text_ids(golden_prompt(320)), "-n", 2, "--output-ids",
                             "--chunk", 8)[1], b"")


if __name__ == "__main__":
    cli.main()
