// A model put together by hand, with an executor in front of the real one that remembers every routing decision.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/model/mtp.h"

namespace dspack::test {

/// Passes every call on, and keeps the ids that it was given.
class RecordingExecutor final : public runtime::ExpertExecutor {
 public:
  RecordingExecutor(kernels::Queue& queue, runtime::ExpertExecutor& inner, uint32_t top_k)
      : queue_(queue), inner_(inner), top_k_(top_k) {}

  void begin_pass(const runtime::ExpertPass& pass) override { inner_.begin_pass(pass); }
  void accept_drafts(uint32_t rows) override { inner_.accept_drafts(rows); }
  Result<void> run(const runtime::RoutedTokens& tokens, const kernels::Rows& y, const std::stop_token& stop) override {
    std::vector<uint32_t> ids(size_t{tokens.x.rows} * top_k_);
    queue_.download(std::as_writable_bytes(std::span(ids)), tokens.ids);
    queue_.synchronize();
    auto& all = routes_[tokens.layer.value];
    all.insert(all.end(), ids.begin(), ids.end());
    return inner_.run(tokens, y, stop);
  }

  [[nodiscard]] bool wants_forecast() const override { return inner_.wants_forecast(); }
  void expect(LayerId layer, std::span<const ExpertId> experts) override { inner_.expect(layer, experts); }

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
  runtime::AttentionForm attention = runtime::AttentionForm::absorbed;
  Dtype kv_dtype = Dtype::f32;
  runtime::LayerStreaming streaming = {};
};

class RecordingModel {
 public:
  explicit RecordingModel(const std::filesystem::path& folder, const RigOptions& options = {}) {
    auto repository = format::open_repository(folder.string(), {}, format::posix_file_system());
    REQUIRE_MESSAGE(repository, (repository ? "" : repository.error().message));
    repository_ = std::move(*repository);
    auto config = runtime::read_model_config(*repository_, {});
    REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
    auto checkpoint = format::Checkpoint::open(*repository_, 2, {});
    REQUIRE_MESSAGE(checkpoint, (checkpoint ? "" : checkpoint.error().message));
    checkpoint_ = std::make_unique<format::Checkpoint>(std::move(*checkpoint));
    auto device = kernels::make_cpu_device({.threads = options.threads, .instruction_set = {}});
    REQUIRE(device);
    device_ = std::move(*device);
    queue_ = device_->make_queue();
    assemble(*config, options);
  }

  [[nodiscard]] runtime::Model& model() { return *model_; }
  [[nodiscard]] kernels::Queue& queue() { return *queue_; }
  /// The model's MTP module, loaded when first asked for.
  [[nodiscard]] runtime::MtpModule& mtp() {
    if (mtp_ == nullptr) {
      auto module = runtime::MtpModule::load(
          {.device = *device_, .queue = *queue_, .files = *files_, .fp8_block = model_->config().fp8_block}, *model_,
          {});
      REQUIRE_MESSAGE(module, (module ? "" : module.error().message));
      mtp_ = std::move(*module);
    }
    return *mtp_;
  }
  [[nodiscard]] const RecordingExecutor& recorder() const { return *recorder_; }
  [[nodiscard]] const runtime::StreamedStore& store() const { return *store_; }
  [[nodiscard]] const runtime::CheckpointFiles& files() const { return *files_; }

 private:
  void assemble(const runtime::ModelConfig& config, const RigOptions& options) {
    storage_ = std::make_unique<runtime::LocalStorage>(*repository_, *checkpoint_,
                                                       runtime::LocalStorageOptions{.max_open = 16});
    files_ = std::make_unique<runtime::CheckpointFiles>(*storage_);
    const runtime::LoadContext context{
        .device = *device_, .queue = *queue_, .files = *files_, .fp8_block = config.fp8_block};
    auto store = runtime::StreamedStore::make(
        *device_, *storage_,
        {.shape = {.hidden = config.hidden, .expert_inner = config.expert_inner, .fp8_block = config.fp8_block},
         .slots = options.slots,
         .policy = [](uint64_t, uint64_t) { return std::make_unique<runtime::LruPolicy>(); }});
    REQUIRE_MESSAGE(store, (store ? "" : store.error().message));
    store_ = std::move(*store);
    auto executor = runtime::GroupedExecutor::make(*device_, *queue_, *store_,
                                                   {.hidden = config.hidden,
                                                    .expert_inner = config.expert_inner,
                                                    .experts = config.experts,
                                                    .top_k = config.top_k,
                                                    .wave_tokens = options.wave_tokens});
    REQUIRE(executor);
    executor_ = std::move(*executor);
    recorder_ = std::make_unique<RecordingExecutor>(*queue_, *executor_, config.top_k);
    auto model = runtime::Model::load(context, config,
                                      {.context = options.context,
                                       .max_rows = options.max_rows,
                                       .wave_rows = options.wave_rows,
                                       .attention = options.attention,
                                       .kv_dtype = options.kv_dtype,
                                       .layer_map = options.layer_map,
                                       .streaming = options.streaming},
                                      *recorder_, {});
    REQUIRE_MESSAGE(model, (model ? "" : model.error().message));
    model_ = std::move(*model);
  }

  std::unique_ptr<format::Repository> repository_;
  std::unique_ptr<format::Checkpoint> checkpoint_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Queue> queue_;
  std::unique_ptr<runtime::LocalStorage> storage_;
  std::unique_ptr<runtime::CheckpointFiles> files_;
  std::unique_ptr<runtime::StreamedStore> store_;
  std::unique_ptr<runtime::GroupedExecutor> executor_;
  std::unique_ptr<RecordingExecutor> recorder_;
  std::unique_ptr<runtime::Model> model_;
  std::unique_ptr<runtime::MtpModule> mtp_;
};

}  // namespace dspack::test
