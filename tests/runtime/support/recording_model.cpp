#include "tests/runtime/support/recording_model.h"

#include <doctest/doctest.h>

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/policy/lru.h"
#include "tests/support/deferred_device.h"

namespace dspack::test {

Result<void> RecordingExecutor::run(const runtime::RoutedTokens& tokens, const kernels::Rows& y,
                                    const std::stop_token& stop) {
  std::vector<uint32_t> ids(size_t{tokens.x.rows} * top_k_);
  queue_.download(std::as_writable_bytes(std::span(ids)), tokens.ids);
  queue_.synchronize();
  auto& all = routes_[tokens.layer.value];
  all.insert(all.end(), ids.begin(), ids.end());
  return inner_.run(tokens, y, stop);
}

RecordingModel::RecordingModel(const std::filesystem::path& folder, const RigOptions& options) : opened_(folder) {
  auto device = kernels::make_cpu_device({.threads = options.threads, .instruction_set = {}});
  REQUIRE(device);
  device_ = std::move(*device);
  if (options.around) device_ = options.around(std::move(device_));
  if (options.is_deferred) {
    auto deferred = std::make_unique<DeferredDevice>(std::move(device_));
    counts_ = deferred->counts();
    device_ = std::move(deferred);
  }
  queue_ = device_->make_queue();
  assemble(options);
}

RecordingModel::~RecordingModel() = default;

runtime::Sequence RecordingModel::sequence(runtime::Model::Drafting drafting) {
  auto sequence = model_->make_sequence(drafting);
  REQUIRE_MESSAGE(sequence, (sequence ? "" : sequence.error().message));
  return std::move(*sequence);
}

runtime::Session RecordingModel::session(const std::optional<runtime::SpeculationOptions>& speculation) {
  if (speculation) (void)drafter();
  return {engine(), sequence(speculation ? runtime::Model::Drafting::mtp : runtime::Model::Drafting::none),
          speculation};
}

const runtime::DraftModule& RecordingModel::drafter() {
  if (drafter_ == nullptr) {
    auto module = runtime::DraftModule::load(context(), *model_, {});
    REQUIRE_MESSAGE(module, (module ? "" : module.error().message));
    drafter_ = std::move(*module);
  }
  return *drafter_;
}

void RecordingModel::assemble(const RigOptions& options) {
  const runtime::ModelConfig& config = opened_.config;
  const runtime::LoadContext context{
      .device = *device_, .queue = *queue_, .access = *opened_.access, .quantization = config.quantization};
  runtime::StreamedStoreOptions store{.shape = runtime::expert_shape(config), .slots = options.slots, .policy = [] {
                                        return std::make_unique<runtime::LruPolicy>();
                                      }};
  for (const auto& [key, tensors] : opened_.checkpoint().experts())
    store.layers.insert(key.layer);
  runtime::RoutedExperts::Options routed{.store = store,
                                         .shape = {.hidden = config.hidden,
                                                   .expert_inner = config.expert_inner,
                                                   .experts = config.experts,
                                                   .top_k = config.top_k,
                                                   .wave_tokens = options.wave_tokens}};
  if (options.is_deferred) routed.placement = runtime::ExpertPlacement::resident;
  auto experts =
      runtime::RoutedExperts::make({.device = *device_, .queue = *queue_}, opened_.access->weights(), routed, {});
  REQUIRE_MESSAGE(experts, (experts ? "" : experts.error().message));
  experts_ = std::move(*experts);
  recorder_ = std::make_unique<RecordingExecutor>(*queue_, *experts_, config.top_k);
  auto model = runtime::Model::load(context, config,
                                    {.context = options.context,
                                     .max_rows = options.max_rows,
                                     .wave_rows = options.wave_rows,
                                     .kv_dtype = options.kv_dtype,
                                     .index_dtype = options.index_dtype,
                                     .layer_map = options.layer_map,
                                     .streaming = options.streaming,
                                     .drafts_in_blocks = config.dspark.has_value()},
                                    *recorder_, {});
  REQUIRE_MESSAGE(model, (model ? "" : model.error().message));
  model_ = std::move(*model);
  auto scratch = model_->make_scratch();
  REQUIRE(scratch);
  scratch_.emplace(std::move(*scratch));
  auto picker = runtime::TokenPicker::make(*model_, *scratch_);
  REQUIRE(picker);
  picker_ = std::move(*picker);
}

}  // namespace dspack::test
