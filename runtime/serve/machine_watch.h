// Streams the machine's activity as server-sent events: which experts the routers pick, which memory holds them, how
// full each tier is, and counts since the start, from which a page computes rates. docs/serve.md lists the fields.
// Without watchers, the model is not queried and no routes are read back.
// Threads: thread-safe; routes arrive on the model's thread, which also reads the model's statistics, between passes.
// Lifetime: borrows model and scheduler; call `end` before the HTTP server is destroyed; no pass may run after this is
// destroyed. Errors: budget (too many watchers), conflict (after `end`).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "format/json.h"
#include "runtime/experts/executor.h"
#include "runtime/experts/expert_map.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/generate/scheduler.h"
#include "runtime/serve/http_server.h"

namespace dspack::runtime {

class MachineWatch final : public RouteListener {
 public:
  MachineWatch(LoadedModel& loaded, Scheduler& scheduler);
  ~MachineWatch() override;
  MachineWatch(const MachineWatch&) = delete;
  MachineWatch& operator=(const MachineWatch&) = delete;

  /// Turns the reply into a stream of events until its client leaves.
  [[nodiscard]] Result<void> watch(std::shared_ptr<HttpReply> reply);
  /// Ends all streams; no new one begins.
  void end();

  void begin_pass(const ExpertPass& pass) override;
  [[nodiscard]] bool wants_routes() const override { return is_watched_; }
  [[nodiscard]] Result<void> record(LayerId layer, std::span<const uint32_t> ids) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Watcher {
    std::shared_ptr<HttpReply> reply;
    bool knows_map = false;
  };
  /// The current pass, as seen here.
  struct PassUnderWay {
    ExpertPass pass;
    Clock::time_point begun;
    std::optional<LayerId> layer;  // the last layer that has routed
  };

  void run(const std::stop_token& stop);
  void tell();
  void look();
  [[nodiscard]] format::Json machine() const;
  [[nodiscard]] format::Json work();

  LoadedModel& loaded_;
  Scheduler& scheduler_;
  const std::chrono::steady_clock::time_point start_ = Clock::now();
  std::atomic<bool> is_watched_ = false;

  std::mutex mutex_;  // guards all members below
  std::condition_variable_any changed_;
  std::vector<Watcher> watchers_;
  bool has_ended_ = false;
  bool is_looking_ = false;  // `look` was requested and has not finished
  ExpertMap map_;
  format::Json figures_ = format::Json::object();  // the model's own statistics
  std::optional<PassUnderWay> pass_;
  std::jthread telling_;  // last: uses all other members
};

}  // namespace dspack::runtime
