#include "reshard/plan/plan.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zstd.h>

#include "dspack_version.h"
#include "format/base/size.h"

namespace dspack::reshard {
namespace {

using format::TensorEntry;

// A gap of at most this many bytes is read too: that is cheaper than the round trip of another request.
constexpr uint64_t kReadOverBytes = 64ULL * 1024;

/// The manifest stores names as templates, so a name that looks like a template would not be restored as it was.
Result<void> check_names(const format::Checkpoint& source) {
  for (const TensorEntry& entry : source.tensors()) {
    if (!entry.place.layer || entry.place.expert || !format::template_entry(format::name_template(entry.name)))
      continue;
    return Error{ErrorKind::unsupported, fmt::format("{}: tensor \"{}\" has \"{{expert\" in place of a number",
                                                     source.files()[entry.file].path, entry.name)};
  }
  return {};
}

/// Unrecognised experts would all end up in one file, which is not the grouping that was asked for.
Result<void> check_experts(const Recipe& recipe, const format::Checkpoint& source) {
  if (recipe.by.kind == Grouping::Kind::shard || !source.experts().empty() || source.expert_doubts().empty()) return {};
  return Error{ErrorKind::unsupported,
               fmt::format("no routed experts recognised ({}); use --by shard:5GB, which works with any tensor names",
                           fmt::join(source.expert_doubts(), "; "))};
}

/// For plan_files: ranks the result's tensors by where their source tensors lie. Empty: the order of use.
std::vector<uint32_t> order_of(FileOrder order, const Product& product, const format::Checkpoint& source) {
  if (order == FileOrder::of_use) return {};
  std::vector<format::Extent> origins;
  for (const Making& making : product.makings) {
    const TensorEntry& from = source.tensors()[making.source];
    origins.push_back({from.file, from.range});
  }
  return format::reading_order(origins);
}

std::vector<std::vector<Copy>> make_copies(const std::vector<PlannedFile>& files, const Product& product,
                                           const format::Checkpoint& source) {
  std::vector<std::vector<Copy>> shards(source.files().size());
  std::vector<bool> written(source.tensors().size(), false);
  for (uint32_t f = 0; f < files.size(); ++f) {
    for (uint32_t slot = 0; slot < files[f].tensors.size(); ++slot) {
      const Making& making = product.makings[files[f].tensors[slot]];
      const TensorEntry& from = source.tensors()[making.source];
      written[making.source] = true;
      shards[from.file].push_back({.tensor = making.source,
                                   .source = from.range,
                                   .file = f,
                                   .slot = slot,
                                   .offset = files[f].offsets[slot],
                                   .bytes = product.result.tensors()[files[f].tensors[slot]].range.size(),
                                   .conversion = making.conversion,
                                   .needs = making.needs});
    }
  }
  for (const uint32_t tensor : product.used) {
    const TensorEntry& from = source.tensors()[tensor];
    if (!written[tensor]) shards[from.file].push_back({.tensor = tensor, .source = from.range, .file = kNoFile});
  }
  for (std::vector<Copy>& copies : shards)
    sort_copies(copies);
  return shards;
}

/// A shard whose tensors are all used is read whole, which verifies it; from others only the needed ranges are read.
std::vector<ShardRead> make_reads(const std::vector<std::vector<Copy>>& shards, const Product& product,
                                  const format::Checkpoint& source) {
  std::vector<ShardRead> reads(shards.size());
  std::vector<bool> used(source.tensors().size(), false);
  for (const uint32_t tensor : product.used)
    used[tensor] = true;
  std::vector<uint64_t> known(shards.size());  // size of the catalogue's tensors in each shard
  for (uint32_t i = 0; i < used.size(); ++i) {
    const TensorEntry& tensor = source.tensors()[i];
    if (!used[i]) reads[tensor.file].whole = false;
    known[tensor.file] += tensor.range.size();
  }
  // An index may leave out tensors that a shard has.
  for (size_t shard = 0; shard < shards.size() && !source.manifest(); ++shard) {
    const format::CheckpointFile& file = source.files()[shard];
    if (known[shard] != file.size_bytes - file.data_start) reads[shard].whole = false;
  }
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    reads[shard].ranges = wanted_ranges(shards[shard]);
    if (reads[shard].whole)
      reads[shard].ranges = {{source.files()[shard].data_start, source.files()[shard].size_bytes}};
  }
  return reads;
}

/// The facts of the plan that do not come from headers; null: none.
format::Json facts_json(const Recipe& recipe, const SourceFacts& facts, const format::Checkpoint& source) {
  format::Json json;
  if (recipe.zstd_level) json["zstd"] = ZSTD_versionString();  // another version may produce different bytes
  if (recipe.drop_mtp && facts.decoder_layers) json["decoder_layers"] = *facts.decoder_layers;
  for (const std::vector<uint32_t>& group : facts.alike) {
    format::Json names = format::Json::array();
    for (const uint32_t tensor : group)
      names.push_back(source.tensors()[tensor].name);
    json["alike"].push_back(std::move(names));
  }
  if (const format::Json stored = format::quantization_json(facts.stored); !stored.empty()) json["stored"] = stored;
  for (const uint32_t scales : facts.exact_scales)
    json["exact_scales"].push_back(source.tensors()[scales].name);
  return json;
}

}  // namespace

void sort_copies(std::vector<Copy>& copies) {
  std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) {
    return std::tie(a.source.begin, a.source.end, a.tensor, a.conversion) <
           std::tie(b.source.begin, b.source.end, b.tensor, b.conversion);
  });
}

std::vector<ByteRange> wanted_ranges(const std::vector<Copy>& copies) {
  std::vector<ByteRange> ranges;
  for (const Copy& copy : copies) {
    if (copy.source.size() == 0) continue;
    if (!ranges.empty() && copy.source.begin <= ranges.back().end + kReadOverBytes) {
      ranges.back().end = std::max(ranges.back().end, copy.source.end);
    } else {
      ranges.push_back(copy.source);
    }
  }
  return ranges;
}

uint64_t ShardRead::bytes() const {
  uint64_t bytes = 0;
  for (const ByteRange& range : ranges)
    bytes += range.size();
  return bytes;
}

std::string plan_digest(const Recipe& recipe, const std::vector<PlanSource>& source, const format::Json& facts,
                        FileOrder order) {
  format::Json json = {{"program", kVersion}, {"recipe", recipe_json(recipe)}, {"source", format::Json::array()}};
  if (order == FileOrder::of_source) json["order"] = "source";  // of_use is older than this field and omits it
  for (const PlanSource& file : source) {
    json["source"].push_back(
        {{"path", file.path}, {"size", file.size_bytes}, {"header", to_hex(format::sha256(file.header))}});
  }
  if (!facts.is_null()) json["facts"] = facts;
  return to_hex(format::sha256(format::canonical_json(json)));
}

Result<Plan> make_plan(const Recipe& recipe, const format::Checkpoint& source, const SourceFacts& facts,
                       FileOrder order) {
  if (source.manifest()) {
    return Error{ErrorKind::unsupported, "the source is a packed repository already; name the original checkpoint"};
  }
  TRY(check_names(source));
  TRY(check_experts(recipe, source));
  TRY_ASSIGN(Product product, make_product(recipe, source, facts));
  Plan plan;
  plan.recipe = recipe;
  plan.stored = facts.stored;
  plan.complete = product.complete;
  plan.aliases = product.aliases;
  plan.warnings = std::move(product.warnings);
  plan.files = plan_files(recipe.by, product.result, order_of(order, product, source));
  for (const PlannedFile& file : plan.files) {
    plan.output_bytes += file.size_bytes;
    if (file.data_start > format::kMaxHeaderBytes) {
      return Error{ErrorKind::invalid,
                   fmt::format("{}: would hold {} tensors, whose header is longer than readers accept ({}); group "
                               "into smaller files",
                               file.path, file.tensors.size(), size_words(format::kMaxHeaderBytes))};
    }
  }
  plan.shards = make_copies(plan.files, product, source);
  plan.reads = make_reads(plan.shards, product, source);
  std::vector<PlanSource> shards;
  for (size_t i = 0; i < source.files().size(); ++i) {
    const format::CheckpointFile& file = source.files()[i];
    plan.source_bytes += plan.reads[i].whole ? file.size_bytes : plan.reads[i].bytes();
    shards.push_back({file.path, file.size_bytes, file.header});
  }
  plan.digest = plan_digest(recipe, shards, facts_json(recipe, facts, source), order);
  plan.result = std::move(product.result);
  return plan;
}

}  // namespace dspack::reshard
