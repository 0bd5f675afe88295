#include "reshard/run/alike_tensors.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "format/base/parallel.h"

namespace dspack::reshard {
namespace {

using format::Checkpoint;
using format::TensorEntry;

constexpr uint64_t kSmallestBytes = 64ULL << 10;  // below that nothing is won
constexpr uint64_t kSampleBytes = 4096;
constexpr uint64_t kSamples = 16;  // of those whose first samples are equal

using Group = std::vector<uint32_t>;

/// Tensors that could be equal by what the headers say.
std::vector<Group> candidates(const Selection& selection, const Checkpoint& source) {
  std::map<std::tuple<Dtype, std::vector<uint64_t>>, Group> by_form;
  for (uint32_t i = 0; i < source.tensors().size(); ++i) {
    const TensorEntry& tensor = source.tensors()[i];
    if (tensor.place.expert || tensor.range.size() < kSmallestBytes || !takes(selection, tensor)) continue;
    by_form[{tensor.dtype, tensor.shape}].push_back(i);
  }
  std::vector<Group> groups;
  for (auto& [form, group] : by_form) {
    if (group.size() > 1) groups.push_back(std::move(group));
  }
  return groups;
}

/// Where the n-th sample of a tensor begins.
uint64_t sample_offset(uint64_t bytes, uint64_t number) {
  return (bytes - kSampleBytes) / (kSamples - 1) * number;
}

class Sampler {
 public:
  Sampler(const Checkpoint& source, format::Repository& repository, unsigned jobs, const std::stop_token& stop)
      : source_(source), repository_(repository), jobs_(jobs), stop_(stop) {}

  /// Parts every group by what samples [first, last) of its tensors hold; single tensors are dropped.
  Result<std::vector<Group>> part(const std::vector<Group>& groups, uint64_t first, uint64_t last) const {
    std::vector<std::vector<uint32_t>> by_file(source_.files().size());
    for (const Group& group : groups) {
      for (const uint32_t tensor : group)
        by_file[source_.tensors()[tensor].file].push_back(tensor);
    }
    std::map<uint32_t, format::Digest> digests;
    std::mutex mutex;
    const auto one = [&](uint64_t file, const std::stop_token& stop) -> Result<void> {
      if (by_file[file].empty()) return {};
      const format::CheckpointFile& known = source_.files()[file];
      TRY_ASSIGN(const auto bytes, repository_.open_known(known.path, {known.size_bytes, known.version}, stop));
      for (const uint32_t tensor : by_file[file]) {
        TRY_ASSIGN(const format::Digest digest, sample(*bytes, source_.tensors()[tensor].range, first, last, stop));
        const std::lock_guard lock(mutex);
        digests.emplace(tensor, digest);
      }
      return {};
    };
    TRY(run_jobs(by_file.size(), jobs_, one, stop_));
    std::vector<Group> parts;
    for (const Group& group : groups) {
      std::map<format::Digest, Group> equal;
      for (const uint32_t tensor : group)
        equal[digests.at(tensor)].push_back(tensor);
      for (auto& [digest, tensors] : equal) {
        if (tensors.size() > 1) parts.push_back(std::move(tensors));
      }
    }
    return parts;
  }

 private:
  static Result<format::Digest> sample(format::ByteSource& bytes, ByteRange range, uint64_t first, uint64_t last,
                                       const std::stop_token& stop) {
    format::Sha256 hash;
    std::vector<std::byte> buffer(kSampleBytes);
    for (uint64_t number = first; number < last; ++number) {
      TRY(bytes.read(range.begin + sample_offset(range.size(), number), buffer, stop));
      hash.update(buffer);
    }
    return hash.finish();
  }

  const Checkpoint& source_;
  format::Repository& repository_;
  unsigned jobs_;
  const std::stop_token& stop_;
};

}  // namespace

Result<std::vector<Group>> alike_tensors(const Selection& selection, const Checkpoint& source,
                                         format::Repository& repository, unsigned jobs, const std::stop_token& stop) {
  const Sampler sampler(source, repository, jobs, stop);
  TRY_ASSIGN(const std::vector<Group> first, sampler.part(candidates(selection, source), 0, 1));
  TRY_ASSIGN(std::vector<Group> groups, sampler.part(first, 1, kSamples));
  for (Group& group : groups)
    std::ranges::sort(group);
  std::ranges::sort(groups);
  return groups;
}

}  // namespace dspack::reshard
