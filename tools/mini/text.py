"""Plain English text from freely licensed Debian documentation packages.

    python text.py DEBS_DIR OUT.txt

reads the .deb files named in SOURCES below (fetched with `apt-get download`), keeps English prose
paragraphs, drops duplicates, and writes one paragraph per line with an empty line between blocks of
40 paragraphs. Licences were read in each package's /usr/share/doc/*/copyright.
"""
import gzip, hashlib, html.parser, os, re, subprocess, sys, tempfile
from multiprocessing import Pool

# package -> (path filter, licence of the text as its copyright file states it)
SOURCES = {
    "debian-handbook": ("/html/en-US/", "GPL-2.0+ or CC-BY-SA-3.0"),
    "debian-reference-en": (".html", "GPL-2+"),
    "debian-policy": (".html", "GPL-2+"),
    "developers-reference": (".html", "GPL-2"),
    "maint-guide": (".html", "GPL-2+"),
    "debian-kernel-handbook": (".html", "GPL-2+"),
    "harden-doc": (".html", "GPL-2.0"),
    "apt-doc": (".html", "GPL-2+"),
    "debian-history": (".html", "GPL-2+"),
    "git-doc": (".html", "GPL-2"),
    "perl-doc": (".pod", "GPL-1+ or Artistic"),
    "postgresql-doc-15": (".html", "PostgreSQL"),
    "python3.11-doc": (".html", "PSF-2.0"),
    "python-django-doc": (".html", "BSD-3-Clause"),
    "sqlite3-doc": (".html", "public domain"),
    "libreoffice-help-en-us": (".html", "MPL-2.0"),
    "apache2-doc": ("/manual/en/", "Apache-2.0"),
    "postfix-doc": (".html", "EPL-2.0 or IPL-1.0"),
    "jargon-text": ("jargon.txt", "public domain"),
}
MAX_BYTES = 5_000_000       # per package, so that no single manual dominates
BLOCK = 40                  # paragraphs; the unit that is held out
COMMON = re.compile(r"\b(the|of|and|to|is|in|that|for|are|be|this|with|you|it|as|can|or|by|on|an)\b")
ASCII = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-",
                       "\u2014": "-", "\u00a0": " ", "\u2026": "...", "\u00ad": "", "\u200b": "",
                       "\u2192": "->", "\u00b6": ""})


class Paragraphs(html.parser.HTMLParser):
    """Text of <p>, <li>, <dd> elements, without code blocks."""
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.out, self.buf, self.skip = [], [], 0

    def flush(self):
        if self.buf:
            self.out.append("".join(self.buf))
            self.buf = []

    def handle_starttag(self, tag, attrs):
        if tag in ("pre", "script", "style", "table", "nav"):
            self.flush()
            self.skip += 1
        elif tag in ("p", "li", "dd", "dt", "div", "h1", "h2", "h3", "h4", "td", "ul", "ol"):
            self.flush()

    def handle_endtag(self, tag):
        if tag in ("pre", "script", "style", "table", "nav"):
            self.skip = max(0, self.skip - 1)
        if tag in ("p", "li", "dd", "dt", "div", "h1", "h2", "h3", "h4", "body"):
            self.flush()

    def handle_data(self, data):
        if not self.skip:
            self.buf.append(data)


def pod(text):
    """Prose paragraphs of Perl's documentation markup."""
    for para in re.split(r"\n\s*\n", text):
        if para[:1] in ("=", " ", "\t"):
            continue
        for _ in range(3):
            para = re.sub(r"[BCFILSX]<+\s?((?:[^<>]|<(?![<])[^>]*>)*?)\s?>+",
                          lambda m: m.group(1).split("|")[0], para)
        yield para.replace("E<gt>", ">").replace("E<lt>", "<")


def prose(para):
    """The cleaned paragraph, or None if it is not an English sentence or two."""
    para = re.sub(r"\s+", " ", para.translate(ASCII)).strip()
    if not 80 <= len(para) <= 1500 or not para.isascii() or para[-1] not in ".!?:":
        return None
    letters = sum(c.isalpha() or c == " " for c in para)
    if letters < 0.88 * len(para) or len(COMMON.findall(para)) < max(3, len(para) // 45):
        return None
    return para if para[0].isupper() else None


def one_package(args):
    deb, name, root = args
    where, _ = SOURCES[name]
    folder = os.path.join(root, name)
    subprocess.run(["dpkg", "-x", deb, folder], check=True)
    files = sorted(os.path.join(d, f) for d, _, fs in os.walk(folder) for f in fs)
    seen, out, size = set(), [], 0
    for path in files:
        if where not in path or os.path.islink(path):
            continue
        data = gzip.open(path).read() if path.endswith(".gz") else open(path, "rb").read()
        text = data.decode("utf-8", "replace")
        if ".html" in path:
            parser = Paragraphs()
            parser.feed(text)
            paras = parser.out
        else:
            paras = pod(text) if path.endswith(".pod") else re.split(r"\n\s*\n", text)
        for para in map(prose, paras):
            if para is None:
                continue
            key = hashlib.sha1(re.sub(r"\d+", "0", para).encode()).digest()[:8]
            if key not in seen:
                seen.add(key)
                out.append(para)
                size += len(para)
        if size > MAX_BYTES:
            break
    return name, out


def main(debs, out_path):
    found = {f.split("_")[0]: os.path.join(debs, f) for f in os.listdir(debs) if f.endswith(".deb")}
    missing = [n for n in SOURCES if n not in found]
    if missing:
        sys.exit(f"missing packages in {debs}: apt-get download {' '.join(missing)}")
    seen, total = set(), 0
    with tempfile.TemporaryDirectory() as root, Pool(2) as pool, open(out_path, "w") as out:
        for name, paras in pool.imap(one_package, [(found[n], n, root) for n in SOURCES]):
            paras = [p for p in paras if p not in seen]
            seen.update(paras)
            for i in range(0, len(paras), BLOCK):
                out.write("\n".join(paras[i:i + BLOCK]) + "\n\n")
            size = sum(map(len, paras))
            total += size
            print(f"{name:26s} {SOURCES[name][1]:28s} {len(paras):7d} paragraphs {size / 1e6:6.2f} MB",
                  flush=True)
    print(f"total {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:3])
