#include "runtime/generate/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/json.h"
#include "runtime/config/config.h"
#include "runtime/generate/load_plan.h"
#include "runtime/model/always_needed.h"
#include "runtime/model/dspark.h"
#include "runtime/model/inventory.h"

namespace dspack::runtime {

namespace {

Result<std::vector<uint32_t>> read_eos_tokens(format::Repository& repository, const ModelConfig& config,
                                              const std::stop_token& stop) {
  constexpr char kFile[] = "generation_config.json";
  const auto text = repository.read_text(kFile, format::kSettingsDocument.bytes, stop);
  if (!text && text.error().kind != ErrorKind::not_found) return text.error();
  if (!text) return config.eos_tokens;
  TRY_ASSIGN(std::vector<uint32_t> tokens, parse_eos_tokens(*text, kFile));
  return tokens.empty() ? config.eos_tokens : tokens;
}

// Bytes of always-needed weights that stay in memory.
uint64_t loaded_bytes(const LoadPlan& plan) {
  uint64_t bytes = plan.needs.head_bytes;
  for (const LayerNeed& layer : plan.needs.layers) {
    if (!std::ranges::binary_search(plan.memory.layers.streamed, layer.id)) bytes += layer.bytes;
  }
  return bytes;
}

// Linux allows a process 65,530 mappings (vm.max_map_count); beyond that every allocation fails.
constexpr uint64_t kMaxMappings = 50'000;

// Mappings of all experts if files are mapped: each piece of a file, and the memory up to the next one.
uint64_t expert_mappings(const format::Checkpoint& checkpoint) {
  uint64_t pieces = 0;
  for (const auto& [key, tensors] : checkpoint.experts())
    pieces += checkpoint.expert_extents(key).size();
  return 2 * pieces;
}

}  // namespace

Result<ModelConfig> read_model_config(format::Repository& repository, const std::stop_token& stop) {
  const auto text = repository.read_text("config.json", format::kConfigDocument.bytes, stop);
  if (text) {
    // Not read if config.json has the key: at a distant place that would be a request.
    if (text->find("\"quantization_config\"") != std::string::npos) return parse_model_config(*text);
    const auto beside = repository.read_text(format::kHfQuantConfigPath, format::kConfigDocument.bytes, stop);
    if (!beside && beside.error().kind != ErrorKind::not_found) return beside.error();
    return parse_model_config(*text, beside ? std::string_view(*beside) : std::string_view());
  }
  if (text.error().kind != ErrorKind::not_found) return text.error();
  return Error{ErrorKind::not_found,
               fmt::format("{} is not a checkpoint: it has no config.json; name the folder that holds config.json and "
                           "the .safetensors files",
                           repository.description())};
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(std::unique_ptr<CheckpointAccess> access,
                                                       const LoadOptions& options, const std::stop_token& stop) {
  std::unique_ptr<LoadedModel> loaded(new LoadedModel(std::move(access)));
  TRY_ASSIGN(const ModelConfig config, read_model_config(loaded->access_->files(), stop));
  TRY_ASSIGN(loaded->eos_tokens_, read_eos_tokens(loaded->access_->files(), config, stop));
  TRY(loaded->access_->open_catalogue(config.layers, stop));
  TRY(refuse_unknown_tensors(loaded->checkpoint(), config));
  TRY(loaded->assemble(config, options, stop));
  return loaded;
}

Result<void> LoadedModel::assemble(const ModelConfig& config, const LoadOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(chosen_,
             choose_device(options.device, {.threads = options.threads, .instruction_set = options.instruction_set}));
  TRY(access_->open_weights({.io = options.io, .verify = options.verify, .device = &chosen_->host()}, stop));
  TRY_ASSIGN(PolicyFactory policy, find_policy(options.policy));
  TRY_ASSIGN(LoadPlan plan, plan_load(*chosen_, *access_, config, options, stop));
  TRY(require_whole_model(checkpoint(), config));
  memory_plan_ = plan.memory;
  // After the plan, which checks that all fits: this may be a download.
  TRY(access_->weights().expect(always_needed(checkpoint(), config, plan.model.layer_map, plan.with_mtp), stop));
  const LoadContext context{.device = chosen_->device(),
                            .queue = chosen_->queue(),
                            .access = *access_,
                            .quantization = config.quantization,
                            .in_place = is_in_place(plan),
                            .progress = options.progress.get()};
  TRY(make_experts(context, config, plan, options, std::move(policy), stop));
  if (options.progress) {
    options.progress->started({.what = "loading",
                               .total_bytes = loaded_bytes(plan),
                               .total_items = plan.needs.layers.size(),
                               .item = "layers"});
  }
  TRY_ASSIGN(model_, Model::load(context, config, plan.model, *experts_, stop));
  if (options.progress) options.progress->finished();
  TRY_ASSIGN(Scratch scratch, model_->make_scratch());
  scratch_.emplace(std::move(scratch));
  TRY_ASSIGN(picker_, TokenPicker::make(*model_, *scratch_));
  if (!options.speculation) return {};
  return load_mtp(context, *options.speculation, stop);
}

// Only if all of the model fits. With fewer slots than experts, the store must decide which ones stay, not the page
// cache.
bool LoadedModel::is_in_place(const LoadPlan& plan) const {
  const IoChoice& io = access_->io();
  if (!io.in_place || expert_mappings(checkpoint()) > kMaxMappings) return false;
  uint64_t experts = 0;
  for (const SlotLayout& layout : plan.needs.layouts)
    experts += layout.experts;
  const bool has_room = plan.memory.slot_count >= experts && plan.memory.layers.streamed.empty();
  return access_->weights().can_map() && !chosen_->is_gpu() && (has_room || io.is_required);
}

Result<Session> LoadedModel::start_session() {
  TRY_ASSIGN(Sequence sequence, model_->make_sequence(speculation_ ? Model::Drafting::mtp : Model::Drafting::none));
  return Session(engine(), std::move(sequence), speculation_);
}

uint64_t LoadedModel::scratch_bytes() const {
  return scratch_->size_bytes() + model_->table_bytes() + picker_->scratch_bytes();
}

Result<void> LoadedModel::make_experts(const LoadContext& context, const ModelConfig& config, const LoadPlan& plan,
                                       const LoadOptions& options, PolicyFactory policy, const std::stop_token& stop) {
  const StreamedStoreOptions store{.shape = expert_shape(config),
                                   .layers = plan.expert_layers,
                                   .slots = plan.memory.slot_count,
                                   .least_slots = least_slots(config.top_k),
                                   .policy = std::move(policy),
                                   .prefetch = options.prefetch,
                                   .max_fetch = options.max_fetch,
                                   .in_place = context.in_place};
  const ExecutorShape shape{.hidden = config.hidden,
                            .expert_inner = config.expert_inner,
                            .experts = config.experts,
                            .top_k = config.top_k,
                            .wave_tokens = plan.model.max_rows};
  const std::optional<VramPlan>& vram = plan.memory.vram;
  RoutedExperts::Options routed{
      .store = store, .shape = shape, .miss = options.device.miss, .progress = options.progress.get()};
  if (vram && vram->holds_all()) {
    routed.placement = ExpertPlacement::resident;
  } else if (vram) {
    routed.placement = ExpertPlacement::tiered;
    routed.vram_slots = *vram->slots;
    routed.fills_devices = plan.memory.fills_gpus;
  }
  RoutedExperts::Target target{.device = chosen_->device(), .queue = chosen_->queue(), .host = &chosen_->host()};
  for (size_t i = 0; i < plan.memory.further.size(); ++i) {
    target.further.push_back(
        {.device = chosen_->further()[i].device.get(), .vram_slots = *plan.memory.further[i].slots});
  }
  TRY_ASSIGN(experts_, RoutedExperts::make(target, access_->weights(), routed, stop));
  if (options.route_trace.empty()) return {};
  TRY_ASSIGN(recorder_, RouteRecorder::create(format::posix_file_system(), options.route_trace,
                                              route_header(checkpoint(), config)));
  experts_->add_listener(*recorder_);
  return {};
}

Result<void> LoadedModel::flush_routes() {
  if (!recorder_) return {};
  return recorder_->flush();
}

Result<void> LoadedModel::load_mtp(const LoadContext& context, const SpeculationOptions& options,
                                   const std::stop_token& stop) {
  const ModelConfig& config = model_->config();
  if (!DraftModule::is_present(checkpoint(), config)) {
    if (!options.drafts) return {};
    if (config.mtp_layers == 0) {
      return Error{ErrorKind::unsupported,
                   "this model has no MTP module for drafts (num_nextn_predict_layers in config.json); leave out "
                   "--mtp, or use --mtp auto"};
    }
    return Error{
        ErrorKind::not_found,
        fmt::format("{} lacks the MTP module (the tensors of {}), though config.json announces it; fetch them, "
                    "or leave out --mtp",
                    access_->files().description(),
                    config.window ? "mtp.0" : config.names->layer(LayerId(config.layers)))};
  }
  if (config.dspark && !DsparkModule::can_read(*config.dspark, model_->layer_map())) {
    if (!options.drafts) return {};
    return Error{
        ErrorKind::unsupported,
        "--mtp: drafts are made from layers that --layers leaves out (dspark_target_layer_ids in config.json); "
        "leave out one of the two"};
  }
  if (config.dspark && options.drafts.value_or(0) > DsparkModule::most_drafts(*config.dspark)) {
    return Error{
        ErrorKind::unsupported,
        fmt::format("--mtp {}: this model drafts {} tokens at once (dspark_block_size in config.json); ask for "
                    "no more, or for auto",
                    *options.drafts, DsparkModule::most_drafts(*config.dspark))};
  }
  if (config.streams && options.hidden) {
    return Error{ErrorKind::unsupported,
                 "--dev mtp-hidden: this model's drafts are made from residual streams, before any norm; leave it out"};
  }
  TRY_ASSIGN(mtp_, DraftModule::load(context, *model_, stop));
  speculation_ = options;
  return {};
}

}  // namespace dspack::runtime
