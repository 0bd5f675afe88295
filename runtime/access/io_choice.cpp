#include "runtime/access/io_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format/base/page_buffer.h"
#include "format/base/page_range.h"
#include "format/base/parallel.h"
#include "format/base/seconds.h"
#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_peak.h"

namespace dspack::runtime {

namespace {

using format::ReadMode;
using Clock = std::chrono::steady_clock;

constexpr std::array<std::pair<IoMethod, std::string_view>, 5> kMethods = {{{IoMethod::automatic, "auto"},
                                                                            {IoMethod::direct, "direct"},
                                                                            {IoMethod::buffered, "buffered"},
                                                                            {IoMethod::mapped, "mmap"},
                                                                            {IoMethod::in_place, "in-place"}}};

// Direct reads may be this much slower: they cost the processor 0.02 s per GB and buffered ones 0.6 s (2026-11), and
// the processor is needed for the experts that have arrived.
constexpr double kDirectAdvantage = 1.1;
// Rows in pages of 4 KiB are read a fifth more slowly than in huge pages. If the system keeps files in large pages,
// there is no difference, and this allows for noise. Not copying saves 0.8 s per GB (2026-11).
constexpr double kLeastMappedRate = 0.93;

std::string_view name_of(ReadMode mode) {
  switch (mode) {
    case ReadMode::buffered:
    case ReadMode::once: return "buffered";
    case ReadMode::direct: return "direct";
    case ReadMode::mapped: return "mmap";
  }
  DSPACK_CHECK(false, "unknown ReadMode");
}

uint64_t expert_bytes(const format::Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const format::TensorEntry& tensor : checkpoint.tensors())
    if (tensor.place.expert) bytes += tensor.range.size();
  return bytes;
}

/// Whole pages of one file.
struct Block {
  uint32_t file = 0;
  ByteRange range;
};

/// Bytes read by one method, and the time taken.
struct Meter {
  uint64_t bytes = 0;
  double seconds = 0;
  [[nodiscard]] std::optional<double> rate() const {
    if (bytes == 0 || seconds <= 0) return std::nullopt;
    return static_cast<double>(bytes) / seconds;
  }
};

class Measurement {
 public:
  Measurement(format::Repository& repository, const format::Checkpoint& checkpoint, const IoProbe& probe)
      : repository_(repository), checkpoint_(checkpoint), probe_(probe) {}

  /// A device's memory may have huge pages, into which a direct read is twice as fast.
  Result<void> allocate() {
    const uint64_t bytes = probe_.block_bytes * probe_.depth;
    if (probe_.device == nullptr || !probe_.device->is_host()) {
      ordinary_ = std::make_unique<PageBuffer>(bytes);
      into_ = ordinary_->bytes();
    } else {
      TRY_ASSIGN(buffer_, probe_.device->allocate(bytes));
      into_ = kernels::host_bytes(*buffer_);
    }
    std::ranges::fill(into_, std::byte{0});  // else page faults cost more than the reads
    return {};
  }

  /// Asks which blocks of random experts are in the page cache.
  Result<void> look(const std::stop_token& stop) {
    std::vector<ExpertKey> keys;
    for (const auto& [key, tensors] : checkpoint_.experts())
      keys.push_back(key);
    std::mt19937_64 random(probe_.seed);
    const size_t some = std::min<size_t>(probe_.experts, keys.size());
    for (size_t i = 0; i < some; ++i) {
      if (stop.stop_requested()) return Error{ErrorKind::cancelled, "stopped on request"};
      std::swap(keys[i], keys[i + random() % (keys.size() - i)]);
      for (const format::Extent& extent : checkpoint_.expert_extents(keys[i]))
        TRY(look_at(extent));
    }
    std::ranges::shuffle(cold_, random);
    return {};
  }

  /// Alternates rounds of both methods, each on new blocks, so that none finds blocks that another brought in.
  Result<void> measure(const std::stop_token& stop) {
    const Clock::time_point start = Clock::now();
    while (cold_.size() >= 2 * size_t{probe_.depth} && seconds_since(start) < probe_.seconds) {
      if (has_direct_) {
        auto done = read_round(ReadMode::direct, cold_, direct_, stop);
        has_direct_ = done.has_value() || done.error().kind != ErrorKind::unsupported;
        if (!done && has_direct_) return done;
      }
      TRY(read_round(ReadMode::once, cold_, buffered_, stop));
    }
    if (!cached_.empty()) TRY(read_round(ReadMode::once, cached_, cached_meter_, stop));
    return {};
  }

  /// Measures how fast a thread reads mapped files and the device's memory. If files cannot be mapped: no rates.
  Result<void> compare_walks(const std::stop_token& stop) {
    const uint64_t room = round_up(probe_.block_bytes, kMapGrid) + kMapGrid;
    TRY_ASSIGN(const PageRange pages, PageRange::make(room * some_.size()));
    std::vector<std::span<std::byte>> mapped, copied;
    for (const Block& block : some_) {
      TRY_ASSIGN(const format::ReadFile* file, open(block.file, ReadMode::once));
      const uint64_t number = mapped.size();
      mapped.push_back(pages.bytes().subspan(number * room + block.range.begin % kMapGrid, probe_.block_bytes));
      copied.push_back(into_.subspan(number * probe_.block_bytes, probe_.block_bytes));
      if (!file->map(block.range.begin, mapped.back())) return {};
    }
    constexpr uint32_t kRounds = 20;
    for (uint32_t round = 0; round < kRounds && !mapped.empty(); ++round) {
      if (stop.stop_requested()) return stopped();
      mapped_rate_ = std::max(mapped_rate_.value_or(0), walk_rate(mapped));
      memory_rate_ = std::max(memory_rate_.value_or(0), walk_rate(copied));
    }
    return {};
  }

  [[nodiscard]] std::optional<double> mapped_rate() const { return mapped_rate_; }
  [[nodiscard]] std::optional<double> memory_rate() const { return memory_rate_; }
  [[nodiscard]] bool has_direct() const { return has_direct_; }
  [[nodiscard]] double cached_share() const {
    return seen_bytes_ == 0 ? 0 : static_cast<double>(cached_bytes_) / static_cast<double>(seen_bytes_);
  }
  [[nodiscard]] std::optional<double> direct_rate() const { return direct_.rate(); }
  [[nodiscard]] std::optional<double> buffered_rate() const { return buffered_.rate(); }
  [[nodiscard]] std::optional<double> cached_rate() const { return cached_meter_.rate(); }

 private:
  static double walk_rate(const std::vector<std::span<std::byte>>& pieces) {
    const Clock::time_point start = Clock::now();
    uint64_t bytes = 0;
    for (const auto piece : pieces) {
      (void)kernels::sum_rows(piece);
      bytes += piece.size();
    }
    return static_cast<double>(bytes) / seconds_since(start);
  }

  Result<void> look_at(const format::Extent& extent) {
    TRY_ASSIGN(const format::ReadFile* file, open(extent.file, ReadMode::once));
    const ByteRange range = extent.range;
    const uint64_t first = round_up(range.begin, kMapGrid);
    if (some_.size() < probe_.depth && first + probe_.block_bytes <= range.end)
      some_.push_back({.file = extent.file, .range = {first, first + probe_.block_bytes}});
    for (uint64_t at = round_up(range.begin, kPageBytes); at + probe_.block_bytes <= range.end;
         at += probe_.block_bytes) {
      const Block block{.file = extent.file, .range = {at, at + probe_.block_bytes}};
      const uint64_t cached = file->cached_bytes(block.range).value_or(0);
      seen_bytes_ += block.range.size();
      cached_bytes_ += cached;
      if (cached == 0) cold_.push_back(block);
      if (cached == block.range.size()) cached_.push_back(block);
    }
    return {};
  }

  /// Opens each file once per method, before the clock starts: a real run has its files open, too.
  Result<const format::ReadFile*> open(uint32_t file, ReadMode mode) {
    auto& known = (mode == ReadMode::direct ? direct_files_ : files_)[file];
    if (known == nullptr) {
      auto opened = repository_.open_file(checkpoint_.files()[file].path, mode);
      if (!opened && opened.error().kind == ErrorKind::unsupported && mode == ReadMode::once)
        opened = repository_.open_file(checkpoint_.files()[file].path, ReadMode::buffered);
      if (!opened) return opened.error();
      known = std::move(*opened);
    }
    return known.get();
  }

  Result<void> read_round(ReadMode mode, std::vector<Block>& blocks, Meter& meter, const std::stop_token& stop) {
    std::vector<std::pair<Block, const format::ReadFile*>> round;
    while (!blocks.empty() && round.size() < probe_.depth) {
      TRY_ASSIGN(const format::ReadFile* file, open(blocks.back().file, mode));
      round.emplace_back(blocks.back(), file);
      blocks.pop_back();
    }
    const Clock::time_point start = Clock::now();
    const auto read = [&](uint64_t number, const std::stop_token&) {
      const auto& [block, file] = round[number];
      return file->read(block.range.begin, into_.subspan(number * probe_.block_bytes, probe_.block_bytes));
    };
    TRY(run_jobs(round.size(), probe_.depth, read, stop));
    meter.seconds += seconds_since(start);
    meter.bytes += round.size() * probe_.block_bytes;
    return {};
  }

  format::Repository& repository_;
  const format::Checkpoint& checkpoint_;
  IoProbe probe_;
  std::unique_ptr<PageBuffer> ordinary_;
  std::unique_ptr<kernels::Buffer> buffer_;
  std::span<std::byte> into_;  // memory of ordinary_ or buffer_
  std::unordered_map<uint32_t, std::unique_ptr<format::ReadFile>> files_, direct_files_;
  std::vector<Block> cold_, cached_;
  std::vector<Block> some_;  // aligned to kMapGrid, in the page cache or not
  uint64_t seen_bytes_ = 0, cached_bytes_ = 0;
  bool has_direct_ = true;
  Meter direct_, buffered_, cached_meter_;
  std::optional<double> mapped_rate_, memory_rate_;
};

std::string megabytes(double rate) {
  return fmt::format("{:.0f} MB/s", rate / 1e6);
}

/// Bytes per second of buffered reads over all experts: some come from the page cache, the others from the disk.
double mixed_rate(const IoChoice& measured) {
  const double share = measured.cached_share.value_or(0);
  const double cold = share < 1 ? (1 - share) / *measured.buffered_rate : 0;
  const double warm = share > 0 && measured.cached_rate ? share / *measured.cached_rate : 0;
  return 1 / (cold + warm);
}

void decide(const Measurement& measurement, IoChoice& choice) {
  choice.direct_rate = measurement.direct_rate();
  choice.buffered_rate = measurement.buffered_rate();
  choice.cached_rate = measurement.cached_rate();
  choice.cached_share = measurement.cached_share();
  choice.mapped_rate = measurement.mapped_rate();
  choice.memory_rate = measurement.memory_rate();
  choice.in_place = choice.mapped_rate && *choice.mapped_rate >= kLeastMappedRate * *choice.memory_rate;
  choice.mode = ReadMode::once;
  if (!measurement.has_direct()) {
    choice.reason = "the disk refuses direct reads";
  } else if (!choice.direct_rate || !choice.buffered_rate) {
    choice.reason =
        fmt::format("the page cache holds {:.0f} % of the experts that were looked at", 100 * *choice.cached_share);
  } else {
    const double buffered = mixed_rate(choice);
    if (*choice.direct_rate * kDirectAdvantage >= buffered) choice.mode = ReadMode::direct;
    choice.reason = fmt::format("direct {}, buffered {} with {:.0f} % in the page cache",
                                megabytes(*choice.direct_rate), megabytes(buffered), 100 * *choice.cached_share);
  }
}

}  // namespace

std::string_view to_string(IoMethod method) {
  return std::ranges::find(kMethods, method, &std::pair<IoMethod, std::string_view>::first)->second;
}

std::optional<IoMethod> parse_io_method(std::string_view name) {
  const auto* found = std::ranges::find(kMethods, name, &std::pair<IoMethod, std::string_view>::second);
  if (found == kMethods.end()) return std::nullopt;
  return found->first;
}

Result<IoChoice> choose_io(format::Repository& repository, const format::Checkpoint& checkpoint, IoMethod asked,
                           const IoProbe& probe, const std::stop_token& stop) {
  if (!repository.is_local()) return IoChoice{.reason = "not a local folder"};
  if (asked != IoMethod::automatic) {
    IoChoice choice{.mode = ReadMode::once, .is_required = true, .reason = "asked for"};
    if (asked == IoMethod::direct) choice.mode = ReadMode::direct;
    if (asked == IoMethod::mapped) choice.mode = ReadMode::mapped;
    choice.in_place = asked == IoMethod::in_place;
    return choice;
  }
  if (expert_bytes(checkpoint) < probe.small_bytes) return IoChoice{.reason = "a small model"};
  const Clock::time_point start = Clock::now();
  Measurement measurement(repository, checkpoint, probe);
  TRY(measurement.allocate());
  TRY(measurement.look(stop));
  TRY(measurement.measure(stop));
  TRY(measurement.compare_walks(stop));
  IoChoice choice;
  decide(measurement, choice);
  choice.seconds = seconds_since(start);
  return choice;
}

FolderTierOptions folder_options(const IoChoice& choice, bool verify) {
  return {.mode = choice.mode, .is_mode_required = choice.is_required, .verify = verify};
}

format::Json to_json(const IoChoice& choice) {
  const std::string_view method =
      choice.in_place && choice.is_required ? to_string(IoMethod::in_place) : name_of(choice.mode);
  format::Json json = {{"method", method}, {"reason", choice.reason}, {"seconds", choice.seconds}};
  const auto add = [&json](const char* key, const std::optional<double>& value) {
    if (value) json[key] = *value;
  };
  add("direct_bytes_per_second", choice.direct_rate);
  add("buffered_bytes_per_second", choice.buffered_rate);
  add("cached_bytes_per_second", choice.cached_rate);
  add("cached_share", choice.cached_share);
  add("mapped_bytes_per_second", choice.mapped_rate);
  add("memory_bytes_per_second", choice.memory_rate);
  return json;
}

}  // namespace dspack::runtime
