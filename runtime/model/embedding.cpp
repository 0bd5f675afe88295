#include "runtime/model/embedding.h"

#include <fmt/format.h>

#include <unordered_map>
#include <vector>

#include "runtime/weights/scratch.h"

namespace dspack::runtime {

Result<Embedding> Embedding::make(CheckpointAccess& access, std::string_view name, uint32_t vocab, uint32_t hidden) {
  const format::Checkpoint& checkpoint = access.catalogue();
  TRY_ASSIGN(const auto* table, format::find_tensor(checkpoint, name, {vocab, hidden}));
  if (table->dtype != Dtype::f32 && table->dtype != Dtype::bf16 && table->dtype != Dtype::f16) {
    return Error{ErrorKind::unsupported, fmt::format("{} is stored as {}; it can be F32, BF16 or F16",
                                                     place_of(checkpoint, *table), to_string(table->dtype))};
  }
  return Embedding(access, *table, hidden);
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
  std::vector<std::byte> stored(row_bytes);
  std::unordered_map<uint32_t, std::vector<float>> seen;  // a token that occurs again is not read again
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    const auto [place, is_new] = seen.try_emplace(tokens[i]);
    if (is_new) {
      TRY(access_->read(*table_, tokens[i] * row_bytes, stored, WeightPurpose::embedding, stop));
      place->second.resize(hidden_);
      format::widen_to_f32(table_->dtype, stored, place->second);
    }
    queue.upload(rows_of(rows, i, 1).data, std::as_bytes(std::span(place->second)));
  }
  return queue.finish();  // `seen` ends here
}

}  // namespace dspack::runtime
