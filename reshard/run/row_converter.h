// Base class for converters of matrices: collects bytes into whole rows.
// Threads: single-thread. Memory: the rows of one group. Errors: those of `convert`.
#pragma once

#include <algorithm>

#include "reshard/run/converter.h"

namespace dspack::reshard {

/// Bytes as values; an incomplete value at the end is ignored.
template <class T>
std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::ranges::copy(bytes.first(values.size() * sizeof(T)), std::as_writable_bytes(std::span(values)).begin());
  return values;
}

/// Collects the bytes of a matrix into groups of whole rows and converts each group.
class RowConverter : public Converter {
 public:
  RowConverter(uint64_t row_bytes, uint64_t rows_at_once) : group_bytes_(row_bytes * rows_at_once) {
    group_.reserve(group_bytes_);
  }

  Result<void> take(std::span<const std::byte> bytes, const format::ByteSink& sink) override {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), group_bytes_ - group_.size()));
      group_.insert(group_.end(), part.begin(), part.end());
      bytes = bytes.subspan(part.size());
      if (group_.size() == group_bytes_) TRY(end_group(sink));
    }
    return {};
  }

  Result<void> finish(const format::ByteSink& sink) override {
    return group_.empty() ? Result<void>() : end_group(sink);
  }

 protected:
  /// `rows`: a full group of whole rows, or fewer at the end.
  virtual Result<void> convert(std::span<const std::byte> rows, const format::ByteSink& sink) = 0;

 private:
  Result<void> end_group(const format::ByteSink& sink) {
    TRY(convert(group_, sink));
    group_.clear();
    return {};
  }

  uint64_t group_bytes_;
  std::vector<std::byte> group_;
};

}  // namespace dspack::reshard
