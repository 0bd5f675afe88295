#include "reshard/tensor_digests.h"

#include <algorithm>
#include <tuple>

namespace dspack::reshard {
namespace {

using format::TensorEntry;

/// Digests of consecutive tensors while their bytes pass.
class RunHasher {
 public:
  RunHasher(const std::vector<TensorEntry>& tensors, std::span<const uint32_t> run,
            std::vector<std::optional<format::Digest>>& digests)
      : tensors_(tensors), run_(run), digests_(digests), at_(tensors[run.front()].range.begin) {}

  void take(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      finish_ended();
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), tensors_[run_[next_]].range.end - at_));
      hash_.update(part);
      at_ += part.size();
      bytes = bytes.subspan(part.size());
    }
  }

  /// Closes tensors that end here; those of zero bytes have nothing to wait for.
  void finish_ended() {
    while (next_ < run_.size() && at_ == tensors_[run_[next_]].range.end)
      digests_[run_[next_++]] = hash_.finish();
  }

 private:
  const std::vector<TensorEntry>& tensors_;
  std::span<const uint32_t> run_;
  std::vector<std::optional<format::Digest>>& digests_;
  uint64_t at_;
  size_t next_ = 0;
  format::Sha256 hash_;
};

}  // namespace

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
    RunHasher hasher(tensors, std::span(wanted).subspan(begin, end - begin), digests_);
    const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
      hasher.take(bytes);
      progress.advanced(bytes.size());
      return {};
    };
    const format::Extent extent{tensors[wanted[begin]].file,
                                {tensors[wanted[begin]].range.begin, tensors[wanted[end - 1]].range.end}};
    TRY(reader.stream(extent, sink, stop));
    hasher.finish_ended();
    begin = end;
  }
  return {};
}

}  // namespace dspack::reshard
