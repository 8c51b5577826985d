"""The bundled model's tokenizer: byte-level BPE over K3's pre-tokeniser pieces, K3's special names.

`train` builds the ranks from a word count; `Tokenizer` encodes by K3's own rule (spec: the adjacent
pair whose concatenation has the lowest rank merges first). Digits never merge, so that numbers are
sequences of single-digit tokens, which is what makes column arithmetic learnable for a small model.
"""
import base64, collections, functools, json
import regex

HAN = r"[\p{Script=Han}]"
PATTERN = regex.compile("|".join([
    r"[\p{Script=Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Script=Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Script=Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Script=Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Script=Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
]), regex.V1)

N_RANKS, N_SPECIAL = 2816, 256
VOCAB = N_RANKS + N_SPECIAL
# K3's sixteen names by offset from the first special id (163584 in the release)
NAMES = {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>",
         6: "[start_header_id]", 7: "[end_header_id]", 9: "[EOT]", 18: "<|media_begin|>",
         19: "<|media_content|>", 20: "<|media_end|>", 21: "<|media_pad|>", 65: "<osagent_mode>",
         254: "[UNK]", 255: "[PAD]"}
NOT_SPECIAL_FLAG = (3, 4, 5)        # the structural markers carry special=false in the release
BOS, EOS, EOM, OPEN, CLOSE, SEP = (N_RANKS + i for i in range(6))
MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END, MEDIA_PAD = (N_RANKS + i for i in (18, 19, 20, 21))
MASK, PAD = N_RANKS + 253, N_RANKS + 255


def byte_order():
    """Bytes in the order of ranks 0..255: the printable ones first, as in the published file."""
    first = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    return first + [b for b in range(256) if b not in first]


def train(counts, n_ranks=N_RANKS):
    """counts: {piece: frequency}. Returns the list of token bytes by rank."""
    tokens = [bytes([b]) for b in byte_order()]
    words = [([bytes([b]) for b in w.encode()], n) for w, n in counts.items()
             if not any(c.isnumeric() for c in w)]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (parts, n) in enumerate(words):
        for p in zip(parts, parts[1:]):
            pairs[p] += n
            where[p].add(i)
    known = set(tokens)
    while len(tokens) < n_ranks:
        best = max(pairs.items(), key=lambda kv: (kv[1], kv[0]))[0]
        joined = best[0] + best[1]
        if joined not in known:
            known.add(joined)
            tokens.append(joined)
        for i in list(where.pop(best)):
            parts, n = words[i]
            for p in zip(parts, parts[1:]):
                pairs[p] -= n
                if pairs[p] <= 0:
                    del pairs[p]
            j, new = 0, []
            while j < len(parts):
                if j + 1 < len(parts) and (parts[j], parts[j + 1]) == best:
                    new.append(joined)
                    j += 2
                else:
                    new.append(parts[j])
                    j += 1
            parts[:] = new
            for p in zip(parts, parts[1:]):
                pairs[p] += n
                where[p].add(i)
        pairs.pop(best, None)
    return tokens


class Tokenizer:
    def __init__(self, path):
        self.bytes = []
        for line in open(path):
            b64, rank = line.split()
            assert int(rank) == len(self.bytes)
            self.bytes.append(base64.b64decode(b64))
        self.rank = {b: i for i, b in enumerate(self.bytes)}
        self.encode_piece = functools.lru_cache(200_000)(self._encode_piece)

    def _encode_piece(self, piece):
        raw = piece.encode()
        if raw in self.rank:
            return (self.rank[raw],)
        parts = [bytes([b]) for b in raw]
        while len(parts) > 1:
            ranks = [self.rank.get(a + b, 1 << 30) for a, b in zip(parts, parts[1:])]
            low = min(ranks)
            if low == 1 << 30:
                break
            i = ranks.index(low)
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        return tuple(self.rank[p] for p in parts)

    def encode(self, text):
        """Ordinary text: special names in it stay ordinary characters."""
        out = []
        for m in PATTERN.finditer(text):
            out.extend(self.encode_piece(m.group()))
        return out

    def name(self, i):
        return NAMES.get(i - N_RANKS, f"<|reserved_token_{i}|>")

    def decode(self, ids):
        return b"".join(self.bytes[i] if i < N_RANKS else self.name(i).encode()
                        for i in ids).decode("utf-8", "replace")


def save(tokens, path):
    with open(path, "w") as f:
        for i, t in enumerate(tokens):
            f.write(f"{base64.b64encode(t).decode()} {i}\n")


def config():
    """tokenizer_config.json in the published form."""
    flags = dict(lstrip=False, normalized=False, rstrip=False, single_word=False)
    return {
        "additional_special_tokens": [n for i, n in NAMES.items() if 2 <= i < 254
                                      and i not in NOT_SPECIAL_FLAG],
        "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]",
        "clean_up_tokenization_spaces": False, "tokenizer_class": "TikTokenTokenizer",
        "model_max_length": 1048576,
        "added_tokens_decoder": {str(N_RANKS + i): {"content": n, **flags,
                                                    "special": i not in NOT_SPECIAL_FLAG}
                                 for i, n in NAMES.items()},
    }


def dump_config(path):
    with open(path, "w") as f:
        json.dump(config(), f, indent=1)
        f.write("\n")
