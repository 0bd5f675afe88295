#include "reshard/run/model_card.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/http/headers.h"
#include "format/index.h"
#include "reshard/run/companions.h"

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

namespace {

constexpr size_t kMaxValueBytes = 200;
constexpr std::string_view kFence = "---";
constexpr std::string_view kLibrary = "library_name";
constexpr std::string_view kKept[] = {"license", "license_name", "license_link", "pipeline_tag", kLibrary};

/// Safe in YAML and on a page. Other values of the source's card are not repeated.
bool is_plain(std::string_view value) {
  return !value.empty() && value.size() <= kMaxValueBytes && std::ranges::all_of(value, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._-/:+").find(c) != std::string_view::npos;
  });
}

std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

std::string_view without_quotes(std::string_view value) {
  const bool quoted = value.size() >= 2 && value.front() == value.back() && (value[0] == '"' || value[0] == '\'');
  return quoted ? value.substr(1, value.size() - 2) : value;
}

}  // namespace

std::map<std::string, std::string> card_fields(std::string_view card) {
  std::map<std::string, std::string> fields;
  if (take_line(card) != kFence) return fields;
  while (!card.empty()) {
    const std::string_view line = take_line(card);
    if (line == kFence) return fields;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view value = without_quotes(format::trim_header(line.substr(colon + 1)));
    if (is_plain(line.substr(0, colon)) && is_plain(value)) fields.emplace(line.substr(0, colon), value);
  }
  return {};
}

std::string packed_card_fields(const format::Manifest& manifest, std::string_view source_card) {
  std::map<std::string, std::string> source = card_fields(source_card);
  // The library that opens the source's files does not know the layer map; loaders of Mistral's own names look for them
  // in files with other names.
  const bool others_read = !unreadable_reason(manifest) && name_author(manifest) != format::NameAuthor::mistral;
  if (manifest.layer_map || !others_read) source[std::string(kLibrary)] = "dspack";
  std::string block = "---\n";
  if (!manifest.origin.repository.empty()) block += fmt::format("base_model: {}\n", manifest.origin.repository);
  for (const std::string_view field : kKept) {
    if (const auto found = source.find(std::string(field)); found != source.end())
      block += fmt::format("{}: \"{}\"\n", field, found->second);  // quoted: "no" and "1.0" are text
  }
  return block + "tags:\n- dspack\n- mixture-of-experts\n---\n\n";
}

namespace {

constexpr size_t kListedShards = 300;  // V3 has 163; a longer list is only in the manifest

/// Escapes text from outside for Markdown: it cannot form a table, link, code or tag.
std::string markdown(std::string_view text) {
  constexpr std::string_view kSpecial = "|`<>&*_[]\\#~!";
  std::string shown;
  for (const char c : text) {
    const bool special = kSpecial.find(c) != std::string_view::npos;
    shown += special ? fmt::format("&#{};", static_cast<int>(c)) : std::string(1, c);
  }
  return shown;
}

/// Describes the weight files.
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

/// Describes the tensors in comparison with the source's.
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

/// Describes the file format.
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

/// How to use the repository with dspack.
std::string usage_with_dspack(format::NameAuthor author, const std::string& name) {
  if (author == format::NameAuthor::mistral) {
    return "`dsrun` does not run models whose tensors have these names yet. What dspack does with them is below: "
           "verify "
           "them, and\nmake the original files again.\n\n";
  }
  return fmt::format(
      "With dspack, if `dsrun` runs the model (DeepSeek-V2 to V4, Kimi-K2 and their relatives), from a folder; or "
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
