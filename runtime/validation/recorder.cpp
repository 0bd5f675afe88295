#include "runtime/validation/recorder.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/validation/module_names.h"
#include "runtime/weights/host_rows.h"

namespace dspack::runtime {

namespace {

constexpr uint64_t kMetadataBytes = 4096;

// At most this many tensors in the file. At most tokens * top_k routed experts are used in a layer.
uint64_t most_tensors(const std::set<std::string, std::less<>>& wanted, const Model& model, uint64_t tokens) {
  constexpr uint64_t kTensors = 4;  // per module: one input, up to three outputs
  constexpr uint64_t kModules = 4;  // per expert
  const auto routed = static_cast<uint64_t>(std::ranges::count_if(wanted, is_routed));
  const uint64_t met = tokens * model.config().top_k * kModules * model.layer_map().size();
  return 1 + kTensors * (wanted.size() - routed) + 2 * std::min(routed, met);
}

}  // namespace

Result<std::unique_ptr<Recorder>> Recorder::create(kernels::Queue& queue, format::FileSystem& files, const Model& model,
                                                   const RecordPlan& plan) {
  std::unique_ptr<Recorder> made(new Recorder(queue, static_cast<uint32_t>(plan.tokens.size())));
  uint64_t longest = sizeof(kInputIds);
  for (std::string& name : module_names(model.config(), model.layer_map())) {
    const auto fits = [&](const std::string& pattern) { return matches_pattern(pattern, name); };
    if (!plan.patterns.empty() && std::ranges::none_of(plan.patterns, fits)) continue;
    longest = std::max<uint64_t>(longest, output_tensor(name).size() + sizeof(".0"));
    made->wanted_.insert(std::move(name));
  }
  if (made->wanted_.empty()) {
    return Error{ErrorKind::invalid,
                 "no module fits --modules; names look like model.layers.0.self_attn.o_proj, and * "
                 "stands for any characters"};
  }
  const uint64_t room = format::TensorFileWriter::header_room(most_tensors(made->wanted_, model, plan.tokens.size()),
                                                              longest, kMetadataBytes);
  TRY_ASSIGN(made->file_, format::TensorFileWriter::create(files, plan.path, room));
  const std::vector<int64_t> ids(plan.tokens.begin(), plan.tokens.end());
  made->append(kInputIds, Dtype::i64, {1, ids.size()}, std::as_bytes(std::span(ids)));
  TRY(made->status_);
  return made;
}

void Recorder::append(const std::string& tensor, Dtype dtype, const std::vector<uint64_t>& shape,
                      std::span<const std::byte> bytes) {
  if (!status_) return;
  const auto [place, is_new] = numbers_.try_emplace(tensor, 0);
  if (is_new) place->second = file_->add(tensor, dtype, shape);
  status_ = file_->append(place->second, bytes);
}

// Modules see [1, tokens, width], a batch of one; the router and the experts see rows without a batch dimension.
void Recorder::store(const std::string& tensor, std::string_view module, const kernels::Rows& rows,
                     uint32_t total_rows) {
  const bool has_batch = !is_router(module) && module.find(".mlp.experts") == std::string_view::npos;
  const std::vector<uint64_t> shape =
      has_batch ? std::vector<uint64_t>{1, total_rows, rows.cols} : std::vector<uint64_t>{total_rows, rows.cols};
  const std::vector<float> values = download_rows(queue_, rows);
  append(tensor, Dtype::f32, shape, std::as_bytes(std::span(values)));
}

void Recorder::input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) {
  if (wanted_.contains(module)) store(input_tensor(module), module, rows, total_rows);
}

void Recorder::output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) {
  if (wanted_.contains(module)) store(output_tensor(module), module, rows, total_rows);
}

// transformers' router returns (logits, weights, indices).
void Recorder::routing(std::string_view module, const Routing& routing) {
  if (!wanted_.contains(module)) return;
  const kernels::Rows weights{
      .data = routing.weights, .rows = routing.rows, .cols = routing.top_k, .stride = routing.top_k};
  store(fmt::format("{}.output.1", module), module, weights, tokens_);
  std::vector<uint32_t> ids(size_t{routing.rows} * routing.top_k);
  queue_.download(std::as_writable_bytes(std::span(ids)), routing.ids);
  queue_.synchronize();
  const std::vector<int64_t> wide(ids.begin(), ids.end());
  append(fmt::format("{}.output.2", module), Dtype::i64, {tokens_, routing.top_k}, std::as_bytes(std::span(wide)));
}

Result<void> Recorder::seal(const std::map<std::string, std::string>& metadata) {
  TRY(status_);
  uint64_t bytes = 0;
  for (const auto& [key, value] : metadata)
    bytes += key.size() + value.size();
  DSPACK_CHECK(2 * bytes <= kMetadataBytes, "metadata of this length has no room");  // factor 2: JSON escapes
  return file_->seal(metadata);
}

}  // namespace dspack::runtime
