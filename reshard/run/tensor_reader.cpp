#include "reshard/run/tensor_reader.h"

#include <algorithm>
#include <tuple>

#include "format/source/local_repository.h"
#include "format/tensor_pass.h"

namespace dspack::reshard {

using format::TensorEntry;
using format::TensorPass;

Result<format::ByteSource*> TensorReader::open(uint32_t file, const std::stop_token& stop) {
  if (open_ && open_file_ == file) return open_.get();
  open_.reset();
  TRY_ASSIGN(open_, format::open_catalogued(repository_, catalogue_.files()[file], stop));
  open_file_ = file;
  return open_.get();
}

Result<void> TensorReader::stream(const format::TensorEntry& tensor, const format::ByteSink& sink,
                                  const std::stop_token& stop) {
  return stream(format::Extent{tensor.file, tensor.range}, sink, stop);
}

Result<void> TensorReader::stream(const format::Extent& extent, const format::ByteSink& sink,
                                  const std::stop_token& stop) {
  TRY_ASSIGN(format::ByteSource* const source, open(extent.file, stop));
  return source->stream(extent.range, sink, stop);
}

Result<std::vector<std::byte>> TensorReader::read(const format::TensorEntry& tensor, const std::stop_token& stop) {
  TRY_ASSIGN(format::ByteSource* const source, open(tensor.file, stop));
  std::vector<std::byte> whole(tensor.range.size());
  TRY(source->read(tensor.range.begin, whole, stop));
  return whole;
}

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

Result<format::Digest> digest_of_range(format::ByteSource& file, ByteRange range, const std::stop_token& stop) {
  format::Sha256 hash;
  const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
    hash.update(bytes);
    return {};
  };
  TRY(file.stream(range, sink, stop));
  return hash.finish();
}

Result<format::Digest> digest_of_file(const format::Path& path, format::FileSystem& files,
                                      const std::stop_token& stop) {
  TRY_ASSIGN(const auto file, format::open_local_source(files, path));
  return digest_of_range(*file, {0, file->size_bytes()}, stop);
}

}  // namespace dspack::reshard
