#include "runtime/budget/remembered_times.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dspack::runtime {

namespace {

constexpr double kLargest = 1e15;  // seconds, bytes or a count of a trial

/// Takes the next word of a line, as a number.
template <class T>
std::optional<T> next_number(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  T value{};
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc()) return std::nullopt;
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  return value;
}

bool is_sensible(double value) {
  return std::isfinite(value) && value >= 0 && value <= kLargest;
}

std::optional<uint32_t> count_of(double value) {
  if (value < 1 || value > UINT32_MAX || std::floor(value) != value) return std::nullopt;
  return static_cast<uint32_t>(value);
}

/// Reads and link have the same numbers.
template <class T>
std::optional<T> arrivals_from(std::span<const double> values) {
  if (values.size() != 4 || values[0] <= 0 || values[1] <= 0) return std::nullopt;
  const auto count = count_of(values[2]);
  if (!count) return std::nullopt;
  return T{.one = values[0], .several = values[1], .count = *count, .expert_bytes = static_cast<uint64_t>(values[3])};
}

}  // namespace

RememberedTimes::RememberedTimes(format::FileSystem& files, format::Path file, int64_t now)
    : files_(files), file_(std::move(file)), now_(now) {
  if (file_.empty()) return;
  if (const auto text = format::read_text(files_, file_, kMaxBytes)) parse(*text);
}

void RememberedTimes::parse(std::string_view text) {
  while (!text.empty() && entries_.size() < kMaxEntries) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto key = format::parse_digest(line.substr(0, line.find(' ')));
    line.remove_prefix(std::min(line.find(' '), line.size()));
    const auto at = next_number<int64_t>(line);
    if (!key || !at || *at < 0 || *at > now_) continue;
    Entry entry{.key = *key, .at = *at, .values = {}};
    while (!line.empty() && entry.values.size() < kMaxValues) {
      const auto value = next_number<double>(line);
      if (!value || !is_sensible(*value)) break;
      entry.values.push_back(*value);
    }
    if (line.empty() && !entry.values.empty()) entries_.push_back(std::move(entry));
  }
}

std::optional<std::vector<double>> RememberedTimes::find(const format::Digest& key) {
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found == entries_.end()) return std::nullopt;
  oldest_ = std::min(oldest_.value_or(found->at), found->at);
  return found->values;
}

void RememberedTimes::put(const format::Digest& key, std::vector<double> values) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; });
  if (entries_.size() >= kMaxEntries) entries_.erase(entries_.begin());
  entries_.push_back({.key = key, .at = now_, .values = std::move(values)});
  is_changed_ = true;
}

Result<void> RememberedTimes::save() {
  if (!is_changed_ || file_.empty()) return {};
  std::string text;
  for (const Entry& entry : entries_)
    text += fmt::format("{} {} {}\n", format::to_hex(entry.key), entry.at, fmt::join(entry.values, " "));
  TRY(files_.make_private_folders(file_.parent_path()));
  TRY(format::write_sealed(files_, file_, text));
  is_changed_ = false;
  return {};
}

std::optional<int64_t> RememberedTimes::age() const {
  return oldest_ ? std::optional(now_ - *oldest_) : std::nullopt;
}

std::vector<double> to_values(const ComputeTimes& times) {
  return {times.dense_layer, times.moe_layer, times.experts, times.distinct, times.head, times.expert_bytes};
}

std::vector<double> to_values(const ReadTimes& times) {
  return {times.one, times.several, static_cast<double>(times.count), static_cast<double>(times.expert_bytes)};
}

std::vector<double> to_values(const LinkTimes& times) {
  return {times.one, times.several, static_cast<double>(times.count), static_cast<double>(times.expert_bytes)};
}

template <>
std::optional<ComputeTimes> from_values(std::span<const double> values) {
  if (values.size() != 6) return std::nullopt;
  return ComputeTimes{.dense_layer = values[0],
                      .moe_layer = values[1],
                      .experts = values[2],
                      .distinct = values[3],
                      .head = values[4],
                      .expert_bytes = values[5]};
}

template <>
std::optional<ReadTimes> from_values(std::span<const double> values) {
  return arrivals_from<ReadTimes>(values);
}

template <>
std::optional<LinkTimes> from_values(std::span<const double> values) {
  return arrivals_from<LinkTimes>(values);
}

}  // namespace dspack::runtime
