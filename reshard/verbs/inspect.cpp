#include "reshard/verbs/inspect.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/base/size.h"
#include "format/html_page.h"
#include "format/weights/weight_format.h"
#include "reshard/run/model_card.h"
#include "reshard/verbs/inspect_data.h"

namespace dspack::reshard {
namespace {

constexpr size_t kRecipeBytes = 2000;  // limit on the shown part of a recipe, which may list every layer and expert

struct Total {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  void add(const format::TensorEntry& tensor) {
    ++tensors;
    bytes += tensor.range.size();
  }
};

struct LayerTotal {
  Total dense;
  Total routed;
  uint64_t experts = 0;
};

std::string row(std::string_view name, const Total& total) {
  return fmt::format("  {:<16}{:>10}{:>20}\n", name, total.tensors, total.bytes);
}

/// Counts the tensors whose bytes are two FP4 codes each: their dtype only says bytes, their scales show the form.
std::string fp4_text(const format::Checkpoint& checkpoint) {
  const format::WeightFormat fp4 = format::fp4_format();
  std::map<std::pair<std::string_view, std::string_view>, uint64_t> counts;  // by the dtypes of codes and scales
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    if (tensor.dtype != Dtype::i8 && tensor.dtype != Dtype::u8) continue;
    const std::string matrix = format::matrix_of_codes(tensor.name);
    if (matrix.empty()) continue;
    const format::WeightFormat* stored = format::storing_format(checkpoint, matrix);
    const format::TensorEntry* scales = checkpoint.find_scale(tensor.name);
    if (stored != nullptr && stored->stores == fp4.stores && scales != nullptr)
      ++counts[{to_string(tensor.dtype), to_string(scales->dtype)}];
  }
  std::string text;
  for (const auto& [dtypes, count] : counts)
    text += fmt::format("  {} tensors in {} are FP4, two numbers a byte, with scales in {}\n", count, dtypes.first,
                        dtypes.second);
  return text;
}

/// How a recipe has changed the model; empty if it only regrouped files.
std::string changes_text(const format::Manifest& manifest) {
  if (holds_source_bytes(manifest)) return {};
  std::string text =
      fmt::format("recipe: {}\n", shortened(printable(format::canonical_json(manifest.recipe)), kRecipeBytes));
  if (const auto& of = manifest.coverage.of) {
    text += fmt::format("part of a source of {} tensors, {}, {} layers, {} routed experts\n", of->tensors,
                        exact_size_words(of->payload_bytes), of->layers, of->experts);
  }
  if (!manifest.rounding_errors.is_null()) {
    text += fmt::format("\n  {:<16}{:>10}{:>20}  {}\n", "rounded", "tensors", "relative RMS", "worst");
    for (const auto& [role, errors] : manifest.rounding_errors.items()) {
      const format::Json& worst = errors["worst"];
      text += fmt::format("  {:<16}{:>10}{:>20.3e}  {:.3e} {}\n", brief(role), errors["tensors"].get<uint64_t>(),
                          errors["relative_rms"].get<double>(), worst["relative_rms"].get<double>(),
                          brief(worst["name"].get_ref<const std::string&>()));
      if (const auto expert = errors.find("worst_expert"); expert != errors.end()) {
        const LayerId layer((*expert)["layer"].get<uint32_t>());
        text += fmt::format("  {:>46}  {:.3e} layer {}, expert {}\n", "", (*expert)["relative_rms"].get<double>(),
                            format::layer_text(layer), (*expert)["expert"].get<uint64_t>());
      }
    }
  }
  return text + "\n";
}

/// Whether and how other programs can read the repository.
std::string others_text(const format::Manifest& manifest) {
  std::string text;
  if (const auto reason = unreadable_reason(manifest))
    text += fmt::format("other programs cannot read it: {}; reshard unpack makes an ordinary checkpoint\n\n",
                        brief(*reason));
  if (const std::string_view readers = readers_of_names(name_author(manifest)); !readers.empty())
    text += fmt::format("{}\n\n", readers);
  return text;
}

}  // namespace

std::string inspect_text(const format::Checkpoint& checkpoint, const format::Repository& repository) {
  std::map<std::string_view, Total> roles;
  std::map<std::string_view, Total> dtypes;
  std::map<LayerId, LayerTotal> layers;
  Total all;
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    all.add(tensor);
    roles[to_string(tensor.place.role)].add(tensor);
    dtypes[to_string(tensor.dtype)].add(tensor);
    if (tensor.place.layer)
      (tensor.place.expert ? layers[*tensor.place.layer].routed : layers[*tensor.place.layer].dense).add(tensor);
  }
  for (const auto& [key, tensors] : checkpoint.experts())
    ++layers[key.layer].experts;

  std::string text =
      fmt::format("{}\n{}: {} files, {} tensors, {}, {} layers, {} routed experts\n\n", brief(repository.description()),
                  checkpoint.manifest() ? "packed repository" : "checkpoint", checkpoint.files().size(), all.tensors,
                  exact_size_words(all.bytes), layers.size(), checkpoint.experts().size());
  uint64_t slices = 0;
  for (const format::FusedTensor& tensor : checkpoint.fused())
    slices += tensor.slices;
  if (checkpoint.manifest()) text += changes_text(*checkpoint.manifest()) + others_text(*checkpoint.manifest());
  if (checkpoint.manifest() && checkpoint.manifest()->layer_map) {
    const format::LayerMap& map = *checkpoint.manifest()->layer_map;
    text += fmt::format("layer map: {} ({} in all)\n\n", format::to_string(map), map.size());
  }
  if (!checkpoint.fused().empty()) {
    text += fmt::format(
        "{} tensors hold all experts of their layer; they are packed as {}, one for each expert, so other programs "
        "need the result of reshard unpack\n\n",
        checkpoint.fused().size(), slices);
  }
  text += fmt::format("  {:<16}{:>10}{:>20}\n", "role", "tensors", "bytes");
  for (const auto& [role, total] : roles)
    text += row(role, total);
  text += fmt::format("\n  {:<16}{:>10}{:>20}\n", "dtype", "tensors", "bytes");
  for (const auto& [dtype, total] : dtypes)
    text += row(dtype, total);
  text += fp4_text(checkpoint);
  text += fmt::format("\n  {:<8}{:>10}{:>20}{:>10}{:>20}\n", "layer", "tensors", "bytes", "experts", "expert bytes");
  for (const auto& [layer, total] : layers) {
    text += fmt::format("  {:<8}{:>10}{:>20}{:>10}{:>20}\n", format::layer_text(layer),
                        total.dense.tensors + total.routed.tensors, total.dense.bytes + total.routed.bytes,
                        total.experts, total.routed.bytes);
  }
  return text;
}

std::string inspect_json(const format::Checkpoint& checkpoint, const format::Repository& repository) {
  std::vector<std::string> places;
  for (const format::CheckpointFile& file : checkpoint.files())
    places.push_back(repository.locate(file.path));
  std::string text;
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    const std::string& where = places[tensor.file];
    const char* place = where.find("://") == std::string::npos ? "file" : "url";
    const format::Json line = {{"name", tensor.name},
                               {"dtype", to_string(tensor.dtype)},
                               {"shape", tensor.shape},
                               {place, where},
                               {"range", {tensor.range.begin, tensor.range.end}}};
    text += format::canonical_json(line) + "\n";
  }
  return text;
}

namespace {

using format::Json;

std::string about_checkpoint(const format::Checkpoint& checkpoint) {
  const auto& manifest = checkpoint.manifest();
  const auto files = [](size_t count, std::string_view kind) {
    return fmt::format("{} {}{}", count, kind, count == 1 ? "" : "s");
  };
  if (!manifest) return fmt::format("An ordinary checkpoint of {}.", files(checkpoint.files().size(), "file"));
  const format::Origin& origin = manifest->origin;
  return fmt::format("A packed repository, made by {} from {}{}.", manifest->program,
                     files(manifest->source.size(), "source file"),
                     origin.repository.empty() ? "" : fmt::format(" of {}@{}", origin.repository, origin.revision));
}

/// A page is meant to be passed on, so it must not contain the credentials of an address (user:password@).
void remove_credentials(PageTexts& texts) {
  texts.place = without_passwords(texts.place);
  texts.before_reason = without_passwords(texts.before_reason);
  for (std::string& warning : texts.warnings)
    warning = without_passwords(warning);
}

struct Sides {
  std::optional<Arrangement> before;
  Arrangement after;
};

Sides ordinary_sides(const format::Checkpoint& checkpoint, const format::Grouping& by, PageTexts& texts) {
  texts.before_title = "The files as they are";
  texts.after_title = fmt::format("As reshard --by {} would lay them out", format::to_string(by));
  return {present_arrangement(checkpoint), planned_arrangement(by, checkpoint)};
}

/// Errors in the kept headers only affect one half of the page; errors that prevent reading end the command.
bool is_about_headers(const Error& error) {
  switch (error.kind) {
    case ErrorKind::not_found:
    case ErrorKind::invalid:
    case ErrorKind::corrupt:
    case ErrorKind::unsupported: return true;
    case ErrorKind::io:
    case ErrorKind::network:
    case ErrorKind::budget:
    case ErrorKind::conflict:
    case ErrorKind::cancelled: return false;
  }
  return false;
}

Result<Sides> packed_sides(const format::Checkpoint& checkpoint, format::Repository& repository, PageTexts& texts,
                           const std::stop_token& stop) {
  const Json& recipe = checkpoint.manifest()->recipe;
  const auto by = recipe.find("by");
  texts.after_title = by != recipe.end() && by->is_string()
                          ? fmt::format("The files as they are, packed by {}", by->get<std::string>())
                          : "The files as they are";
  texts.before_title = "The source's shards, by the headers that were kept of them";
  auto shards = source_shards(repository, checkpoint, stop);
  if (!shards && !is_about_headers(shards.error())) return shards.error();
  Sides sides{std::nullopt, present_arrangement(checkpoint)};
  if (shards) {
    sides.before = source_arrangement(*shards, checkpoint);
  } else {
    texts.before_reason = shards.error().message;
  }
  return sides;
}

}  // namespace

std::string page_around(const Json& data) {
  return format::html_page({.frame = kPageFrame, .style = kPageStyle, .script = kPageScript}, data);
}

Result<std::string> inspect_html(const format::Checkpoint& checkpoint, format::Repository& repository,
                                 const std::optional<format::Grouping>& by, const std::stop_token& stop) {
  if (checkpoint.manifest() && by) {
    return Error{ErrorKind::invalid,
                 fmt::format("{}: is packed already; --by is for a checkpoint that is yet to be packed",
                             repository.description())};
  }
  PageTexts texts{.place = repository.description(),
                  .about = about_checkpoint(checkpoint),
                  .before_title = {},
                  .before_reason = {},
                  .after_title = {},
                  .warnings = checkpoint.warnings()};
  Sides sides;
  if (checkpoint.manifest()) {
    if (const auto reason = unreadable_reason(*checkpoint.manifest())) {
      texts.warnings.push_back(
          fmt::format("other programs cannot read it: {}; reshard unpack makes an ordinary checkpoint", *reason));
    }
    TRY_ASSIGN(sides, packed_sides(checkpoint, repository, texts, stop));
  } else {
    sides = ordinary_sides(checkpoint, by.value_or(format::Grouping{}), texts);
  }
  remove_credentials(texts);
  TRY_ASSIGN(const Json data, page_data(checkpoint, texts, sides.before, sides.after));
  return page_around(data);
}

}  // namespace dspack::reshard
