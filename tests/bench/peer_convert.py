#!/usr/bin/env python3
"""Converts a checkpoint without a tokenizer to GGUF by llama.cpp's own converter, for compare_llama.py.

    peer_convert.py LLAMA_CPP MODEL --outfile MODEL.gguf --outtype q8_0    # LLAMA_CPP: its source folder

The rest of the command line is that of LLAMA_CPP/convert_hf_to_gguf.py. Its class for DeepSeek wants a tokenizer, which
models of random weights have not, and llama-server loads no file without one: bytes and names of ids are put in its
place, and nothing else is changed. llama.cpp and ik_llama.cpp load such files and answer token ids with token ids. Needs
what the converter needs: torch, transformers, numpy, and gguf or the copy of it in LLAMA_CPP.
"""

import runpy
import sys
from pathlib import Path


def set_vocab(model):
    """SentencePiece's kind, whose first tokens are the bytes."""
    from gguf import TokenType
    count = model.hparams["vocab_size"]
    tokens = ["<0x%02X>" % i if i < 256 else "id%d" % i for i in range(count)]
    model.gguf_writer.add_tokenizer_model("llama")
    model.gguf_writer.add_token_list(tokens)
    model.gguf_writer.add_token_scores([0.0] * count)
    model.gguf_writer.add_token_types([TokenType.BYTE if i < 256 else TokenType.NORMAL for i in range(count)])


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder = Path(sys.argv.pop(1)).resolve()
    if not (folder / "convert_hf_to_gguf.py").exists():
        sys.exit("%s: no convert_hf_to_gguf.py there: name the source folder of llama.cpp" % folder)
    sys.path[:0] = [str(folder), str(folder / "gguf-py")]
    from conversion.deepseek import DeepseekV2Model
    DeepseekV2Model.set_vocab = set_vocab
    sys.argv[0] = str(folder / "convert_hf_to_gguf.py")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
