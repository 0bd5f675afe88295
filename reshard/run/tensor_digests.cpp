#include "reshard/run/tensor_digests.h"

#include <algorithm>
#include <tuple>

#include "format/tensor_pass.h"

namespace dspack::reshard {

using format::TensorEntry;
using format::TensorPass;

TensorDigester::TensorDigester(format::Repository& repository, const format::Checkpoint& catalogue)
    : repository_(repository),
      catalogue_(catalogue),
      digests_(catalogue.tensors().size()),
      group_of_file_(catalogue.files().size(), -1) {}

void TensorDigester::want(uint32_t tensor) {
  const TensorEntry& entry = catalogue_.tensors()[tensor];
  if (entry.digest) {
    digests_[tensor] = entry.digest;
    return;
  }
  int64_t& group = group_of_file_[entry.file];
  if (group < 0) {
    group = static_cast<int64_t>(by_file_.size());
    by_file_.emplace_back();
  }
  by_file_[static_cast<size_t>(group)].push_back(tensor);
  bytes_ += entry.range.size();
}

Result<void> TensorDigester::run(uint64_t number, format::Progress& progress, const std::stop_token& stop) {
  const std::vector<TensorEntry>& tensors = catalogue_.tensors();
  std::vector<uint32_t>& wanted = by_file_[number];
  const auto key = [&](uint32_t i) { return std::tie(tensors[i].range.begin, tensors[i].range.end); };
  std::sort(wanted.begin(), wanted.end(), [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  TensorReader reader(repository_, catalogue_);
  for (size_t begin = 0; begin < wanted.size();) {
    size_t end = begin + 1;
    while (end < wanted.size() && tensors[wanted[end]].range.begin == tensors[wanted[end - 1]].range.end)
      ++end;
    std::vector<TensorPass::Tensor> passed;
    for (size_t i = begin; i < end; ++i)
      passed.push_back({.range = tensors[wanted[i]].range});
    TensorPass pass(passed, passed.front().range.begin, TensorPass::Whole::left_out);
    const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
      pass.take(bytes);
      progress.advanced(bytes.size());
      return {};
    };
    const format::Extent extent{tensors[wanted[begin]].file,
                                {tensors[wanted[begin]].range.begin, tensors[wanted[end - 1]].range.end}};
    TRY(reader.stream(extent, sink, stop));
    for (const format::TensorSums& sums : pass.finish().tensors)
      digests_[wanted[begin++]] = sums.whole;
  }
  return {};
}

}  // namespace dspack::reshard
