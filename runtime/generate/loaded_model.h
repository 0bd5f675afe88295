// A model that is ready to run, put together from a checkpoint: device, expert store, executor, model. Threads:
// single-thread. Lifetime: owns all of its parts and the access to the checkpoint. Errors: those of every part;
// not_found for a place that holds no checkpoint.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "format/json.h"
#include "format/layer_map.h"
#include "format/source/repository.h"
#include "runtime/access/checkpoint_access.h"
#include "runtime/budget/memory_plan.h"
#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/routed_experts.h"
#include "runtime/experts/trace/route_recorder.h"
#include "runtime/generate/device_choice.h"
#include "runtime/generate/session.h"

namespace dspack::runtime {

struct LoadPlan;

struct LoadOptions {
  std::optional<uint32_t> context;  // positions; absent: what the model allows, but at most kDefaultContext
  uint32_t sequences = 1;           // conversations at once, each with a KV cache of its own
  uint64_t beside_bytes = 0;    // of the host's memory, that the caller is going to take: a server's requests, a cache
  unsigned threads = 0;         // 0: one per available core
  std::string instruction_set;  // empty: the widest; see kernels::CpuOptions
  std::optional<format::LayerSelection> layers{};  // absent: the repository's layer map, else all
  IoMethod io = IoMethod::automatic;               // how a local folder is read
  bool verify = false;                             // every expert against its digest when it is read
  std::string policy{kDefaultPolicy};              // which expert leaves a slot: eviction_policy.h
  std::string route_trace = {};                    // file for the routes of the run; empty: none
  MemoryOptions memory = {};
  DeviceOptions device = {};
  PrefetchMode prefetch = PrefetchMode::automatic;  // reading experts before they are wanted
  std::optional<uint64_t> max_fetch = {};           // of StreamedStoreOptions
  std::optional<uint64_t> prompt_tokens = {};       // of the first prompt: max_fetch is judged before weights are read
  std::shared_ptr<format::Progress> progress = {};  // of loading; null: nobody looks
  RemoteAccess remote = {};                         // for whoever opens the place
  /// Drafting with the MTP module. Unset: none. A number of drafts needs a module (errors: unsupported, not_found);
  /// without a number a model that has none runs without.
  std::optional<SpeculationOptions> speculation = {};
};

/// V3's cache takes 577 MB at this length; longer is asked for.
inline constexpr uint32_t kDefaultContext = 4096;
/// Where the cache of so many positions would take more than this, of a model that passes very many layers, it is
/// shorter until more is asked for: how often a file lets layers be passed does not decide how much memory is taken.
inline constexpr uint64_t kDefaultCacheBytes = 600'000'000;
/// Of any companion of a checkpoint; a tokenizer's file is the largest.
inline constexpr uint64_t kMaxTextBytes = format::kTokenizerDocument.bytes;

/// config.json of a repository. Errors: not_found, saying that this is no checkpoint.
[[nodiscard]] Result<ModelConfig> read_model_config(format::Repository& repository, const std::stop_token& stop);

class LoadedModel {
 public:
  [[nodiscard]] static Result<std::unique_ptr<LoadedModel>> load(std::unique_ptr<CheckpointAccess> access,
                                                                 const LoadOptions& options,
                                                                 const std::stop_token& stop);

  [[nodiscard]] const Model& model() const { return *model_; }
  /// nullptr: no drafting.
  [[nodiscard]] const MtpModule* mtp() const { return mtp_.get(); }
  /// How tokens are drafted; absent: not at all, also where --mtp auto found no module.
  [[nodiscard]] const std::optional<SpeculationOptions>& speculation() const { return speculation_; }
  [[nodiscard]] Engine engine() {
    return {.model = *model_, .scratch = *scratch_, .picker = *picker_, .mtp = mtp_.get()};
  }
  /// A conversation of its own, which drafts if that was asked for and there is a module. Sessions may take turns; the
  /// memory plan counts LoadOptions::sequences. Errors: budget.
  [[nodiscard]] Result<Session> start_session();
  /// Thread-safe.
  [[nodiscard]] const PassState& pass_state() const { return scratch_->state(); }
  /// Activations and tables.
  [[nodiscard]] uint64_t scratch_bytes() const;
  [[nodiscard]] CheckpointAccess& access() { return *access_; }
  [[nodiscard]] const CheckpointAccess& access() const { return *access_; }
  [[nodiscard]] const format::Checkpoint& checkpoint() const { return access_->catalogue(); }
  [[nodiscard]] const RoutedExperts& experts() const { return *experts_; }
  [[nodiscard]] RoutedExperts& experts() { return *experts_; }
  /// Which device runs it, and its memory.
  [[nodiscard]] const ChosenDevice& chosen() const { return *chosen_; }
  [[nodiscard]] const kernels::Device& device() const { return chosen_->device(); }
  /// What was decided about memory before anything was loaded.
  [[nodiscard]] const MemoryPlan& memory_plan() const { return memory_plan_; }
  [[nodiscard]] kernels::Queue& queue() { return chosen_->queue(); }
  /// Brings the recorded routes so far into their file, if there is one.
  [[nodiscard]] Result<void> flush_routes();
  /// Tokens that end an answer: those of generation_config.json, else of config.json.
  [[nodiscard]] const std::vector<uint32_t>& eos_tokens() const { return eos_tokens_; }

 private:
  explicit LoadedModel(std::unique_ptr<CheckpointAccess> access) : access_(std::move(access)) {}
  Result<void> assemble(const ModelConfig& config, const LoadOptions& options, const std::stop_token& stop);
  [[nodiscard]] bool is_in_place(const LoadPlan& plan) const;
  Result<void> make_experts(const LoadContext& context, const ModelConfig& config, const LoadPlan& plan,
                            const LoadOptions& options, PolicyFactory policy, const std::stop_token& stop);
  Result<void> load_mtp(const LoadContext& context, const SpeculationOptions& options, const std::stop_token& stop);

  std::unique_ptr<CheckpointAccess> access_;
  std::vector<uint32_t> eos_tokens_;
  MemoryPlan memory_plan_;
  std::optional<ChosenDevice> chosen_;
  std::unique_ptr<RouteRecorder> recorder_;
  std::unique_ptr<RoutedExperts> experts_;
  std::unique_ptr<Model> model_;
  std::optional<Scratch> scratch_;
  std::unique_ptr<TokenPicker> picker_;
  std::unique_ptr<MtpModule> mtp_;
  std::optional<SpeculationOptions> speculation_;
};

}  // namespace dspack::runtime
