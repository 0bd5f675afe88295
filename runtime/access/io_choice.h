// How the experts of a local folder are read: what the user asks for, or what a short measurement finds to be faster.
// Threads: choose_io uses some threads of its own and returns when they have ended. Lifetime: values. Errors: those of
// reading; unsupported (direct reads were asked for and the disk has none); cancelled.
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

/// What was chosen, and from what.
struct IoChoice {
  format::ReadMode mode = format::ReadMode::buffered;
  bool is_required = false;                  // asked for by the user
  std::string reason;                        // for people
  std::optional<double> direct_rate = {};    // bytes a second, as all rates
  std::optional<double> buffered_rate = {};  // of what the page cache did not hold
  std::optional<double> cached_rate = {};    // of what it held
  std::optional<double> cached_share = {};   // of the bytes of the experts that were looked at
  // At which one thread goes through memory: pages of a file, and memory of the device, whose pages may be larger.
  std::optional<double> mapped_rate = {};
  std::optional<double> memory_rate = {};
  /// Weights that all have room are to be used where the page cache has them.
  bool in_place = false;
  double seconds = 0;  // that this took
};

/// How much is measured.
struct IoProbe {
  uint64_t small_bytes = 1'000'000'000;  // fewer bytes of experts are not measured: page cache and slots hold them all
  double seconds = 0.3;                  // no new round after this time
  uint32_t experts = 48;                 // looked at
  uint64_t block_bytes = 2ULL << 20;     // smaller than real ones, for the sake of slow disks
  unsigned depth = kLocalDepth;
  uint64_t seed = 1;
  kernels::Device* device =
      nullptr;  // read into memory of its kind, as slots have; nullptr or no host's: into ordinary memory
};

[[nodiscard]] Result<IoChoice> choose_io(format::Repository& repository, const format::Checkpoint& checkpoint,
                                         IoMethod asked, const IoProbe& probe, const std::stop_token& stop);

/// For FolderTier.
[[nodiscard]] FolderTierOptions folder_options(const IoChoice& choice, bool verify);

/// The object "io" of `--stats`.
[[nodiscard]] format::Json to_json(const IoChoice& choice);

}  // namespace dspack::runtime
