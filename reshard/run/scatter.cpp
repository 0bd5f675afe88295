#include "reshard/run/scatter.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "reshard/run/tensor_reader.h"

namespace dspack::reshard {

ReadTensor tensor_reading(format::Repository& repository, const format::Checkpoint& source,
                          const std::stop_token& stop) {
  // Shared because a std::function can be copied.
  return [&source, &stop, reader = std::make_shared<TensorReader>(repository, source)](uint32_t tensor) {
    return reader->read(source.tensors()[tensor], stop);
  };
}

namespace {

/// Whether any of the copies [begin, end) is a conversion.
bool converts(std::span<const Copy> copies, size_t begin, size_t end) {
  return std::ranges::any_of(copies.subspan(begin, end - begin),
                             [](const Copy& copy) { return copy.conversion != Conversion::none; });
}

}  // namespace

/// One copy while its tensor's bytes stream by.
class Scatter::Outlet {
 public:
  Outlet(const Copy& copy, TensorTarget target, uint64_t row_block_bytes, BackgroundWriter& writer,
         format::Sha256* shard_hash)
      : copy_(copy), target_(std::move(target)), writer_(target_, copy.offset, row_block_bytes, writer, shard_hash) {}

  /// `needed`: the digests of the tensors that the conversion uses.
  void convert(std::unique_ptr<Converter> converter, std::vector<format::Digest> needed) {
    converter_ = std::move(converter);
    needed_ = std::move(needed);
  }

  void resume(const TensorBegun& begun, uint64_t done) { writer_.resume(begun, done); }
  /// Precondition: the copy has no conversion.
  Result<TensorBegun> pause() { return writer_.pause(); }

  Result<void> take(std::span<const std::byte> bytes) {
    if (!converter_) return writer_.write(bytes);
    return converter_->take(bytes, sink());
  }

  Result<TensorDigests> finish() {
    if (converter_) TRY(converter_->finish(sink()));
    if (converter_ && written_ != copy_.bytes)
      return Error{ErrorKind::corrupt, fmt::format("became {} bytes instead of {}", written_, copy_.bytes)};
    TRY_ASSIGN(TensorDigests digests, writer_.finish());
    digests.needed = needed_;
    if (converter_) digests.loss = converter_->loss();
    return digests;
  }

  [[nodiscard]] TensorTarget& target() { return target_; }

 private:
  format::ByteSink sink() {
    return [this](std::span<const std::byte> bytes) {
      written_ += bytes.size();
      return writer_.write(bytes);
    };
  }

  const Copy& copy_;
  TensorTarget target_;
  TensorWriter writer_;
  std::unique_ptr<Converter> converter_;
  std::vector<format::Digest> needed_;
  uint64_t written_ = 0;  // bytes from the converter
};

Scatter::Scatter(const Plan& plan, const format::Checkpoint& source, uint64_t shard, TensorTargets& targets,
                 ReadTensor read)
    : plan_(plan),
      source_(source),
      copies_(plan.shards[shard]),
      targets_(targets),
      read_(std::move(read)),
      whole_(plan.reads[shard].whole) {
  done_.shard = shard;
  shard_hash_.update(format::as_bytes(source.files()[shard].header));
}

Scatter::~Scatter() = default;

Result<void> Scatter::resume(const ShardBegun& begun) {
  done_.tensors = begun.tensors;
  next_ = recorded_ = begun.tensors.size();
  at_ = begun.at;
  if (begun.hash) shard_hash_ = format::Sha256(*begun.hash);
  if (begun.begun.empty()) return {};
  const uint64_t done = at_ - copies_[next_].source.begin;
  TRY(begin_tensors(done));
  for (size_t i = 0; i < outlets_.size(); ++i)
    outlets_[i]->resume(begun.begun[i], done);
  return {};
}

Result<Scatter::Pause> Scatter::pause() {
  TRY(end_tensors());
  Pause pause;
  ShardBegun& begun = pause.begun;
  begun = {.shard = done_.shard, .at = at_, .first = recorded_};
  begun.tensors.assign(done_.tensors.begin() + static_cast<std::ptrdiff_t>(recorded_), done_.tensors.end());
  if (whole_) begun.hash = shard_hash_.state();
  if (outlets_.empty()) return pause;
  if (converts(copies_, next_, group_end())) {
    begun.at = copies_[next_].source.begin;
    if (whole_) begun.hash = hash_before_;
    return pause;
  }
  for (const auto& outlet : outlets_) {
    TRY_ASSIGN(TensorBegun tensor, outlet->pause());
    begun.begun.push_back(std::move(tensor));
    if (outlet->target().turn.hash != nullptr) pause.file_hashes.push_back(outlet->target().turn.hash);
  }
  return pause;
}

Result<void> Scatter::begin_range(uint64_t offset) {
  TRY(end_tensors());
  at_ = offset;
  return {};
}

Result<void> Scatter::take(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    TRY(end_tensors());
    if (next_ == copies_.size()) {
      if (whole_) return Error{ErrorKind::corrupt, "the shard has bytes after its last tensor"};
      return {};  // read only because it lies close to wanted bytes
    }
    const Copy& copy = copies_[next_];
    if (at_ < copy.source.begin) {  // between two wanted tensors
      const uint64_t skipped = std::min<uint64_t>(bytes.size(), copy.source.begin - at_);
      at_ += skipped;
      bytes = bytes.subspan(skipped);
      continue;
    }
    if (outlets_.empty()) TRY(begin_tensors(0));
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), copy.source.end - at_));
    // A single outlet without conversion also updates the shard's digest.
    const bool digested = outlets_.size() == 1 && copy.conversion == Conversion::none;
    if (whole_ && !digested) shard_hash_.update(part);
    for (const auto& outlet : outlets_) {
      if (auto taken = outlet->take(part); !taken.has_value())
        return taken.error().in(fmt::format("tensor \"{}\"", source_.tensors()[copy.tensor].name));
    }
    at_ += part.size();
    bytes = bytes.subspan(part.size());
  }
  return end_tensors();  // a shard that waits for this tensor must not have to wait for the next
}

Result<ShardDone> Scatter::finish() {
  TRY(end_tensors());
  if (next_ != copies_.size()) return Error{ErrorKind::corrupt, "the shard ended before its last tensor"};
  if (whole_) done_.sha256 = shard_hash_.finish();
  return std::move(done_);
}

/// End of the copies from next_ on that are made from the same tensor.
size_t Scatter::group_end() const {
  size_t end = next_;
  while (end < copies_.size() && copies_[end].tensor == copies_[next_].tensor)
    ++end;
  return end;
}

/// `done`: bytes of the tensor that an earlier run has written.
Result<void> Scatter::begin_tensors(uint64_t done) {
  const size_t end = group_end();
  if (whole_ && converts(copies_, next_, end)) hash_before_ = shard_hash_.state();
  const bool alone = whole_ && end == next_ + 1 && copies_[next_].conversion == Conversion::none;
  for (size_t i = next_; i < end; ++i) {
    const Copy& copy = copies_[i];
    const format::TensorEntry& tensor = source_.tensors()[copy.tensor];
    if (writers_.size() == i - next_) writers_.push_back(std::make_unique<BackgroundWriter>());
    TRY_ASSIGN(TensorTarget target, targets_.open(copy, done));
    const bool plain = copy.file != kNoFile && copy.conversion == Conversion::none;
    outlets_.push_back(std::make_unique<Outlet>(copy, std::move(target), plain ? format::row_block_bytes(tensor) : 0,
                                                *writers_[i - next_], alone ? &shard_hash_ : nullptr));
  }
  return begin_conversions();
}

/// The matrix whose codes the copy converts. `needed`: the bytes of copy.needs.
Result<MatrixSource> Scatter::matrix_source(const Copy& copy, std::vector<std::vector<std::byte>> needed) const {
  TRY_ASSIGN(auto matrix, coded_matrix(source_.tensors()[copy.tensor], source_, plan_.stored));
  MatrixSource source{.catalogue = source_, .matrix = std::move(matrix).value(), .beside = {}};
  for (size_t i = 0; i < copy.needs.size(); ++i)
    source.beside[&source_.tensors()[copy.needs[i]]] = std::move(needed[i]);
  return source;
}

/// Sets the converters of the outlets of the tensor under way.
Result<void> Scatter::begin_conversions() {
  const auto copies = std::span(copies_).subspan(next_, outlets_.size());
  const format::TensorEntry& tensor = source_.tensors()[copies[0].tensor];
  std::vector<Conversion> conversions;
  std::vector<uint32_t> needs;
  for (const Copy& copy : copies) {
    conversions.push_back(copy.conversion);
    if (!copy.needs.empty()) needs = copy.needs;
  }
  std::vector<std::vector<std::byte>> needed;
  std::vector<format::Digest> digests;
  for (const uint32_t index : needs) {
    TRY_ASSIGN(std::vector<std::byte> stored, read_(index));
    format::Sha256 hash;
    hash.update(stored);
    digests.push_back(hash.finish());
    needed.push_back(std::move(stored));
  }
  std::vector<std::unique_ptr<Converter>> converters;
  if (decodes(conversions.front())) {
    DSPACK_CHECK(copies.size() == 1, "codes of which more than values are made");
    TRY_ASSIGN(MatrixSource source, matrix_source(copies[0], std::move(needed)));
    converters.push_back(make_matrix_decoder(std::move(source), conversions.front()));
  } else {
    std::vector<float> scales;
    if (!needs.empty()) scales = scale_values(source_.tensors()[needs.front()].dtype, needed.front());
    converters = make_converters(conversions, tensor, scales);
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!converters[i]) continue;
    outlets_[i]->convert(std::move(converters[i]), copies[i].needs.empty() ? std::vector<format::Digest>() : digests);
  }
  return {};
}

/// Closes the tensor that ends here, and following tensors of zero bytes.
Result<void> Scatter::end_tensors() {
  while (next_ < copies_.size()) {
    const ByteRange range = copies_[next_].source;
    if (range.size() != 0 && (outlets_.empty() || at_ != range.end)) break;
    if (outlets_.empty()) TRY(begin_tensors(0));
    for (size_t i = 0; i < outlets_.size(); ++i) {
      auto digests = outlets_[i]->finish();
      if (!digests)
        return digests.error().in(fmt::format("tensor \"{}\"", source_.tensors()[copies_[next_].tensor].name));
      targets_.close(copies_[next_ + i], outlets_[i]->target(), *digests);
      done_.tensors.push_back(std::move(*digests));
    }
    next_ += outlets_.size();
    outlets_.clear();
  }
  return {};
}

Result<ShardDone> scatter_shard(const Plan& plan, const format::Checkpoint& source, uint64_t shard,
                                format::Repository& repository, TensorTargets& targets, format::Progress& progress,
                                const std::stop_token& stop) {
  const format::CheckpointFile& file = source.files()[shard];
  Scatter scatter(plan, source, shard, targets, tensor_reading(repository, source, stop));
  if (!plan.reads[shard].ranges.empty()) {
    TRY_ASSIGN(const auto bytes, format::open_catalogued(repository, file, stop));
    const format::ByteSink sink = [&](std::span<const std::byte> piece) -> Result<void> {
      TRY(scatter.take(piece));
      progress.advanced(piece.size());
      return {};
    };
    for (const ByteRange& range : plan.reads[shard].ranges) {
      TRY(scatter.begin_range(range.begin));
      TRY(bytes->stream(range, sink, stop));
    }
  }
  auto done = scatter.finish();
  if (!done) return done.error().in(repository.locate(file.path));
  progress.item_done();
  return done;
}

}  // namespace dspack::reshard
