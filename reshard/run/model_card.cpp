#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "reshard/run/card_fields.h"
#include "reshard/run/companions.h"
#include "reshard/run/other_loaders.h"

namespace dspack::reshard {

namespace {

constexpr size_t kListedShards = 300;  // V3 has 163; a longer list is left to the manifest

/// What the weight files are, in words.
std::string files_of(const Grouping& grouping, uint64_t experts) {
  constexpr char kDense[] = "Every layer has one file with what each token needs";
  switch (grouping.kind) {
    case Grouping::Kind::expert:
      if (grouping.experts_per_file == 1)
        return fmt::format("{} and one for each of its routed experts ({} in all)", kDense, experts);
      return fmt::format("{} and one for every {} of its routed experts ({} in all)", kDense, grouping.experts_per_file,
                         experts);
    case Grouping::Kind::layer: return fmt::format("{} and one for its routed experts ({} in all)", kDense, experts);
    case Grouping::Kind::shard:
      return fmt::format(
          "They lie in the model's order in files of up to {} bytes, and none of its {} routed experts is parted",
          grouping.shard_bytes, experts);
  }
  return {};
}

/// What the tensors are, compared with the source's.
std::string weights_of(const format::Manifest& manifest) {
  const format::Coverage& coverage = manifest.coverage;
  const std::string here =
      fmt::format("{} tensors, {} bytes in {} layers", coverage.tensors, coverage.payload_bytes, coverage.layers);
  if (holds_source_bytes(manifest)) return fmt::format("The weights are the source's, byte for byte: {}.\n", here);
  std::string text = fmt::format("The weights are what the recipe below makes of the source's: {}", here);
  if (const auto& of = coverage.of) text += fmt::format(", of its {} tensors in {} layers", of->tensors, of->layers);
  text += ".\n";
  if (!manifest.rounding_errors.is_null())
    text += "What rounding has cost is in the manifest's field `rounding_errors`.\n";
  return text;
}

/// What kind of files these are.
std::string form_of(const format::Manifest& manifest) {
  if (has_requirement(manifest, format::kZstdKey)) {
    return "The weight files are safetensors files in independent zstd frames, which dspack reads as they are; "
           "`zstd -d` makes\nordinary ones of them.";
  }
  if (unreadable_reason(manifest)) return "All weight files are ordinary safetensors files.";
  return fmt::format("All weight files are ordinary safetensors files, listed in `{}`.", format::kIndexPath);
}

std::string introduction(const format::Manifest& manifest, const Recipe& recipe, const std::string& name) {
  std::string text = name.empty() ? "# A packed checkpoint\n\n" : fmt::format("# {}, packed\n\n", name);
  text += fmt::format(
      "{}"
      "{}.\n"
      "`{}` tells where each expert lies, so that a program can read only what the router picks.\n"
      "{}\n\n",
      weights_of(manifest), files_of(recipe.by, manifest.coverage.experts), format::kManifestPath, form_of(manifest));
  if (manifest.layer_map) {
    text += fmt::format(
        "Layer map: `dsrun` passes the layers in the order {}. Each is stored once. Other loaders know\n"
        "nothing of the map and run the model that the source is.\n\n",
        format::to_string(*manifest.layer_map));
  }
  return text;
}

/// What dspack itself does with it.
std::string usage_with_dspack(format::NameAuthor author, const std::string& name) {
  if (author != format::NameAuthor::transformers) {
    return "`dsrun` does not run models whose tensors have these names yet. What dspack does with them is below: "
           "verify "
           "them, and\nmake the original files again.\n\n";
  }
  return fmt::format(
      "With dspack, if `dsrun` runs the model (DeepSeek-V2, V3 and R1, Kimi-K2 and their relatives), from a folder; or "
      "from the\nHub without downloading it first, one expert at a time, as the router asks for them (in place of "
      "`ORG/{0}`, the name\nof this repository):\n\n"
      "```\ndsrun . -p \"Hello\"\ndsrun hf://ORG/{0} -p \"Hello\"\n```\n\n",
      name);
}

std::string usage_unpacked(std::string_view reason) {
  return fmt::format(
      "Other programs cannot read it as it is: {}.\nFor them:\n\n```\nreshard unpack . --out FOLDER\n```\n\n", reason);
}

std::string usage_with_transformers(const std::string& name) {
  return fmt::format(
      "With transformers, which finds the files through the index:\n\n"
      "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
      "model = AutoModelForCausalLM.from_pretrained(\"ORG/{0}\")\n"
      "tokenizer = AutoTokenizer.from_pretrained(\"ORG/{0}\")\n```\n\n",
      name);
}

std::string usage_with_servers(const format::Manifest& manifest, format::NameAuthor author) {
  if (author != format::NameAuthor::mistral) {
    return "With vLLM, where its version follows the index if no safetensors file lies at the top of the folder, as "
           "here. "
           "Versions\nthat do not, and SGLang, look at the top only: `reshard link . --out FLAT` makes a folder for "
           "them, "
           "of links to these\nfiles.\n\n";
  }
  if (!holds_source_bytes(manifest)) return "";
  return "For vLLM and SGLang, the source's own files again:\n\n```\nreshard unpack . --exact --out FOLDER\n```\n\n";
}

std::string usage(const format::Manifest& manifest, const std::string& name) {
  const format::NameAuthor author = name_author(manifest);
  std::string text = "## Use\n\n";
  if (const std::string_view readers = readers_of_names(author); !readers.empty()) text.append(readers).append("\n\n");
  text += usage_with_dspack(author, name);
  if (const auto reason = unreadable_reason(manifest)) return text + usage_unpacked(*reason);
  if (manifest.coverage.of) return text + "Other loaders need the whole model, of which this is a part.\n\n";
  if (!manifest.aliases.empty()) {
    text += fmt::format(
        "Equal tensors are stored once: the index lacks {} of the source's names, whose bytes are another's. Loaders "
        "that "
        "look for\nthem by name need what `reshard unpack . --out FOLDER` makes.\n\n",
        manifest.aliases.size());
  }
  return text + usage_with_transformers(name) + usage_with_servers(manifest, author);
}

std::string verification(const format::Manifest& manifest) {
  std::string text = fmt::format(
      "## Verify\n\n"
      "`{}` has the SHA-256 of every file, tensor and expert. Its own is what this command prints:\n\n"
      "```\nsha256sum {}\n```\n\n",
      format::kManifestPath, format::kManifestPath);
  if (has_requirement(manifest, format::kZstdKey)) {
    text += "Every file and tensor:\n\n```\nreshard verify .\n```\n\n";
  } else {
    text += fmt::format(
        "Every file, with nothing but Python and coreutils, or every file and tensor with dspack:\n\n"
        "```\npython3 -c 'import json; m = json.load(open(\"{}\")); print(*(f[\"sha256\"] + \"  \" + f[\"path\"]\n"
        "  for f in m[\"files\"] + m[\"companions\"]), sep=\"\\n\")' | sha256sum --check --quiet\n"
        "reshard verify .\n```\n\n",
        format::kManifestPath);
  }
  if (!holds_source_bytes(manifest))
    return text +
           "That they are what the recipe makes of the source:\n\n```\nreshard verify . --source SOURCE\n```\n\n";
  text +=
      "That they are the source's: the first rebuilds the SHA-256 of every source file from these files and the kept "
      "headers\nin `provenance/`, and compares it with what is declared where they were released; the second compares "
      "every tensor\nbyte for byte; the third makes the original files again.\n\n";
  text += fmt::format(
      "```\nreshard verify . --upstream{}\nreshard verify . --source SOURCE\n"
      "reshard unpack . --exact --out DIR\n```\n\n",
      manifest.origin.repository.empty() ? " SOURCE" : "");
  return text;
}

std::string provenance(const format::Manifest& manifest) {
  std::string text = "## Provenance\n\n";
  if (!manifest.origin.repository.empty()) {
    text += fmt::format("Made from [{0}](https://huggingface.co/{0}), revision `{1}`.\n", manifest.origin.repository,
                        manifest.origin.revision);
  }
  text += fmt::format("Packed by {} with recipe `{}`.\n", manifest.program, format::canonical_json(manifest.recipe));
  if (manifest.source.size() > kListedShards)
    return text + fmt::format("`{}` lists the {} source files.\n", format::kManifestPath, manifest.source.size());
  text += "\n| source file | bytes | SHA-256 |\n|---|---|---|\n";
  for (const format::SourceShard& shard : manifest.source)
    text += fmt::format("| {} | {} | {} |\n", markdown(shard.path), shard.size_bytes,
                        shard.sha256 ? to_hex(*shard.sha256) : fmt::format("{} bytes were read", shard.read_bytes));
  return text;
}

}  // namespace

std::string model_card(const format::Manifest& manifest, const Recipe& recipe,
                       const std::optional<std::string>& source_card) {
  const std::string& repository = manifest.origin.repository;
  const std::string name = repository.empty() ? "" : repository.substr(repository.find('/') + 1);
  std::string card = packed_card_fields(manifest, source_card.value_or(""));
  card += introduction(manifest, recipe, name) + usage(manifest, name.empty() ? "NAME" : name) +
          verification(manifest) + provenance(manifest);
  if (source_card) card += fmt::format("\nThe source's own card: [{0}]({0}).\n", kSourceCardPath);
  return printable_text(card);
}

Result<std::optional<std::string>> read_source_card(const format::Path& packed, format::FileSystem& files) {
  constexpr uint64_t kMaxCardBytes = 16 << 20;
  TRY_ASSIGN(const auto found, files.stat(packed / kSourceCardPath));
  if (!found) return std::optional<std::string>();
  TRY_ASSIGN(std::string text, format::read_text(files, packed / kSourceCardPath, kMaxCardBytes));
  return std::optional(std::move(text));
}

}  // namespace dspack::reshard
