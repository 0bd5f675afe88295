#include "reshard/stream.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "format/base/parallel.h"

namespace dspack::reshard {
namespace {

using format::Digest;
using format::Sha256;

/// Takes the bytes of one shard's data in order, and sends each to the file that its tensor belongs to.
class Scatter {
 public:
  Scatter(const StreamInput& input, uint64_t shard, PackedWriter& writer)
      : input_(input),
        copies_(input.plan.shards[shard]),
        writer_(writer),
        at_(input.source.files()[shard].data_start) {}

  Result<void> take(std::span<const std::byte> bytes) {
    shard_hash_.update(bytes);
    while (!bytes.empty()) {
      TRY(finish_ended_tensors());
      if (next_ == copies_.size()) return Error{ErrorKind::corrupt, "the shard has bytes behind its last tensor"};
      if (!file_) TRY(begin_tensor());
      const Copy& copy = copies_[next_];
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), copy.source.end - at_));
      TRY(file_->write(copy.offset + (at_ - copy.source.begin), part));
      digest(part);
      at_ += part.size();
      bytes = bytes.subspan(part.size());
    }
    return finish_ended_tensors();
  }

  /// After the last byte: makes all of it durable.
  Result<ShardDone> finish(uint64_t shard) {
    TRY(finish_ended_tensors());
    if (next_ != copies_.size()) return Error{ErrorKind::corrupt, "the shard ended before its last tensor"};
    for (const uint32_t file : touched_)
      TRY(writer_.sync(file));
    return ShardDone{shard, shard_hash_.finish(), std::move(done_)};
  }

  void hash_header(std::string_view header) { shard_hash_.update(format::as_bytes(header)); }

 private:
  Result<void> begin_tensor() {
    const Copy& copy = copies_[next_];
    TRY_ASSIGN(file_, writer_.open(copy.file));
    touched_.insert(copy.file);
    const format::TensorEntry& tensor = input_.source.tensors()[copy.tensor];
    const uint64_t rows = rows_per_block(tensor);
    block_bytes_ = rows == 0 ? 0 : rows * (copy.source.size() / tensor.shape[0]);
    block_left_ = block_bytes_;
    return {};
  }

  void digest(std::span<const std::byte> bytes) {
    tensor_hash_.update(bytes);
    while (block_bytes_ != 0 && !bytes.empty()) {
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), block_left_));
      block_hash_.update(part);
      block_left_ -= part.size();
      bytes = bytes.subspan(part.size());
      if (block_left_ == 0) end_block();
    }
  }

  void end_block() {
    current_.row_blocks.push_back(block_hash_.finish());
    block_left_ = block_bytes_;
  }

  /// Closes the tensor that ends here; and those of zero bytes, which have nothing to wait for.
  Result<void> finish_ended_tensors() {
    while (next_ < copies_.size() && at_ == copies_[next_].source.end) {
      if (!file_) TRY(begin_tensor());
      if (block_left_ != block_bytes_) end_block();
      current_.whole = tensor_hash_.finish();
      file_.reset();
      TRY(writer_.tensor_done(copies_[next_], current_));
      done_.push_back(std::exchange(current_, {}));
      ++next_;
    }
    return {};
  }

  const StreamInput& input_;
  const std::vector<Copy>& copies_;
  PackedWriter& writer_;
  uint64_t at_;                              // offset in the shard of the next byte
  size_t next_ = 0;                          // the copy that this byte belongs to
  std::unique_ptr<format::WriteFile> file_;  // open while a tensor is being written
  Sha256 shard_hash_;
  Sha256 tensor_hash_;
  Sha256 block_hash_;
  uint64_t block_bytes_ = 0;
  uint64_t block_left_ = 0;
  TensorDigests current_;
  std::vector<TensorDigests> done_;
  std::set<uint32_t> touched_;
};

Result<ShardDone> stream_shard(const StreamInput& input, uint64_t shard, PackedWriter& writer,
                               format::Progress& progress, const std::stop_token& stop) {
  const format::CheckpointFile& file = input.source.files()[shard];
  const std::string place = input.repository.locate(file.path);
  TRY_ASSIGN(const auto bytes, input.repository.open(file.path, stop));
  if (bytes->size_bytes() != file.size_bytes || bytes->version() != file.version) {
    return Error{ErrorKind::corrupt, place + ": the file changed after its header was read; run the command again"};
  }
  Scatter scatter(input, shard, writer);
  scatter.hash_header(file.header);
  progress.advanced(file.data_start);
  const format::ByteSink sink = [&](std::span<const std::byte> piece) -> Result<void> {
    TRY(scatter.take(piece));
    progress.advanced(piece.size());
    return {};
  };
  TRY(bytes->stream({file.data_start, file.size_bytes}, sink, stop));
  auto done = scatter.finish(shard);
  if (!done) return done.error().in(place);
  return done;
}

}  // namespace

Result<std::vector<Digest>> stream_shards(const StreamInput& input, const JournalState& done, PackedWriter& writer,
                                          Journal& journal, format::Progress& progress, const std::stop_token& stop) {
  std::vector<Digest> digests(input.plan.shards.size());
  std::vector<uint64_t> todo;
  for (uint64_t shard = 0; shard < digests.size(); ++shard) {
    const auto record = done.shards.find(shard);
    if (record != done.shards.end()) {
      digests[shard] = record->second.sha256;
      progress.file_done();
    } else {
      todo.push_back(shard);
    }
  }
  const auto run_one = [&](uint64_t number, const std::stop_token& stop_one) -> Result<void> {
    TRY_ASSIGN(const ShardDone record, stream_shard(input, todo[number], writer, progress, stop_one));
    TRY(journal.append(record));
    digests[todo[number]] = record.sha256;
    progress.file_done();
    return {};
  };
  TRY(run_jobs(todo.size(), input.jobs, run_one, stop));
  return digests;
}

}  // namespace dspack::reshard
