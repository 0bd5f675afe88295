#include <fmt/format.h>

#include <algorithm>

#include "format/base/parallel.h"
#include "reshard/findings.h"
#include "reshard/verify.h"

namespace dspack::reshard {
namespace {

/// Tensors of the source that the packed repository lacks or describes differently, and the other way round.
void compare_catalogues(const format::Checkpoint& packed, const format::Checkpoint& source, Findings& findings) {
  for (const format::TensorEntry& tensor : source.tensors()) {
    const format::TensorEntry* copy = packed.find(tensor.name);
    if (copy == nullptr) {
      findings.add(fmt::format("tensor \"{}\" of the source is missing", tensor.name));
    } else if (copy->dtype != tensor.dtype || copy->shape != tensor.shape) {
      findings.add(fmt::format("{}: tensor \"{}\" has another dtype or shape than in the source",
                               packed.files()[copy->file].path, tensor.name));
    }
  }
  for (const format::TensorEntry& tensor : packed.tensors()) {
    if (source.find(tensor.name) == nullptr) {
      findings.add(
          fmt::format("{}: tensor \"{}\" is not in the source", packed.files()[tensor.file].path, tensor.name));
    }
  }
}

/// Compares the bytes of one source shard, as they pass, with those of the packed repository.
class ShardComparison {
 public:
  ShardComparison(format::Repository& repository, const format::Checkpoint& packed,
                  std::vector<const format::TensorEntry*> tensors, uint64_t begin, Findings& findings)
      : repository_(repository), packed_(packed), tensors_(std::move(tensors)), at_(begin), findings_(findings) {}

  Result<void> take(std::span<const std::byte> bytes, const std::stop_token& stop) {
    while (!bytes.empty()) {
      while (next_ < tensors_.size() && at_ == tensors_[next_]->range.end)
        TRY(next_tensor());
      if (next_ == tensors_.size()) return Error{ErrorKind::corrupt, "the shard has bytes behind its last tensor"};
      const format::TensorEntry& tensor = *tensors_[next_];
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), tensor.range.end - at_));
      TRY(compare(tensor, part, stop));
      at_ += part.size();
      bytes = bytes.subspan(part.size());
    }
    return {};
  }

 private:
  Result<void> next_tensor() {
    ++next_;
    reported_ = false;
    return {};
  }

  Result<void> compare(const format::TensorEntry& tensor, std::span<const std::byte> part,
                       const std::stop_token& stop) {
    const format::TensorEntry* copy = packed_.find(tensor.name);
    if (reported_ || copy == nullptr || copy->range.size() != tensor.range.size()) return {};
    if (!file_ || file_index_ != copy->file) {
      auto file = repository_.open(packed_.files()[copy->file].path, stop);
      if (!file) return report(*copy, file.error());
      file_ = std::move(file).value();
      file_index_ = copy->file;
    }
    buffer_.resize(part.size());
    const auto read = file_->read(copy->range.begin + (at_ - tensor.range.begin), buffer_, stop);
    if (!read) return report(*copy, read.error());
    const auto differ = std::mismatch(part.begin(), part.end(), buffer_.begin());
    if (differ.first == part.end()) return {};
    const uint64_t byte = at_ - tensor.range.begin + static_cast<uint64_t>(differ.first - part.begin());
    findings_.add(fmt::format("{}: tensor \"{}\" differs from the source at its byte {}",
                              packed_.files()[copy->file].path, tensor.name, byte));
    reported_ = true;
    return {};
  }

  Result<void> report(const format::TensorEntry& copy, const Error& error) {
    if (!is_finding(error)) return error;
    findings_.add(fmt::format("{}: {}", packed_.files()[copy.file].path, error.message));
    reported_ = true;
    return {};
  }

  format::Repository& repository_;
  const format::Checkpoint& packed_;
  std::vector<const format::TensorEntry*> tensors_;  // of the shard, by offset
  uint64_t at_;
  size_t next_ = 0;
  bool reported_ = false;  // one finding a tensor is enough
  Findings& findings_;
  std::unique_ptr<format::ByteSource> file_;
  uint32_t file_index_ = 0;
  std::vector<std::byte> buffer_;
};

std::vector<const format::TensorEntry*> tensors_of(const format::Checkpoint& source, uint64_t file) {
  std::vector<const format::TensorEntry*> tensors;
  for (const format::TensorEntry& tensor : source.tensors()) {
    if (tensor.file == file) tensors.push_back(&tensor);
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) {
    return std::tie(a->range.begin, a->range.end) < std::tie(b->range.begin, b->range.end);
  });
  return tensors;
}

}  // namespace

Result<VerifyReport> verify_against_source(format::Repository& packed, const format::Checkpoint& catalogue,
                                           format::Repository& source_repository, const format::Checkpoint& source,
                                           unsigned jobs, format::Progress& progress, const std::stop_token& stop) {
  VerifyReport report{.files = source.files().size(),
                      .tensors = source.tensors().size(),
                      .bytes = source.payload_bytes(),
                      .findings = {}};
  Findings findings;
  compare_catalogues(catalogue, source, findings);
  progress.started("comparing", report.bytes, report.files);
  const auto one = [&](uint64_t shard, const std::stop_token& stop_one) -> Result<void> {
    const format::CheckpointFile& file = source.files()[shard];
    TRY_ASSIGN(const auto bytes, source_repository.open(file.path, stop_one));
    ShardComparison comparison(packed, catalogue, tensors_of(source, shard), file.data_start, findings);
    const format::ByteSink sink = [&](std::span<const std::byte> piece) -> Result<void> {
      TRY(comparison.take(piece, stop_one));
      progress.advanced(piece.size());
      return {};
    };
    TRY(bytes->stream({file.data_start, file.size_bytes}, sink, stop_one));
    progress.file_done();
    return {};
  };
  TRY(run_jobs(source.files().size(), jobs, one, stop));
  progress.finished();
  report.findings = findings.sorted();
  return report;
}

}  // namespace dspack::reshard
