// A model that is ready to run, assembled from a checkpoint: device, expert store, executor, model. Threads:
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
  std::optional<uint32_t> context;  // positions; absent: the model's limit, but at most kDefaultContext
  uint32_t sequences = 1;           // conversations at once, each with its own KV cache
  uint64_t beside_bytes = 0;        // host memory that the caller will need: a server's requests, a cache
  unsigned threads = 0;             // 0: one per available core
  std::string instruction_set;      // empty: the widest; see kernels::CpuOptions
  std::optional<format::LayerSelection> layers{};  // absent: the repository's layer map, else all
  IoMethod io = IoMethod::automatic;               // how a local folder is read
  bool verify = false;                             // check every expert's digest when it is read
  std::string policy{kDefaultPolicy};              // eviction of experts: eviction_policy.h
  std::string route_trace = {};                    // file for the run's routes; empty: none
  MemoryOptions memory = {};
  DeviceOptions device = {};
  PrefetchMode prefetch = PrefetchMode::automatic;  // reading experts before they are needed
  std::optional<uint64_t> max_fetch = {};           // StreamedStoreOptions::max_fetch
  std::optional<uint64_t> prompt_tokens = {};       // the first prompt's: check max_fetch before reading weights
  std::shared_ptr<format::Progress> progress = {};  // receives the progress of loading; may be null
  RemoteAccess remote = {};                         // for the caller that opens the place
  /// Drafting with the MTP module. Unset: none. A fixed number of drafts needs a module (errors: unsupported,
  /// not_found); without a number, a model that has no module runs without drafts.
  std::optional<SpeculationOptions> speculation = {};
};

/// V3's cache takes 577 MB at this length. A longer context must be requested.
inline constexpr uint32_t kDefaultContext = 4096;
/// If the cache of kDefaultContext positions would take more than this, since the model passes very many layers, the
/// default context is shorter: a file's layer map must not decide how much memory is used.
inline constexpr uint64_t kDefaultCacheBytes = 600'000'000;
/// Most bytes of a companion of a checkpoint; a tokenizer's file is the largest.
inline constexpr uint64_t kMaxTextBytes = format::kTokenizerDocument.bytes;

/// Reads config.json of a repository. Errors: not_found, saying that this is no checkpoint.
[[nodiscard]] Result<ModelConfig> read_model_config(format::Repository& repository, const std::stop_token& stop);

class LoadedModel {
 public:
  [[nodiscard]] static Result<std::unique_ptr<LoadedModel>> load(std::unique_ptr<CheckpointAccess> access,
                                                                 const LoadOptions& options,
                                                                 const std::stop_token& stop);

  [[nodiscard]] const Model& model() const { return *model_; }
  /// nullptr: no drafting.
  [[nodiscard]] const DraftModule* mtp() const { return mtp_.get(); }
  /// How tokens are drafted; absent: no drafting, for example if --mtp auto found no module.
  [[nodiscard]] const std::optional<SpeculationOptions>& speculation() const { return speculation_; }
  [[nodiscard]] Engine engine() {
    return {.model = *model_, .scratch = *scratch_, .picker = *picker_, .mtp = mtp_.get()};
  }
  /// A new conversation, which drafts if that was requested and there is a module. Sessions may take turns; the memory
  /// plan counts LoadOptions::sequences. Errors: budget.
  [[nodiscard]] Result<Session> start_session();
  /// Thread-safe.
  [[nodiscard]] const PassState& pass_state() const { return scratch_->state(); }
  /// Bytes of activations and tables.
  [[nodiscard]] uint64_t scratch_bytes() const;
  [[nodiscard]] CheckpointAccess& access() { return *access_; }
  [[nodiscard]] const CheckpointAccess& access() const { return *access_; }
  [[nodiscard]] const format::Checkpoint& checkpoint() const { return access_->catalogue(); }
  [[nodiscard]] const RoutedExperts& experts() const { return *experts_; }
  [[nodiscard]] RoutedExperts& experts() { return *experts_; }
  /// The device that runs the model, and its memory.
  [[nodiscard]] const ChosenDevice& chosen() const { return *chosen_; }
  [[nodiscard]] const kernels::Device& device() const { return chosen_->device(); }
  /// The memory plan that was made before loading.
  [[nodiscard]] const MemoryPlan& memory_plan() const { return memory_plan_; }
  [[nodiscard]] kernels::Queue& queue() { return chosen_->queue(); }
  /// Writes the routes recorded so far to their file, if there is one.
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
  std::unique_ptr<DraftModule> mtp_;
  std::optional<SpeculationOptions> speculation_;
};

}  // namespace dspack::runtime
