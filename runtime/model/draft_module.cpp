#include "runtime/model/draft_module.h"

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/weights/find_tensor.h"
#include "runtime/model/dspark.h"
#include "runtime/model/mtp.h"

namespace dspack::runtime {

std::string DraftModule::name_of(const ModelConfig& config, std::string_view part, uint32_t place) {
  return fmt::format("{}.{}", config.names->layer(LayerId(config.layers + place)), part);
}

bool DraftModule::is_present(const format::Checkpoint& checkpoint, const ModelConfig& config) {
  const std::string_view first = config.dspark    ? "main_proj.weight"
                                 : config.streams ? "e_proj.weight"
                                                  : "eh_proj.weight";
  return config.mtp_layers > 0 && format::find_tensor(checkpoint, name_of(config, first)).has_value();
}

Result<std::unique_ptr<DraftModule>> DraftModule::load(const LoadContext& context, const Model& model,
                                                       const std::stop_token& stop) {
  std::unique_ptr<DraftModule> module;
  if (model.config().dspark) {
    module.reset(new DsparkModule(context, model));
  } else {
    module.reset(new MtpModule(context, model));
  }
  const uint64_t before = context.access.bytes_read(WeightPurpose::always_needed);
  TRY(module->load_all(context, stop));
  module->bytes_read_ = context.access.bytes_read(WeightPurpose::always_needed) - before;
  return module;
}

Result<void> DraftModule::load_layers(const LoadContext& context, const std::stop_token& stop) {
  for (const LayerId layer : layers()) {
    TRY_ASSIGN(auto weights, load_layer(context, model_.config(), model_.attention(), layer, stop));
    work_ += weights->work;
    layers_.push_back(std::move(weights));
  }
  return {};
}

Result<uint64_t> DraftModule::bytes_for(const LoadContext& context, const ModelConfig& config, uint32_t positions,
                                        const AttentionOptions& attention, uint32_t sequences) {
  const std::vector<LayerId> layers = config.draft_layers();
  const KvShape shape = kv_shape(config, attention, layers);
  const auto cache = KvCache::bytes_of(shape.layers, positions, shape.planes);
  if (!cache) return Error{ErrorKind::budget, "the MTP module's KV cache would exceed 2^64 bytes; use less --ctx"};
  TRY_ASSIGN(uint64_t bytes,
             config.dspark ? DsparkModule::own_bytes(context, config) : MtpModule::own_bytes(context, config));
  for (const LayerId layer : layers) {
    LayerWeights weights;
    TRY_ASSIGN(const WeightGroup group, find_layer(context, config, attention, layer, weights));
    bytes += group.size_bytes();
  }
  const uint64_t state = saturating_add(*cache, MtpState::residual_bytes_for(config, positions));
  return saturating_add(saturating_mul(state, sequences), bytes);
}

}  // namespace dspack::runtime
