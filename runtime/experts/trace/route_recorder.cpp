#include "runtime/experts/trace/route_recorder.h"

#include <algorithm>

namespace dspack::runtime {

namespace {

// A megabyte holds some hundred tokens of V3, so this writes now and then.
constexpr size_t kPendingBytes = 256U << 10U;

}  // namespace

RouteHeader route_header(const format::Checkpoint& checkpoint, const ModelConfig& config) {
  RouteHeader header{.model_type = config.model_type, .top_k = config.top_k, .layers = {}};
  for (const auto& [key, tensors] : checkpoint.experts()) {  // by layer, then by expert
    if (header.layers.empty() || header.layers.back().layer != key.layer) {
      header.layers.push_back({.layer = key.layer, .is_by_token = key.layer.value < config.layers_by_token});
    }
    RoutedLayerShape& shape = header.layers.back();
    uint64_t bytes = 0;
    for (const uint32_t tensor : tensors)
      bytes += checkpoint.tensors()[tensor].range.size();
    shape.experts = key.expert.value + 1;
    shape.expert_bytes = std::max(shape.expert_bytes, bytes);
  }
  return header;
}

Result<std::unique_ptr<RouteRecorder>> RouteRecorder::create(format::FileSystem& files, const format::Path& path,
                                                             RouteHeader header) {
  auto file = files.open_write(path, format::OpenMode::truncate);
  if (!file) return file.error();
  std::unique_ptr<RouteRecorder> recorder(new RouteRecorder(std::move(*file), path.string(), std::move(header)));
  recorder->append(to_line(recorder->header_));
  TRY(recorder->flush());
  return recorder;
}

RouteRecorder::~RouteRecorder() {
  static_cast<void>(flush());
}

void RouteRecorder::begin_pass(const ExpertPass& pass) {
  pass_ = pass;
  ++passes_;
}

Result<void> RouteRecorder::record(LayerId layer, std::span<const uint32_t> ids) {
  DSPACK_CHECK(passes_ > 0, "routes before the first pass");
  DSPACK_CHECK(header_.find(layer) != nullptr, "routes of a layer that the header lacks");
  const RoutedLayer routed{.pass = passes_ - 1,
                           .phase = pass_.phase,
                           .draft_rows = pass_.draft_rows,
                           .layer = layer,
                           .ids = {ids.begin(), ids.end()}};
  append(to_line(routed, header_.top_k));
  return pending_.size() < kPendingBytes ? Result<void>() : flush();
}

void RouteRecorder::accept_drafts(uint32_t rows) {
  DSPACK_CHECK(passes_ > 0, "drafts before the first pass");
  append(to_line(AcceptedDrafts{.pass = passes_ - 1, .rows = rows}));
}

void RouteRecorder::append(const std::string& line) {
  pending_ += line;
  pending_ += '\n';
}

Result<void> RouteRecorder::flush() {
  if (pending_.empty()) return {};
  if (auto written = file_->write(written_bytes_, format::as_bytes(pending_)); !written) {
    return written.error().in(path_);
  }
  written_bytes_ += pending_.size();
  pending_.clear();
  return {};
}

}  // namespace dspack::runtime
