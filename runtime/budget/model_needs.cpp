#include "runtime/budget/model_needs.h"

#include <algorithm>
#include <map>

#include "format/base/size.h"
#include "format/compressed/expanding_repository.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/backends/further_device.h"
#include "runtime/experts/routed_experts.h"
#include "runtime/model/draft_module.h"

namespace dspack::runtime {

namespace {

// Memory of a process beyond what is counted below: the heap's bookkeeping, and the touched part of each thread's
// stack. Measured: see docs/experts.md.
constexpr uint64_t kHeapBytes = 6ULL << 20;
constexpr uint64_t kThreadBytes = 256ULL << 10;
// Reading a weight that is stored in another form than it is used in (weight_group.cpp).
constexpr uint64_t kLoadBytes = 8ULL << 20;
// A tokenizer takes ten times the size of its file while it is read (DeepSeek-V3's: 64 MB for 6.4 MB).
constexpr uint64_t kTextFactor = 12;
// A store's bookkeeping per expert: its place and its last use.
constexpr uint64_t kExpertBytes = 1024;
// The most rows of logits in memory at once (session.cpp), and a sampler's bytes per token for one row.
constexpr uint64_t kLogitRows = 64;
constexpr uint64_t kSamplerBytes = 16;
// Rows for which V3 fetches each expert once: a prompt of this length reads one byte of them per 20 kB of activations.
constexpr uint32_t kLongestChunk = 32'768;
// On a GPU: with this many rows each expert of V3 gets 128, whose products run at a large matrix's rate.
constexpr uint32_t kLongestWave = 4096;

// Adds the needs of a device that holds all or some of the experts.
Result<void> add_device_experts(const format::Checkpoint& checkpoint, const DeviceExperts& wanted, MemoryNeeds& needs) {
  const auto all = DeviceCache::bytes_for_all(checkpoint, wanted);
  if (!all && all.error().kind != ErrorKind::not_found) return all.error();
  needs.may_be_resident = all.has_value();
  if (all) needs.resident_expert_bytes = *all;
  TRY_ASSIGN(const auto layouts, lay_out_experts(checkpoint, wanted, ExpertPresence::some));
  needs.device_layouts = device_slot_layouts(layouts, wanted.experts);
  const std::vector<uint64_t> slots = share_slots(needs.layouts, kReaderSlots);
  for (size_t i = 0; i < slots.size(); ++i)
    needs.staging_bytes += slots[i] * needs.layouts[i].slot_bytes;
  return {};
}

ExecutorShape executor_shape(const ModelConfig& config, uint32_t rows) {
  return {.hidden = config.hidden,
          .expert_inner = config.expert_inner,
          .experts = config.experts,
          .top_k = config.top_k,
          .wave_tokens = rows};
}

uint64_t reserve(const ModelConfig& config, const NeedsOptions& options, uint64_t largest_tensor, uint64_t experts) {
  return kHeapBytes + kThreadBytes * options.threads + std::min(2 * largest_tensor, kLoadBytes) +
         kTextFactor * options.text_bytes + kExpertBytes * experts +
         uint64_t{config.layers_by_token} * config.vocab * config.top_k * sizeof(uint32_t) +
         uint64_t{config.vocab} * (kLogitRows * sizeof(float) + kSamplerBytes);
}

// The longest input row of any product.
uint32_t widest_row(const ModelConfig& config) {
  return std::max({config.hidden, config.dense_inner, config.shared_experts * config.expert_inner, config.expert_inner,
                   config.heads * config.value_dim, config.q_rank, config.kv_rank, Residual::width(config)});
}

}  // namespace

PassRows longest_pass(const kernels::Device& device, uint32_t context) {
  const uint32_t chunk = std::min(context, kLongestChunk);
  return {.chunk = chunk, .wave = std::min(chunk, device.is_host() ? kUsualWave : kLongestWave)};
}

kernels::WorkspaceShape workspace_shape(const ModelConfig& config, const ModelOptions& options) {
  return make_attention(config, options.attention(), LayerId(0))->workspace(options.context);
}

Result<MemoryNeeds> find_needs(const LoadContext& context, const ModelConfig& config, const NeedsOptions& options) {
  const format::Checkpoint& checkpoint = context.access.catalogue();
  MemoryNeeds needs;
  std::map<LayerId, uint32_t> uses;
  for (const LayerId layer : options.model.layer_map)
    ++uses[layer];
  for (const auto& [layer, count] : uses) {
    LayerWeights weights;
    TRY_ASSIGN(const WeightGroup group, find_layer(context, config, options.model.attention(), layer, weights));
    needs.layers.push_back({.id = layer, .bytes = group.size_bytes(), .uses = count});
    if (config.is_moe(layer)) needs.experts_per_token += uint64_t{count} * config.top_k;
  }
  TRY_ASSIGN(needs.head_bytes, Model::head_bytes(context, config));
  for (const auto& [layer, count] : uses) {
    const bool has_copy = config.is_by_token(layer) && !context.device.is_host();
    if (has_copy) needs.head_bytes += ExpertsByToken::device_bytes(config);
  }
  if (options.with_mtp) {
    TRY_ASSIGN(needs.mtp_bytes, DraftModule::bytes_for(context, config, options.model.context,
                                                       options.model.attention(), options.sequences));
  }
  const KvShape of_position = kv_shape(config, options.model.attention(), options.model.layer_map);
  const auto kv = KvCache::bytes_of(of_position.layers, options.model.context, of_position.planes);
  if (!kv || __builtin_mul_overflow(*kv, options.sequences, &needs.kv_bytes)) {
    return Error{ErrorKind::budget, "the KV cache would exceed 2^64 bytes; ask for less with --ctx"};
  }
  if (needs.experts_per_token > 0) {
    const ExpertShape shape = expert_shape(config);
    TRY_ASSIGN(needs.layouts, slot_layouts(checkpoint, shape, options.expert_layers));
    if (!context.device.is_host()) {
      TRY(add_device_experts(checkpoint, {.shape = shape, .experts = config.experts, .layers = options.expert_layers},
                             needs));
    }
    needs.top_k = config.top_k;
  }
  uint64_t largest_tensor = 0;
  for (const format::TensorEntry& tensor : checkpoint.tensors())
    largest_tensor = std::max(largest_tensor, tensor.range.size());
  needs.process_bytes = options.process_bytes;
  needs.reserve_bytes = reserve(config, options, largest_tensor, checkpoint.experts().size());
  if (checkpoint.manifest())
    needs.decompression_bytes = options.readers * format::reading_bytes(*checkpoint.manifest());
  needs.longest = {.chunk = options.model.max_rows, .wave = options.model.wave_rows};
  const std::function<uint64_t(PassRows)> of_model = [config, model = options.model](PassRows rows) mutable {
    model.max_rows = rows.chunk;
    model.wave_rows = rows.wave;
    return Model::scratch_bytes_for(config, model);
  };
  const kernels::Device& device = context.device;
  const unsigned computing = options.threads - std::min(options.threads - 1, options.readers - 1);
  const uint64_t choosing = device.is_host() && config.indexer
                                ? kernels::most_choose_bytes(computing, config.indexer->most, config.indexer->dim)
                                : uint64_t{0};
  needs.activation_bytes = [config, choosing, of_model, computing, &device](PassRows rows) {
    const auto placement = device.is_host() ? ExpertPlacement::streamed : ExpertPlacement::resident;
    const uint64_t products =
        device.is_host() ? kernels::most_product_bytes(computing, rows.chunk, widest_row(config)) : uint64_t{0};
    return of_model(rows) + products + choosing +
           RoutedExperts::scratch_bytes_for(device, executor_shape(config, rows.chunk), placement);
  };
  needs.tiered_activation_bytes = [config, of_model, &device](PassRows rows) {
    return of_model(rows) +
           RoutedExperts::scratch_bytes_for(device, executor_shape(config, rows.chunk), ExpertPlacement::tiered);
  };
  needs.further_activation_bytes = [config, &device](PassRows rows) {
    return FurtherDevice::scratch_bytes_for(device, executor_shape(config, rows.chunk));
  };
  needs.further_workspace_bytes = device.workspace_bytes({});
  if (options.host != nullptr && config.top_k > 0) {
    needs.host_scratch_bytes =
        RoutedExperts::host_bytes_for(*options.host, executor_shape(config, options.model.max_rows), options.further) +
        kernels::most_product_bytes(computing, options.model.max_rows, widest_row(config));
  }
  needs.workspace_bytes = [config, model = options.model, &device](uint32_t wave) mutable {
    model.wave_rows = wave;
    return device.workspace_bytes(workspace_shape(config, model));
  };
  return needs;
}

}  // namespace dspack::runtime
