#include "runtime/model/embedding.h"

#include <fmt/format.h>

#include <unordered_map>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

namespace {

// Passes of at most this many rows are staged: a token and its drafts. V3: 459 kB.
constexpr uint32_t kStagedRows = 16;

}  // namespace

Result<Embedding> Embedding::make(const LoadContext& context, std::string_view name, uint32_t vocab, uint32_t hidden) {
  const format::Checkpoint& checkpoint = context.access.catalogue();
  TRY_ASSIGN(const auto* table, format::find_tensor(checkpoint, name, {vocab, hidden}));
  if (table->dtype != Dtype::f32 && table->dtype != Dtype::bf16 && table->dtype != Dtype::f16) {
    return Error{ErrorKind::unsupported, fmt::format("{} is stored as {}; it can be F32, BF16 or F16",
                                                     place_of(checkpoint, *table), to_string(table->dtype))};
  }
  Embedding embedding(context.access, *table, hidden);
  if (context.device.is_host()) return embedding;
  embedding.staging_ = std::make_unique<Staging>();
  TRY_ASSIGN(embedding.staging_->memory, context.device.allocate_host(uint64_t{kStagedRows} * hidden * sizeof(float)));
  return embedding;
}

Result<void> Embedding::read(uint32_t token, std::span<std::byte> stored, std::span<float> into,
                             const std::stop_token& stop) const {
  TRY(access_->read(*table_, token * stored.size(), stored, WeightPurpose::embedding, stop));
  format::widen_to_f32(table_->dtype, stored, into);
  return {};
}

Result<void> Embedding::lookup(kernels::Queue& queue, std::span<const uint32_t> tokens, const kernels::Rows& rows,
                               const std::stop_token& stop) const {
  DSPACK_CHECK(rows.rows == tokens.size() && rows.cols == hidden_, "no place for the rows");
  const uint64_t row_bytes = bytes_of(table_->dtype, hidden_);
  std::vector<format::Extent> wanted;
  for (const uint32_t token : tokens) {
    const uint64_t begin = table_->range.begin + token * row_bytes;
    wanted.push_back({.file = table_->file, .range = {begin, begin + row_bytes}});
  }
  TRY(access_->weights().expect(wanted, stop));
  if (staging_ != nullptr && tokens.size() <= kStagedRows) return look_up_staged(queue, tokens, rows, stop);
  std::vector<std::byte> stored(row_bytes);
  std::unordered_map<uint32_t, std::vector<float>> seen;  // a token that occurs again is not read again
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    const auto [place, is_new] = seen.try_emplace(tokens[i]);
    if (is_new) {
      place->second.resize(hidden_);
      TRY(read(tokens[i], stored, place->second, stop));
    }
    queue.upload(rows_of(rows, i, 1).data, std::as_bytes(std::span(place->second)));
  }
  return queue.finish();  // `seen` ends here
}

Result<void> Embedding::look_up_staged(kernels::Queue& queue, std::span<const uint32_t> tokens,
                                       const kernels::Rows& rows, const std::stop_token& stop) const {
  // Blocks only after an abandoned pass: one that ended has long finished its upload.
  if (staging_->sent != nullptr && !staging_->sent->is_reached()) staging_->sent->wait();
  const std::span<std::byte> memory = kernels::host_bytes(*staging_->memory);
  const uint64_t row_bytes = uint64_t{hidden_} * sizeof(float);
  std::vector<std::byte> stored(bytes_of(table_->dtype, hidden_));
  for (uint32_t i = 0; i < tokens.size(); ++i)
    TRY(read(tokens[i], stored, {reinterpret_cast<float*>(memory.data()) + uint64_t{i} * hidden_, hidden_}, stop));
  for (uint32_t i = 0; i < tokens.size(); ++i)
    queue.upload(rows_of(rows, i, 1).data, memory.subspan(i * row_bytes, row_bytes));
  staging_->sent = queue.mark();
  return {};
}

}  // namespace dspack::runtime
