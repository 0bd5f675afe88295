// What bench_tiers runs: tokens of generated routes through a few MoE layers whose experts lie in three tiers, and how
// long that took beside what it could not do without.
// Threads: one. Lifetime: borrows device and experts. Errors: std::runtime_error.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "runtime/experts/routed_experts.h"
#include "tests/bench/cuda_bench.h"
#include "tests/bench/tiers_experts.h"

namespace dspack::bench {

struct TierWork {
  ModelShape shape;
  const RouteProfile* profile = nullptr;
  double attention_seconds = 0;  // products between the layers' experts; 0: none
  uint32_t warm_tokens = 0, tokens = 0, rounds = 0, prompt = 0;
  double forecast_right = 0;  // share of the experts that a forecast names
};

/// One arrangement.
struct TierCase {
  uint64_t vram = 0;  // slots
  uint64_t ram = 0;   // slots; as many as experts: the disk is not read
  runtime::MissMode miss = runtime::MissMode::automatic;
  runtime::PrefetchMode prefetch = runtime::PrefetchMode::off;
};

/// Of one round.
struct Round {
  double seconds = 0;
  runtime::DecodeBound bound = {};     // decode
  runtime::VramPhaseStats vram = {};   // differences, as the next
  runtime::PhaseStats ram = {};        // of the memory below
  double link_rate = 0, cpu_rate = 0;  // bytes a second, as --dev miss=auto knows them

  [[nodiscard]] double over_bound() const { return seconds / bound.seconds(seconds); }
};

/// Memory of the host that the device copies from, kept for the next store: pinning takes seconds.
class PinnedMemory final : public runtime::SlotMemory {
 public:
  explicit PinnedMemory(kernels::Device& device) : device_(device) {}
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> take(uint64_t bytes) override;
  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  class Lent;
  kernels::Device& device_;
  std::multimap<uint64_t, std::unique_ptr<kernels::Buffer>> free_;  // by size
  double seconds_ = 0;
  uint64_t bytes_ = 0;
};

class TierRunner {
 public:
  TierRunner(kernels::Device& device, kernels::Device& host, GeneratedExperts& experts, const TierWork& work);

  /// Bytes a second of copies from pinned memory while nothing else runs.
  [[nodiscard]] double link_rate();
  [[nodiscard]] double disk_rate();
  /// Seconds of a prompt's routed experts, all layers, with those of one layer in device memory.
  [[nodiscard]] double prefill_compute_seconds();
  /// Rounds of decoding; each case takes the same tokens.
  [[nodiscard]] std::vector<Round> decode(const TierCase& what);
  /// Rounds of a prompt, after some decoding.
  [[nodiscard]] std::vector<Round> prefill(const TierCase& what, uint32_t rounds);
  [[nodiscard]] const PinnedMemory& pinned() const { return pinned_; }
  [[nodiscard]] double attention_seconds() const { return attention_launch_seconds_ * attention_launches_; }

 private:
  struct Tiers {
    runtime::StreamedStore* store = nullptr;
    std::unique_ptr<runtime::StreamedStore> own_store;
    std::unique_ptr<runtime::RoutedExperts> executor;
    std::unique_ptr<RouteGenerator> routes;
    std::mt19937 random{7};
  };
  void make_weights();
  [[nodiscard]] std::set<LayerId> layers() const;
  [[nodiscard]] std::unique_ptr<runtime::StreamedStore> make_store(uint64_t slots, runtime::PrefetchMode prefetch);
  [[nodiscard]] std::unique_ptr<runtime::RoutedExperts> make_executor(runtime::StreamedStore& store,
                                                                      const std::set<LayerId>& layers,
                                                                      const TierCase& what);
  [[nodiscard]] Tiers make_tiers(const TierCase& what);
  void warm_up(Tiers& tiers);
  void upload_routes(std::span<const uint16_t> routes, uint32_t rows);
  void decode_token(Tiers& tiers);
  void prefill_layers(runtime::RoutedExperts& executor, uint32_t rows, uint32_t layers);
  [[nodiscard]] std::vector<ExpertId> forecast(Tiers& tiers, std::span<const uint16_t> next);
  [[nodiscard]] Round measured(Tiers& tiers, runtime::Phase phase, const std::function<void()>& run);
  [[nodiscard]] runtime::RoutedTokens routed(uint32_t layer, uint32_t rows) const;
  void attention();
  void shared_expert();

  kernels::Device& device_;
  kernels::Device& host_;
  GeneratedExperts& experts_;
  TierWork work_;
  std::unique_ptr<kernels::Queue> queue_;
  std::unique_ptr<kernels::Buffer> forecast_word_;  // of the host: a forecast comes from the device
  Memory memory_;
  PinnedMemory pinned_;
  std::unique_ptr<runtime::StreamedStore> whole_;  // with a slot for every expert, once it was wanted
  kernels::Rows x_, y_, hidden_row_, inner_row_;
  kernels::Slice ids_, weights_;  // [layers, rows, top_k], [rows, top_k]
  kernels::Weight attention_weight_, shared_in_, shared_out_;
  double attention_launch_seconds_ = 0;
  uint32_t attention_launches_ = 0;
};

}  // namespace dspack::bench
