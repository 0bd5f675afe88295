#include "runtime/serve/machine_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/seconds.h"
#include "runtime/generate/stats.h"

namespace dspack::runtime {
namespace {

// Frequent enough for a map that follows the layers of a pass; a few kB a second per watcher.
constexpr std::chrono::milliseconds kInterval{300};
constexpr std::chrono::milliseconds kPatience{20};  // how long `run` waits for `look`: a pass may take longer
constexpr size_t kMaxWatchers = 8;

std::string event(std::string_view name, const format::Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, data.dump());
}

/// The routed layers that a pass may run.
std::vector<RoutedLayerShape> running_layers(const LoadedModel& loaded) {
  const ModelConfig& config = loaded.model().config();
  std::vector<RoutedLayerShape> layers = route_header(loaded.checkpoint(), config).layers;
  format::LayerMap map = loaded.model().layer_map();
  if (loaded.mtp() != nullptr) {
    const std::vector<LayerId> further = loaded.mtp()->layers();
    map.insert(map.end(), further.begin(), further.end());
  }
  std::erase_if(layers,
                [&](const RoutedLayerShape& shape) { return std::ranges::find(map, shape.layer) == map.end(); });
  return layers;
}

format::Json cache_json(const CacheCounts& prefill, const CacheCounts& decode) {
  return {{"hits", prefill.hits + decode.hits},
          {"late", prefill.late + decode.late},
          {"evictions", prefill.evictions + decode.evictions},
          {"waiting_seconds", prefill.waiting_seconds + decode.waiting_seconds}};
}

format::Json host_json(const ExpertStoreStats& stats) {
  const PhaseStats& prefill = stats.phases[0];
  const PhaseStats& decode = stats.phases[1];
  format::Json json = cache_json(prefill, decode);
  json["slots"] = stats.slots;
  json["bytes"] = stats.slot_bytes;
  json["misses"] = stats.misses();
  return json;
}

format::Json device_json(const VramStats& stats) {
  const VramPhaseStats& prefill = stats.phases[0];
  const VramPhaseStats& decode = stats.phases[1];
  format::Json json = cache_json(prefill, decode);
  json["slots"] = stats.slots;
  json["bytes"] = stats.bytes;
  json["misses"] = prefill.moved + prefill.computed + decode.moved + decode.computed;
  return json;
}

/// Bytes copied from each medium into host memory, and over the link into device memory.
format::Json bytes_json(const ExpertStoreStats& stats) {
  const PhaseStats& prefill = stats.phases[0];
  const PhaseStats& decode = stats.phases[1];
  const auto of = [&](Medium medium) {
    const auto index = static_cast<size_t>(medium);
    return prefill.bytes[index] + decode.bytes[index];
  };
  format::Json json = {{"disk", of(Medium::disk)},
                       {"network", of(Medium::network)},
                       {"prefetched", prefill.prefetched_bytes + decode.prefetched_bytes}};
  if (!stats.vram) return json;
  uint64_t moved = 0;
  for (const VramPhaseStats& phase : stats.vram->phases)
    moved += phase.moved_bytes + phase.promoted_bytes + phase.prefetched_bytes;
  json["link"] = moved;
  return json;
}

}  // namespace

MachineWatch::MachineWatch(LoadedModel& loaded, Scheduler& scheduler)
    : loaded_(loaded),
      scheduler_(scheduler),
      map_(running_layers(loaded)),
      telling_([this](const std::stop_token& stop) { run(stop); }) {
  loaded_.experts().add_listener(*this);
}

MachineWatch::~MachineWatch() {
  end();
}

Result<void> MachineWatch::watch(std::shared_ptr<HttpReply> reply) {
  const std::lock_guard lock(mutex_);
  if (has_ended_) return Error{ErrorKind::conflict, "the server is going down"};
  std::erase_if(watchers_, [](const Watcher& each) { return each.reply->gone().stop_requested(); });
  if (watchers_.size() >= kMaxWatchers) {
    return Error{ErrorKind::budget, fmt::format("{} look on already", watchers_.size())};
  }
  reply->begin_stream("text/event-stream");
  watchers_.push_back({.reply = std::move(reply)});
  is_watched_ = true;
  changed_.notify_all();
  return {};
}

void MachineWatch::end() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  for (const Watcher& watcher : watchers_)
    watcher.reply->end();
  watchers_.clear();
  is_watched_ = false;
}

void MachineWatch::begin_pass(const ExpertPass& pass) {
  const std::lock_guard lock(mutex_);
  pass_ = {.pass = pass, .begun = Clock::now(), .layer = {}};
}

Result<void> MachineWatch::record(LayerId layer, std::span<const uint32_t> ids) {
  const std::lock_guard lock(mutex_);
  for (const uint32_t id : ids)
    map_.pick({.layer = layer, .expert = ExpertId(id)}, 1);
  if (pass_) pass_->layer = layer;
  return {};
}

void MachineWatch::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !watchers_.empty(); })) {
    if (!is_looking_) {
      is_looking_ = true;
      scheduler_.between_passes([this] { look(); });
    }
    changed_.wait_for(lock, stop, kPatience, [this] { return !is_looking_; });
    try {
      tell();
    } catch (const std::bad_alloc&) {
      // Watchers are updated the next time.
    }
    changed_.wait_for(lock, stop, kInterval, [] { return false; });
    if (stop.stop_requested()) return;
  }
}

void MachineWatch::tell() {
  std::erase_if(watchers_, [](const Watcher& each) { return each.reply->gone().stop_requested(); });
  is_watched_ = !watchers_.empty();
  if (watchers_.empty()) return;
  const std::string now = event("work", work());
  std::string all;
  for (Watcher& watcher : watchers_) {
    if (!watcher.knows_map && all.empty()) all = event("machine", machine());  // as of `now`
    watcher.reply->write(watcher.knows_map ? now : all + now);
    watcher.knows_map = true;
  }
}

/// Runs on the model's thread, between two passes.
void MachineWatch::look() {
  try {
    const ExpertStoreStats stats = loaded_.experts().stats();
    const ExpertResidence places = loaded_.experts().places();
    format::Json figures = {{"host", host_json(stats)}, {"bytes", bytes_json(stats)}};
    if (stats.vram) figures["device"] = device_json(*stats.vram);
    if (StageClock* clock = loaded_.engine().scratch.stages()) figures["stages"] = to_json(clock->seconds());
    const std::lock_guard lock(mutex_);
    figures_ = std::move(figures);
    map_.place(places);
  } catch (const std::bad_alloc&) {
    // Keeps the previous figures; answers continue.
  }
  const std::lock_guard lock(mutex_);
  pass_.reset();
  is_looking_ = false;
  changed_.notify_all();
}

/// Facts that do not change, and the current map.
format::Json MachineWatch::machine() const {
  return {{"device", loaded_.device().description()},
          {"gpu", loaded_.chosen().is_gpu()},
          {"top_k", loaded_.model().config().top_k},
          {"rows", map_.rows()}};
}

/// Changes since the previous call, and all counts.
format::Json MachineWatch::work() {
  const SchedulerCounts counts = scheduler_.counts();
  format::Json json = figures_;
  json["seconds"] = seconds_since(start_);
  json["requests"] = {{"running", counts.busy}, {"waiting", counts.waiting}, {"places", scheduler_.places()}};
  json["tokens"] = {{"prompt", counts.prompt_tokens}, {"kept", counts.kept_tokens}, {"answer", counts.answer_tokens}};
  json["passes"] = {{"count", counts.passes}, {"rows", counts.rows}, {"seconds", counts.seconds}};
  json["drafts"] = {{"drafted", counts.drafted_tokens}, {"accepted", counts.accepted_drafts}};
  if (pass_) {
    json["pass"] = {{"seconds", seconds_since(pass_->begun)},
                    {"rows", pass_->pass.rows},
                    {"reads_prompt", pass_->pass.phase == Phase::prefill}};
    if (pass_->layer) json["pass"]["layer"] = pass_->layer->value;
  }
  json["in_host"] = map_.in_host();
  json["in_device"] = map_.in_device();
  json["picked"] = map_.take_picked();
  json["moved"] = map_.take_moved();
  return json;
}

}  // namespace dspack::runtime
