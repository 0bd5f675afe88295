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

RecordingModel::RecordingModel(const std::filesystem::path& folder, const RigOptions& options) {
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
  if (options.is_deferred) device_ = std::make_unique<DeferredDevice>(std::move(device_));
  queue_ = device_->make_queue();
  assemble(*config, options);
}

RecordingModel::~RecordingModel() = default;

runtime::Sequence RecordingModel::sequence(runtime::Model::Drafting drafting) {
  auto sequence = model_->make_sequence(drafting);
  REQUIRE_MESSAGE(sequence, (sequence ? "" : sequence.error().message));
  return std::move(*sequence);
}

runtime::Session RecordingModel::session(const std::optional<runtime::SpeculationOptions>& speculation) {
  if (speculation) (void)mtp();
  return {engine(), sequence(speculation ? runtime::Model::Drafting::mtp : runtime::Model::Drafting::none),
          speculation};
}

const runtime::MtpModule& RecordingModel::mtp() {
  if (mtp_ == nullptr) {
    auto module = runtime::MtpModule::load(context(), *model_, {});
    REQUIRE_MESSAGE(module, (module ? "" : module.error().message));
    mtp_ = std::move(*module);
  }
  return *mtp_;
}

void RecordingModel::assemble(const runtime::ModelConfig& config, const RigOptions& options) {
  storage_ =
      std::make_unique<runtime::LocalStorage>(*repository_, *checkpoint_, runtime::LocalStorageOptions{.max_open = 16});
  files_ = std::make_unique<runtime::CheckpointFiles>(*storage_);
  const runtime::LoadContext context{
      .device = *device_, .queue = *queue_, .files = *files_, .fp8_block = config.fp8_block};
  runtime::StreamedStoreOptions store{
      .shape = {.hidden = config.hidden, .expert_inner = config.expert_inner, .fp8_block = config.fp8_block},
      .slots = options.slots,
      .policy = [](uint64_t, uint64_t) { return std::make_unique<runtime::LruPolicy>(); }};
  for (const auto& [key, tensors] : checkpoint_->experts())
    store.layers.insert(key.layer);
  runtime::RoutedExperts::Options routed{.store = store,
                                         .shape = {.hidden = config.hidden,
                                                   .expert_inner = config.expert_inner,
                                                   .experts = config.experts,
                                                   .top_k = config.top_k,
                                                   .wave_tokens = options.wave_tokens}};
  if (options.is_deferred) routed.placement = runtime::ExpertPlacement::resident;
  auto experts = runtime::RoutedExperts::make({.device = *device_, .queue = *queue_}, *storage_, routed, {});
  REQUIRE_MESSAGE(experts, (experts ? "" : experts.error().message));
  experts_ = std::move(*experts);
  recorder_ = std::make_unique<RecordingExecutor>(*queue_, *experts_, config.top_k);
  auto model = runtime::Model::load(context, config,
                                    {.context = options.context,
                                     .max_rows = options.max_rows,
                                     .wave_rows = options.wave_rows,
                                     .kv_dtype = options.kv_dtype,
                                     .layer_map = options.layer_map,
                                     .streaming = options.streaming},
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
