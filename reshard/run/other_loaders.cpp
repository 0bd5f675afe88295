#include "reshard/run/other_loaders.h"

namespace dspack::reshard {

using format::NameAuthor;

std::optional<std::string_view> unreadable_reason(const format::Manifest& manifest) {
  if (has_requirement(manifest, format::kZstdKey)) return "its weight files are compressed (zstd)";
  if (has_requirement(manifest, format::kFusedExpertsKey)) {
    return "the source keeps the experts of a layer in one tensor, here each expert has a tensor of its own, its "
           "slice, and other programs do not know the names of slices";
  }
  return std::nullopt;
}

NameAuthor name_author(const format::Manifest& manifest) {
  for (const format::PackedFile& file : manifest.files) {
    for (const format::LayoutTensor& tensor : manifest.layouts[file.layout].tensors) {
      if (const auto author = format::name_author(tensor_name(file, tensor))) return *author;
    }
  }
  return NameAuthor::transformers;
}

std::string_view readers_of_names(NameAuthor author) {
  switch (author) {
    case NameAuthor::transformers: return {};
    case NameAuthor::deepseek:
      return "The tensors have the names of DeepSeek's own code (`ffn.experts.E.w1`). transformers (seen in 5.23), "
             "vLLM (0.33) and SGLang (0.5.23) know them in models of the type `deepseek_v4` alone: `model_type` in "
             "`config.json`.";
    case NameAuthor::mistral:
      return "The tensors have Mistral's own names (`experts.E.w1`). transformers (seen in 5.23) knows them in models "
             "of the type `mistral_large4` alone: `model_type` in `config.json`. vLLM (0.33) and SGLang (0.5.23) look "
             "for them in files named `consolidated*.safetensors`, with `--load-format mistral`.";
  }
  return {};
}

}  // namespace dspack::reshard
