// The plan for a checkpoint. Input: a grouping on the first line; then a checkpoint as checkpoint_input.h says.
#include <algorithm>
#include <set>

#include "reshard/plan.h"
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

void check_grouping(const PlannedFile& file, const Grouping& by) {
  if (by.kind == Grouping::Kind::expert) DSPACK_CHECK(file.experts.size() <= by.experts_per_file, file.path);
  if (by.kind != Grouping::Kind::shard || file.size_bytes <= by.shard_bytes) return;
  DSPACK_CHECK(file.tensors.size() == 1 || file.experts.size() == 1, "a file that is too large without need");
}

/// Every tensor has one place; every shard is read from its first byte of data to its last.
void check_copies(const Plan& plan, const Checkpoint& source) {
  std::vector<unsigned> copies(source.tensors().size());
  for (size_t shard = 0; shard < plan.shards.size(); ++shard) {
    uint64_t end = source.files()[shard].data_start;
    for (const reshard::Copy& copy : plan.shards[shard]) {
      DSPACK_CHECK(copy.source.begin == end, "a hole in what is read");
      end = copy.source.end;
      ++copies.at(copy.tensor);
      const PlannedFile& file = plan.files.at(copy.file);
      DSPACK_CHECK(file.tensors.at(copy.slot) == copy.tensor && file.offsets[copy.slot] == copy.offset, file.path);
    }
    DSPACK_CHECK(end == source.files()[shard].size_bytes, "a shard that is not read to its end");
  }
  for (const unsigned count : copies)
    DSPACK_CHECK(count == 1, "a tensor without a place, or with two");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  const auto by = reshard::parse_grouping(fuzz::take(text, '\n'));
  if (!by) {
    fuzz::check_refusal(by.error());
    return 0;
  }
  fuzz::MemoryRepository repository = fuzz::repository_of(text);
  const auto source = Checkpoint::open(repository, 1, {});
  if (!source) return 0;  // the target "checkpoint" looks at these
  const auto plan = reshard::make_plan({.by = *by}, *source);
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
    check_file(file, *source);
    check_grouping(file, *by);
  }
  DSPACK_CHECK(output_bytes == plan->output_bytes, "a wrong sum of bytes");
  check_copies(*plan, *source);
  return 0;
}
