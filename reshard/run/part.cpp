#include "reshard/run/part.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/compressed/frames.h"
#include "reshard/run/output_folder.h"

namespace dspack::reshard {

Result<Part> parse_part(std::string_view text) {
  const size_t slash = text.find('/');
  const auto number = parse_decimal(text.substr(0, slash));
  const auto count = slash == std::string_view::npos ? std::nullopt : parse_decimal(text.substr(slash + 1));
  if (number && count && *number >= 1 && *number <= *count && *count <= kMaxParts)
    return Part{static_cast<uint32_t>(*number), static_cast<uint32_t>(*count)};
  return Error{ErrorKind::invalid,
               fmt::format("\"{}\" is no part; write I/N, with I from 1 to N and N up to {}: 2/4 is "
                           "the second of four",
                           text, kMaxParts)};
}

std::string to_string(Part part) {
  return fmt::format("{}/{}", part.number, part.count);
}

std::vector<uint64_t> shards_of(const Plan& plan, Part part) {
  // Counts one byte more per shard, so that shards of which nothing is read are also distributed.
  const auto weight = [&plan](uint64_t shard) { return plan.reads[shard].bytes() + 1; };
  uint64_t total = 0;
  for (uint64_t shard = 0; shard < plan.reads.size(); ++shard)
    total += weight(shard);
  std::vector<uint64_t> shards;
  uint64_t before = 0;
  for (uint64_t shard = 0; shard < plan.reads.size(); ++shard) {
    // The part that contains the shard's middle; IEEE arithmetic gives the same result on every machine.
    const double middle =
        (static_cast<double>(before) + static_cast<double>(weight(shard)) / 2) / static_cast<double>(total);
    const auto index = static_cast<uint32_t>(middle * part.count);
    if (std::min(index, part.count - 1) + 1 == part.number) shards.push_back(shard);
    before += weight(shard);
  }
  return shards;
}

RunScope whole_scope(const Plan& plan, const format::Path& out) {
  RunScope scope{out, work_folder(out), std::vector<uint64_t>(plan.shards.size())};
  std::iota(scope.shards.begin(), scope.shards.end(), uint64_t{0});
  return scope;
}

RunScope part_scope(const Plan& plan, const format::Path& out, Part part) {
  const std::string name = fmt::format("{}-of-{}", part.number, part.count);
  return {out, work_mark(out, WorkKind::parts) / name, shards_of(plan, part)};
}

format::Path partial_path(const RunScope& scope, const format::PlannedFile& file) {
  return scope.work / "part" / file.path;
}

format::Path final_path(const Plan& plan, const RunScope& scope, const format::PlannedFile& file) {
  format::Path path = scope.out / file.path;
  if (plan.recipe.zstd_level) path += format::kCompressedSuffix;
  return path;
}

std::vector<uint64_t> bytes_per_file(const Plan& plan, const std::vector<uint64_t>& shards) {
  std::vector<uint64_t> bytes(plan.files.size(), 0);
  for (const uint64_t shard : shards) {
    for (const Copy& copy : plan.shards[shard]) {
      if (copy.file == kNoFile) continue;
      if (bytes[copy.file] == 0) bytes[copy.file] = plan.files[copy.file].data_start;
      bytes[copy.file] += copy.bytes;
    }
  }
  return bytes;
}

}  // namespace dspack::reshard
