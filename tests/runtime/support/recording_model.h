// A model put together by hand, with an executor in front of the real one that remembers every routing decision.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/model/mtp.h"
#include "tests/runtime/support/open_checkpoint.h"
#include "tests/support/deferred_device.h"

namespace dspack::test {

/// Passes every call on, and keeps the ids that it was given.
class RecordingExecutor final : public runtime::ExpertExecutor {
 public:
  RecordingExecutor(kernels::Queue& queue, runtime::ExpertExecutor& inner, uint32_t top_k)
      : queue_(queue), inner_(inner), top_k_(top_k) {}

  void begin_pass(const runtime::ExpertPass& pass) override { inner_.begin_pass(pass); }
  void accept_drafts(uint32_t rows) override { inner_.accept_drafts(rows); }
  Result<void> run(const runtime::RoutedTokens& tokens, const kernels::Rows& y, const std::stop_token& stop) override;

  [[nodiscard]] bool wants_forecast() const override { return inner_.wants_forecast(); }
  void expect(LayerId layer, runtime::ExpertForecast forecast) override { inner_.expect(layer, std::move(forecast)); }

  /// Layer -> expert ids [tokens, top_k].
  [[nodiscard]] const std::map<uint32_t, std::vector<uint32_t>>& routes() const { return routes_; }

 private:
  kernels::Queue& queue_;
  runtime::ExpertExecutor& inner_;
  uint32_t top_k_;
  std::map<uint32_t, std::vector<uint32_t>> routes_;
};

struct RigOptions {
  unsigned threads = 1;
  uint32_t context = 128;
  uint32_t max_rows = 128;
  uint32_t wave_rows = 128;
  uint32_t wave_tokens = 128;
  std::optional<uint64_t> slots = {};
  std::vector<LayerId> layer_map = {};
  Dtype kv_dtype = Dtype::f32;
  Dtype index_dtype = Dtype::f32;
  runtime::LayerStreaming streaming = {};
  /// What the model runs on, put around the CPU's device; empty: that itself.
  std::function<std::unique_ptr<kernels::Device>(std::unique_ptr<kernels::Device>)> around = {};
  /// On a device whose memory the host cannot address (deferred_device.h), with resident experts.
  bool is_deferred = false;
};

class RecordingModel {
 public:
  explicit RecordingModel(const std::filesystem::path& folder, const RigOptions& options = {});
  ~RecordingModel();
  RecordingModel(const RecordingModel&) = delete;
  RecordingModel& operator=(const RecordingModel&) = delete;

  [[nodiscard]] const runtime::Model& model() { return *model_; }
  [[nodiscard]] runtime::Scratch& scratch() { return *scratch_; }
  [[nodiscard]] runtime::TokenPicker& picker() { return *picker_; }
  /// With the module for drafts where it was asked for before.
  [[nodiscard]] runtime::Engine engine() {
    return {.model = *model_, .scratch = *scratch_, .picker = *picker_, .mtp = drafter_.get()};
  }
  [[nodiscard]] runtime::LoadContext context() {
    return {
        .device = *device_, .queue = *queue_, .access = *opened_.access, .quantization = model_->config().quantization};
  }
  [[nodiscard]] runtime::Sequence sequence(runtime::Model::Drafting drafting = runtime::Model::Drafting::none);
  /// A session over a sequence of its own.
  [[nodiscard]] runtime::Session session(const std::optional<runtime::SpeculationOptions>& speculation = {});
  [[nodiscard]] kernels::Queue& queue() { return *queue_; }
  /// The model's module for drafts, loaded when first asked for.
  [[nodiscard]] const runtime::DraftModule& drafter();
  [[nodiscard]] const runtime::MtpModule& mtp() { return dynamic_cast<const runtime::MtpModule&>(drafter()); }
  [[nodiscard]] const RecordingExecutor& recorder() const { return *recorder_; }
  [[nodiscard]] const runtime::StreamedStore& store() { return *experts_->store(); }
  /// Of a deferred device.
  [[nodiscard]] const DeferredCounts& counts() const { return *counts_; }
  [[nodiscard]] const runtime::CheckpointAccess& access() const { return *opened_.access; }

 private:
  void assemble(const RigOptions& options);

  OpenedCheckpoint opened_;
  std::unique_ptr<kernels::Device> device_;
  std::shared_ptr<const DeferredCounts> counts_;
  std::unique_ptr<kernels::Queue> queue_;
  std::unique_ptr<runtime::RoutedExperts> experts_;
  std::unique_ptr<RecordingExecutor> recorder_;
  std::unique_ptr<runtime::Model> model_;
  std::optional<runtime::Scratch> scratch_;
  std::unique_ptr<runtime::TokenPicker> picker_;
  std::unique_ptr<runtime::DraftModule> drafter_;
};

}  // namespace dspack::test
