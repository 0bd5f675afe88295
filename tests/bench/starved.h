// What the benchmarks of starved decoding share: their options, and a model with few slots on a tier of a set speed.
// Threads: single-thread. Errors end the program.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/generate/loaded_model.h"
#include "tests/bench/throttled_tier.h"

namespace dspack::runtime {

template <class T>
T value_of(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(1);
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct StarvedOptions {
  std::string folder;
  double slots_percent = 25;
  uint32_t tokens = 64;  // of each round
  int rounds = 5;
  double megabytes_per_second = 0;  // 0: as fast as the folder's disk
  double delay_us = 100;            // of each read, if the speed is set
  unsigned threads = 0;
  PrefetchMode prefetch = PrefetchMode::off;
};

/// DIR [SLOTS %] [TOKENS] [ROUNDS] [MB/s] [DELAY us] [THREADS]
inline StarvedOptions parse_starved(int argc, char** argv, const char* program) {
  if (argc < 2) {
    fmt::print(stderr, "usage: {} DIR [SLOTS %] [TOKENS] [ROUNDS] [MB/s, 0: as the disk is] [DELAY us] [THREADS]\n",
               program);
    std::exit(2);
  }
  const auto number = [&](int i, double otherwise) { return argc > i ? std::atof(argv[i]) : otherwise; };
  StarvedOptions options{.folder = argv[1]};
  options.slots_percent = number(2, options.slots_percent);
  options.tokens = static_cast<uint32_t>(number(3, options.tokens));
  options.rounds = static_cast<int>(number(4, options.rounds));
  options.megabytes_per_second = number(5, options.megabytes_per_second);
  options.delay_us = number(6, options.delay_us);
  options.threads = static_cast<unsigned>(number(7, options.threads));
  return options;
}

inline std::unique_ptr<LoadedModel> load_starved(const StarvedOptions& options, uint32_t context,
                                                 std::optional<SpeculationOptions> speculation) {
  CheckpointPlace place =
      make_folder_place(value_of(format::open_repository(options.folder, {}, format::posix_file_system())));
  LoadOptions load{.context = context, .threads = options.threads, .instruction_set = {}};
  load.memory.experts = Amount{.number = 0, .percent = static_cast<double>(options.slots_percent)};
  load.speculation = speculation;
  load.prefetch = options.prefetch;
  if (options.megabytes_per_second > 0) {
    place.open_tier = [&options, open = std::move(place.open_tier)](
                          format::Checkpoint& catalogue, std::optional<std::span<const uint32_t>> wanted,
                          const LocalAccess& local, const std::stop_token& stop) -> Result<OpenedTier> {
      TRY_ASSIGN(OpenedTier opened, open(catalogue, wanted, local, stop));
      opened.tier = std::make_unique<ThrottledTier>(
          std::move(opened.tier), Throttle{.bytes_per_second = 1e6 * options.megabytes_per_second,
                                           .delay = std::chrono::duration<double>(1e-6 * options.delay_us)});
      return opened;
    };
  }
  return value_of(LoadedModel::load(std::make_unique<CheckpointAccess>(std::move(place)), load, {}));
}

}  // namespace dspack::runtime
