"""Puts an exported target and draft into the repository's layout.

    python assemble.py DATA_DIR WORK_DIR MODELS_DIR

WORK_DIR/target and WORK_DIR/draft hold at least the .safetensors files; configs, index and tokenizer
are written anew. Result: MODELS_DIR/mini and MODELS_DIR/mini-dspark.
"""
import glob, os, shutil, sys
import config, export


def main(data, work, models):
    out, draft = os.path.join(models, "mini"), os.path.join(models, "mini-dspark")
    for d in (out, draft):
        os.makedirs(d, exist_ok=True)
        for f in glob.glob(d + "/*.safetensors"):
            os.remove(f)
    index, total = {}, 0
    for path in sorted(glob.glob(f"{work}/target/*.safetensors")):
        shutil.copy(path, out)
        for name, t in export.read_safetensors(path):
            index[name] = os.path.basename(path)
            total += t.numel() * t.element_size()
    export.dump({"metadata": {"total_size": total}, "weight_map": index},
                f"{out}/model.safetensors.index.json")
    export.dump(config.target(), f"{out}/config.json")
    export.dump(config.PREPROCESSOR, f"{out}/preprocessor_config.json")
    for f in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copy(os.path.join(data, f), out)
    shutil.copy(f"{work}/draft/model.safetensors", draft)
    export.dump(config.draft(), f"{draft}/config.json")


if __name__ == "__main__":
    main(*sys.argv[1:4])
