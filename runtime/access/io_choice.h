// How the experts of a local folder are read: as the user asks, or by the method that a short measurement finds to be
// faster.
// Threads: choose_io starts threads and joins them before it returns. Lifetime: values. Errors: those of reading;
// unsupported (direct reads were asked for, but the disk has none); cancelled.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "format/checkpoint.h"
#include "format/json.h"
#include "format/source/repository.h"
#include "kernels/ops.h"
#include "runtime/access/folder_tier.h"

namespace dspack::runtime {

enum class IoMethod { automatic, direct, buffered, mapped, in_place };

/// "auto", "direct", "buffered", "mmap", "in-place".
[[nodiscard]] std::string_view to_string(IoMethod method);
[[nodiscard]] std::optional<IoMethod> parse_io_method(std::string_view name);

/// The chosen method, and the measurements that led to it.
struct IoChoice {
  format::ReadMode mode = format::ReadMode::buffered;
  bool is_required = false;                  // asked for by the user
  std::string reason;                        // for people
  std::optional<double> direct_rate = {};    // bytes per second, as all rates
  std::optional<double> buffered_rate = {};  // from blocks outside the page cache
  std::optional<double> cached_rate = {};    // from blocks in the page cache
  std::optional<double> cached_share = {};   // share of the examined experts' bytes in the page cache
  // Rates at which one thread reads memory: mapped pages of a file, and the device's memory, whose pages may be larger.
  std::optional<double> mapped_rate = {};
  std::optional<double> memory_rate = {};
  /// Use weights that all fit in memory where the page cache has them.
  bool in_place = false;
  double seconds = 0;  // taken by the choice
};

/// How much is measured.
struct IoProbe {
  uint64_t small_bytes = 1'000'000'000;  // with fewer bytes of experts, measure nothing: page cache and slots hold them
  double seconds = 0.3;                  // no new round after this time
  uint32_t experts = 48;                 // examined
  uint64_t block_bytes = 2ULL << 20;     // smaller than real reads, for slow disks
  unsigned depth = kLocalDepth;
  uint64_t seed = 1;
  kernels::Device* device =
      nullptr;  // read into its memory, as slots do; nullptr or not the host: into ordinary memory
};

[[nodiscard]] Result<IoChoice> choose_io(format::Repository& repository, const format::Checkpoint& checkpoint,
                                         IoMethod asked, const IoProbe& probe, const std::stop_token& stop);

/// The choice as options of a FolderTier.
[[nodiscard]] FolderTierOptions folder_options(const IoChoice& choice, bool verify);

/// The object "io" of `--stats`.
[[nodiscard]] format::Json to_json(const IoChoice& choice);

}  // namespace dspack::runtime
