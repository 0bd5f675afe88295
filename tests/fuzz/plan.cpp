// The plan for a checkpoint. Input: a grouping or a recipe on the first line; then a checkpoint as checkpoint_input.h
// says.
#include <algorithm>
#include <set>

#include "reshard/plan/plan.h"
#include "reshard/plan/transform.h"
#include "tests/fuzz/catalogue.h"
#include "tests/fuzz/checkpoint_input.h"

using namespace dspack;
using format::Checkpoint;
using reshard::Grouping;
using reshard::Plan;
using reshard::PlannedFile;

namespace {

/// The tensors of a file lie one behind the other, its header says so, and it holds the experts that it lists, whole.
void check_file(const PlannedFile& file, const Checkpoint& source) {
  DSPACK_CHECK(!format::unsafe_path_reason(file.path), file.path);
  uint64_t end = file.data_start;
  std::set<ExpertKey> experts;
  for (size_t slot = 0; slot < file.tensors.size(); ++slot) {
    const format::TensorEntry& tensor = source.tensors()[file.tensors[slot]];
    DSPACK_CHECK(file.offsets[slot] == end, tensor.name);
    end += tensor.range.size();
    DSPACK_CHECK(!file.layer || tensor.place.layer == file.layer, tensor.name);
    if (tensor.place.expert) experts.insert({*tensor.place.layer, *tensor.place.expert});
  }
  DSPACK_CHECK(!file.tensors.empty() && end == file.size_bytes, file.path);
  DSPACK_CHECK(std::equal(experts.begin(), experts.end(), file.experts.begin(), file.experts.end()), file.path);
  const std::string header = planned_header(file, source);
  DSPACK_CHECK(header.size() == file.data_start, file.path);
  const auto parsed = format::parse_header(std::string_view(header).substr(8), file.size_bytes);
  DSPACK_CHECK(parsed.has_value(), parsed.error().message);
}

/// A tensor with its scales.
bool is_one_with_scales(const PlannedFile& file, const Checkpoint& result) {
  return std::ranges::any_of(file.tensors, [&](uint32_t weight) {
    const std::vector<std::string> scales = format::scale_names(result.tensors()[weight].name);
    return std::ranges::all_of(file.tensors, [&](uint32_t other) {
      return other == weight || std::ranges::find(scales, result.tensors()[other].name) != scales.end();
    });
  });
}

void check_grouping(const PlannedFile& file, const Grouping& by, const Checkpoint& result) {
  if (by.kind == Grouping::Kind::expert) DSPACK_CHECK(file.experts.size() <= by.experts_per_file, file.path);
  if (by.kind != Grouping::Kind::shard || file.size_bytes <= by.shard_bytes) return;
  DSPACK_CHECK(file.experts.size() == 1 || is_one_with_scales(file, result), "a file that is too large without need");
}

/// What is read of a shard: ascending, apart, within the file, and all of it where it is read whole.
void check_read(const reshard::ShardRead& read, const std::vector<reshard::Copy>& copies,
                const format::CheckpointFile& file) {
  uint64_t end = file.data_start;
  for (const ByteRange& range : read.ranges) {
    DSPACK_CHECK(range.begin >= end && range.end >= range.begin && range.end <= file.size_bytes, file.path);
    end = range.end;
  }
  if (read.whole) DSPACK_CHECK(read.bytes() == file.size_bytes - file.data_start, file.path);
  for (const reshard::Copy& copy : copies) {
    const auto holds = [&](const ByteRange& range) {
      return range.begin <= copy.source.begin && copy.source.end <= range.end;
    };
    DSPACK_CHECK(copy.source.size() == 0 || std::ranges::any_of(read.ranges, holds), "a copy of what is not read");
  }
}

/// Every tensor of the result has one place, in the order of the source; nothing else is read but what those need.
void check_copies(const Plan& plan, const Checkpoint& source) {
  std::vector<unsigned> made(plan.result.tensors().size());
  for (size_t shard = 0; shard < plan.shards.size(); ++shard) {
    check_read(plan.reads[shard], plan.shards[shard], source.files()[shard]);
    ByteRange last{0, 0};
    for (const reshard::Copy& copy : plan.shards[shard]) {
      const format::TensorEntry& from = source.tensors().at(copy.tensor);
      DSPACK_CHECK(from.file == shard && copy.source == from.range, from.name);
      DSPACK_CHECK(copy.source.begin >= last.end || copy.source == last, "copies out of order");
      last = copy.source;
      for (const uint32_t needed : copy.needs)
        DSPACK_CHECK(needed < source.tensors().size(), from.name);
      if (copy.file == reshard::kNoFile) continue;
      const PlannedFile& file = plan.files.at(copy.file);
      const uint32_t number = file.tensors.at(copy.slot);
      const format::TensorEntry& to = plan.result.tensors()[number];
      DSPACK_CHECK(file.offsets[copy.slot] == copy.offset && to.range.size() == copy.bytes, file.path);
      DSPACK_CHECK(format::tensor_bytes(to.dtype, to.shape) == copy.bytes, to.name);
      if (copy.conversion == reshard::Conversion::none)
        DSPACK_CHECK(to.name == from.name && to.dtype == from.dtype && to.shape == from.shape, to.name);
      ++made[number];
    }
  }
  for (const unsigned count : made)
    DSPACK_CHECK(count == 1, "a tensor without a place, or with two");
}

/// A grouping, or a recipe's JSON.
Result<reshard::Recipe> recipe_of(std::string_view line) {
  if (line.starts_with('{')) return reshard::parse_recipe(line);
  reshard::Recipe recipe;
  TRY_ASSIGN(recipe.by, reshard::parse_grouping(line));
  return recipe;
}

/// As if config.json counted one layer, and every scale were a power of two.
reshard::SourceFacts facts_of(const Checkpoint& source) {
  reshard::SourceFacts facts{.decoder_layers = 1, .exact_scales = {}};
  for (const format::TensorEntry& tensor : source.tensors()) {
    if (const auto scales = reshard::narrowable_scales(tensor, source)) facts.exact_scales.insert(*scales);
  }
  return facts;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  const auto recipe = recipe_of(fuzz::take(text, '\n'));
  if (!recipe) {
    fuzz::check_refusal(recipe.error());
    return 0;
  }
  fuzz::MemoryRepository repository = fuzz::repository_of(text);
  const auto source = Checkpoint::open(repository, 1, {});
  if (!source) return 0;  // the target "checkpoint" looks at these
  const auto plan = reshard::make_plan(*recipe, *source, facts_of(*source));
  if (!plan) {
    fuzz::check_refusal(plan.error());
    return 0;
  }
  uint64_t output_bytes = 0;
  const std::string* last = nullptr;
  for (const PlannedFile& file : plan->files) {
    DSPACK_CHECK(last == nullptr || *last < file.path, "files out of order, or one path twice");
    last = &file.path;
    output_bytes = checked_add(output_bytes, file.size_bytes).value();
    check_file(file, plan->result);
    check_grouping(file, recipe->by, plan->result);
  }
  DSPACK_CHECK(output_bytes == plan->output_bytes, "a wrong sum of bytes");
  check_copies(*plan, *source);
  return 0;
}
