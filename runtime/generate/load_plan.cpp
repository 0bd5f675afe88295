#include "runtime/generate/load_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "format/base/size.h"
#include "runtime/budget/memory_plan.h"
#include "runtime/budget/system_memory.h"
#include "runtime/generate/fetch_guard.h"
#include "runtime/generate/text_model.h"
#include "runtime/generate/token_picker.h"
#include "runtime/model/dspark.h"
#include "runtime/model/kv_cache.h"

namespace dspack::runtime {

namespace {

/// Precondition: `model` has its layer map and the cache's type.
uint32_t default_context(const ModelConfig& config, const ModelOptions& model) {
  const KvShape shape = kv_shape(config, model.attention(), model.layer_map);
  // The size of rings does not depend on the context.
  const uint64_t fixed = KvCache::bytes_of(shape.layers, 0, shape.planes).value_or(kDefaultCacheBytes);
  const uint64_t all = KvCache::bytes_of(shape.layers, kDefaultContext, shape.planes).value_or(UINT64_MAX);
  const uint64_t room = kDefaultCacheBytes - std::min(kDefaultCacheBytes, fixed);
  const uint64_t most = std::max<uint64_t>(1, room / std::max<uint64_t>((all - fixed) / kDefaultContext, 1));
  return static_cast<uint32_t>(std::min<uint64_t>({config.max_positions, kDefaultContext, most}));
}

Result<uint32_t> context_length(const ModelConfig& config, const ModelOptions& model,
                                const std::optional<uint32_t>& asked) {
  if (!asked) return default_context(config, model);
  if (*asked >= 1 && *asked <= config.max_positions) return *asked;
  return Error{ErrorKind::invalid, fmt::format("a context of {} positions is not possible; this model allows 1 to {} "
                                               "(max_position_embeddings in config.json)",
                                               *asked, config.max_positions)};
}

// If layers share the choice of an earlier one, the first layer must choose itself; any other follows one that does.
Result<format::LayerMap> with_choices(const ModelConfig& config, format::LayerMap map) {
  const bool shares = config.indexer && !config.indexer->shared.empty();
  if (map.empty() || !shares || config.has_indexer(map.front())) return map;
  return Error{ErrorKind::invalid,
               fmt::format("layer {} cannot come first: it attends to the positions that a layer before it has chosen "
                           "(\"shared\" in config.json); begin with a layer that has an indexer",
                           map.front().value)};
}

// The layers of a pass; empty: all layers, once each.
Result<format::LayerMap> layer_map(const ModelConfig& config, const std::optional<format::LayerSelection>& asked,
                                   const format::Checkpoint& checkpoint) {
  if (asked) {
    auto map = format::select_layers(*asked, config.layers);
    if (map) map = with_choices(config, std::move(*map));
    return map ? std::move(map) : map.error().in("the layers asked for");
  }
  if (!checkpoint.manifest() || !checkpoint.manifest()->layer_map) return format::LayerMap{};
  auto map = format::select_layers(*checkpoint.manifest()->layer_map, config.layers);
  if (map) map = with_choices(config, std::move(*map));
  if (map) return map;
  return map.error().in(fmt::format("the layer map of {} does not fit config.json", format::kManifestPath));
}

// If the system does not report its memory, only a requested limit applies.
Result<MemoryLimits> memory_limits(const MemoryOptions& options, const Result<SystemMemory>& system) {
  MemoryLimits limits{.bytes = {}, .source = {}, .experts = options.experts};
  if (options.ram && options.ram->percent && !system) return system.error();
  if (options.ram) {
    limits.bytes = options.ram->of(system ? system->physical_bytes : 0);
    limits.source = fmt::format("--ram {}", size_words(*limits.bytes));
  } else if (system) {
    limits.bytes = default_limit(system->physical_bytes, system->available_bytes, system->resident_bytes);
    limits.source = fmt::format("the memory that is available ({} of {})", size_words(*limits.bytes),
                                size_words(system->physical_bytes));
  }
  return limits;
}

// Whether experts would come over a network: then they are only fetched when a router picks them.
bool is_distant(const Tier& weights, const std::set<LayerId>& layers) {
  return std::ranges::any_of(weights.checkpoint().experts(), [&](const auto& expert) {
    return layers.contains(expert.first.layer) && weights.medium_of(expert.first) == Medium::network;
  });
}

// Estimates the reads of a prompt of known length, with no expert in memory yet, against --max-fetch.
Result<void> check_prompt(const LoadPlan& plan, const ModelConfig& config, const Tier& weights,
                          const LoadOptions& options) {
  if (!options.prompt_tokens || !options.max_fetch) return {};
  const uint64_t experts = std::max<uint64_t>(plan.memory.experts, 1);
  const FetchOutlook outlook = fetch_outlook(
      weights.checkpoint(),
      {.layers = {plan.model.layer_map.begin(), plan.model.layer_map.end()},
       .top_k = config.top_k,
       .tokens = *options.prompt_tokens,
       .chunk = plan.memory.rows.chunk},
      {.cached_share = std::min(1.0, static_cast<double>(plan.memory.slot_count) / static_cast<double>(experts)),
       .is_in_memory = [](ExpertKey) { return false; },
       .medium_of = [&](ExpertKey key) { return weights.medium_of(key); }});
  return check_outlook(outlook, *options.prompt_tokens, options.max_fetch);
}

Result<void> check_max_fetch(const LoadPlan& plan, const LoadOptions& options) {
  const bool reads_all = plan.memory.fills_gpus || (plan.memory.vram && plan.memory.vram->holds_all());
  if (!reads_all || !options.max_fetch || plan.needs.resident_expert_bytes <= *options.max_fetch) return {};
  return Error{ErrorKind::budget,
               fmt::format("the GPU is to hold all experts: reading them ({}) is more than --max-fetch allows ({}); "
                           "allow more, or fewer experts there (--vram-experts), or use --device cpu",
                           size_words(plan.needs.resident_expert_bytes), size_words(*options.max_fetch))};
}

LayerStreaming layer_streaming(const MemoryPlan& plan) {
  const LayerPlan& where_computed = plan.vram ? plan.vram->layers : plan.layers;
  LayerStreaming streaming{.layers = {where_computed.streamed.begin(), where_computed.streamed.end()},
                           .buffers = where_computed.buffers,
                           .kept = {}};
  if (!plan.vram) return streaming;
  const std::set<LayerId> read(plan.layers.streamed.begin(), plan.layers.streamed.end());
  std::ranges::set_difference(streaming.layers, read, std::inserter(streaming.kept, streaming.kept.end()));
  return streaming;
}

/// Window attention has its own rows, for which some devices and types have no kernels.
Result<void> check_window(const kernels::Device& device, const ModelConfig& config, const MemoryOptions& memory) {
  if (!config.window) return {};
  if (config.query_dim() > device.max_window_dim()) {
    return Error{ErrorKind::unsupported,
                 fmt::format("DeepSeek-V4's attention with keys of {} values: this device computes it with up to {} "
                             "(--device cpu)",
                             config.query_dim(), device.max_window_dim())};
  }
  for (const auto& [asked, option] :
       {std::pair{memory.kv_dtype, "--kv-dtype"}, {memory.index_dtype, "--index-dtype"}}) {
    if (asked == Dtype::f8_e4m3)
      return Error{ErrorKind::unsupported, fmt::format("{} fp8: DeepSeek-V4's cache can be f32, bf16 or f16", option)};
  }
  return {};
}

/// Type of the cache if none is requested.
Dtype usual_cache(const ModelConfig& config, kernels::Precision precision) {
  const bool has_fp8 = !config.window;
  if (precision == kernels::Precision::fp8 && has_fp8) return Dtype::f8_e4m3;
  return precision == kernels::Precision::split || precision == kernels::Precision::fp8 ? Dtype::bf16 : Dtype::f32;
}

Result<LoadPlan> plan_for(ChosenDevice& chosen, const LoadContext& context, const ModelConfig& config,
                          const LoadOptions& options, const std::stop_token& stop) {
  const format::Checkpoint& checkpoint = context.access.catalogue();
  TRY(check_window(context.device, config, options.memory));
  LoadPlan plan;
  ModelOptions& model = plan.model;
  TRY_ASSIGN(model.layer_map, layer_map(config, options.layers, checkpoint));
  if (model.layer_map.empty()) {
    for (uint32_t layer = 0; layer < config.layers; ++layer)
      model.layer_map.emplace_back(layer);
  }
  model.kv_dtype = options.memory.kv_dtype.value_or(usual_cache(config, chosen.precision()));
  model.index_dtype = options.memory.index_dtype.value_or(model.kv_dtype);
  TRY_ASSIGN(model.context, context_length(config, model, options.context));
  const PassRows longest = longest_pass(context.device, model.context);
  model.max_rows = longest.chunk;
  model.wave_rows = longest.wave;
  plan.with_mtp = options.speculation && DraftModule::is_present(checkpoint, config) &&
                  (!config.dspark || DsparkModule::can_read(*config.dspark, model.layer_map));
  model.drafts_in_blocks = plan.with_mtp && config.dspark;
  for (const LayerId layer : model.layer_map) {
    if (config.is_moe(layer)) plan.expert_layers.insert(layer);
  }
  if (plan.with_mtp) {
    for (const LayerId layer : config.draft_layers())
      plan.expert_layers.insert(layer);
  }
  const auto system = read_system_memory();
  const unsigned computing = options.threads != 0 ? options.threads : std::thread::hardware_concurrency();
  const unsigned reading = 2 * context.access.weights().depth();  // the pools for experts and for streamed layers
  NeedsOptions needs{.model = model,
                     .expert_layers = plan.expert_layers,
                     .with_mtp = plan.with_mtp,
                     .sequences = options.sequences,
                     .threads = computing + reading,
                     .readers = reading + 1,  // the calling thread reads always-needed weights and rows
                     .text_bytes = 0,
                     .process_bytes = system ? system->resident_bytes : 0,
                     .host = chosen.is_gpu() ? &chosen.host() : nullptr,
                     .further = chosen.further().size()};
  TRY_ASSIGN(needs.text_bytes, tokenizer_bytes(context.access.files(), stop));
  TRY_ASSIGN(plan.needs, find_needs(context, config, needs));
  if (!context.device.is_host()) plan.needs.head_bytes += TokenPicker::device_bytes();
  plan.needs.reserve_bytes = saturating_add(plan.needs.reserve_bytes, options.beside_bytes);
  TRY_ASSIGN(const MemoryLimits limits, memory_limits(options.memory, system));
  const bool are_too_many = options.max_fetch && plan.needs.resident_expert_bytes > *options.max_fetch;
  const GpuExperts on_gpu{.vram = options.device.vram_experts,
                          .as_they_come = are_too_many || is_distant(context.access.weights(), plan.expert_layers)};
  const std::vector<VramLimits> further = chosen.further_limits();
  TRY_ASSIGN(plan.memory, chosen.is_gpu()
                              ? make_gpu_memory_plan(plan.needs, limits, chosen.vram_limits(), on_gpu, further)
                              : make_memory_plan(plan.needs, limits));
  if (plan.memory.further.empty()) chosen.drop_further("the first has room for all that it could do");
  TRY(check_max_fetch(plan, options));
  if (!plan.memory.fills_gpus && !(plan.memory.vram && plan.memory.vram->holds_all()))
    TRY(check_prompt(plan, config, context.access.weights(), options));
  model.max_rows = plan.memory.rows.chunk;
  model.wave_rows = plan.memory.rows.wave;
  chosen.queue().expect(workspace_shape(config, model));
  model.streaming = layer_streaming(plan.memory);
  return plan;
}

}  // namespace

Result<LoadPlan> plan_load(ChosenDevice& chosen, CheckpointAccess& access, const ModelConfig& config,
                           const LoadOptions& options, const std::stop_token& stop) {
  const auto make = [&] {
    const LoadContext context{
        .device = chosen.device(), .queue = chosen.queue(), .access = access, .quantization = config.quantization};
    return plan_for(chosen, context, config, options, stop);
  };
  auto plan = make();
  if (plan || !chosen.may_use_host()) return plan;
  const ErrorKind kind = plan.error().kind;
  if (kind != ErrorKind::budget && kind != ErrorKind::unsupported) return plan;
  TRY(chosen.use_host(plan.error().message));
  return make();
}

}  // namespace dspack::runtime
