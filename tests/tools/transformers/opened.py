"""What transformers makes of places: folders, or repositories of the Hub that HF_ENDPOINT names.

    python opened.py [--tokens 0,5,17] [--new 8] PLACE[@REVISION] ...

Prints one JSON object a place and line: the `model`'s class; its `parameters` {name: [dtype, shape, SHA-256 of the bytes]};
the `missing`, `unexpected` and `mismatched` tensors of which from_pretrained speaks; `logits` [tokens, vocabulary] in FP32, as
numbers; the `greedy` continuation. Parameters are as from_pretrained makes them of the stored types. Those of a
checkpoint with block FP8 are dequantised in FP32 (tests/tools/tiny_v3/dequantise_patch.py says why that needs a patch).
"""

import argparse
import hashlib
import json
import logging
import pathlib
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tiny_v3"))
import dequantise_patch  # noqa: E402


def class_of(config):
    """What AutoModelForCausalLM takes; a model with pictures, which it does not know, has the class of its config."""
    known = transformers.AutoModelForCausalLM._model_mapping
    return transformers.AutoModelForCausalLM if type(config) in known else getattr(transformers, config.architectures[0])


def load(place, revision):
    """The model, and what from_pretrained tells of the loading."""
    config = transformers.AutoConfig.from_pretrained(place, revision=revision)
    options = {"revision": revision, "attn_implementation": "eager", "output_loading_info": True}
    if (getattr(config, "quantization_config", None) or {}).get("quant_method") == "fp8":
        dequantise_patch.apply()
        options.update(dtype=torch.float32,
                       quantization_config=transformers.FineGrainedFP8Config(dequantize=True))
    else:
        options["dtype"] = "auto"
    return class_of(config).from_pretrained(place, **options)


def described(tensor):
    raw = tensor.detach().contiguous().view(torch.uint8) if tensor.dim() else tensor.detach().reshape(1).view(torch.uint8)
    return [str(tensor.dtype), list(tensor.shape), hashlib.sha256(raw.numpy().tobytes()).hexdigest()]


def opened(place, tokens, new):
    place, _, revision = place.partition("@") if not pathlib.Path(place).is_dir() else (place, "", "")
    model, info = load(place, revision or "main")
    report = {"place": place, "model": type(model).__name__,
              "parameters": {name: described(tensor) for name, tensor in model.state_dict().items()},
              **{name: sorted(map(str, info[name + "_keys"])) for name in ("missing", "unexpected", "mismatched")}}
    model = model.float().eval()
    with torch.no_grad():
        ids = torch.tensor([tokens])
        report["logits"] = model(ids).logits[0].tolist()
        if new:
            found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
            report["greedy"] = found[0, len(tokens):].tolist()
    return report


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", default="3,4,5,6,7,8,9")
    parser.add_argument("--new", type=int, default=0)
    parser.add_argument("places", nargs="+")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    for place in arguments.places:
        tokens = [int(number) for number in arguments.tokens.split(",")]
        print(json.dumps(opened(place, tokens, arguments.new)), flush=True)


if __name__ == "__main__":
    main()
