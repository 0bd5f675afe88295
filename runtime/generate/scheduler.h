// Computes several answers of one model at a time. A pass takes the next token of every answer in progress, and rows of
// waiting prompts, first come, first served (prompt_rows.h): experts that several rows need are read once. A common
// beginning of prompts is computed once, unless the prompt's own tokens are scored: caches hold no logits. In exact
// mode an answer is, bit for bit, what it would be alone (model.h) and without drafts (speculator.h), drawn or not.
// Clients get places in turn (waiting_queue.h), and conversations the places that cost others least (answer_places.h).
// Threads: `run` belongs to one thread, which alone uses the model; submit, drain and counts may be called from any.
// Listeners are called by the thread of `run`, and must not block; a generation whose client left before it got a place
// may be ended by a thread that submits others. Lifetime: borrows what the engine borrows. Errors: submit: those of the
// prompt (invalid), those of the queue; run: none. An answer's errors, exceptions included, go to its listener, and the
// other answers continue.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "runtime/generate/admission.h"
#include "runtime/generate/answer_places.h"
#include "runtime/generate/generation.h"
#include "runtime/generate/prefix_cache.h"
#include "runtime/generate/waiting_queue.h"

namespace dspack::runtime {

struct SchedulerOptions {
  uint32_t places = 1;    // answers at once, each with a KV cache for the model's context
  uint32_t waiting = 64;  // requests that may wait for a place; the queue refuses more
  /// How tokens are drafted; needs the engine's module. A fixed number applies to every answer; without one, an answer
  /// drafts only while it is alone, one token if it pays. Absent: no drafts.
  std::optional<SpeculationOptions> speculation = {};
  /// Keeps the KV rows of conversations whose place is reused; borrowed. nullptr: they are dropped.
  PrefixCache* cache = nullptr;
};

/// Counts since the start.
struct SchedulerCounts {
  uint64_t generations = 0, cancelled = 0, failed = 0, refused = 0;
  uint64_t prompt_tokens = 0;  // computed
  uint64_t kept_tokens = 0;    // prompt tokens found in a cache
  uint64_t answer_tokens = 0;
  uint64_t drafted_tokens = 0, accepted_drafts = 0;
  uint64_t copied_tokens = 0;  // those of `kept_tokens` that came from another place's cache
  uint64_t passes = 0, rows = 0;
  double seconds = 0;              // in passes
  uint32_t busy = 0, waiting = 0;  // now
  /// Time of the last pass, if it failed.
  std::optional<std::chrono::steady_clock::time_point> failed_at = {};
  std::optional<PrefixCacheCounts> cache = {};
};

/// submit() from any thread queues; run() repeats: callbacks of between_passes, drop abandoned generations, give
/// waiting ones places, run a pass over parts of all places, deliver its tokens.
class Scheduler {
 public:
  /// Errors: budget (memory for the places).
  [[nodiscard]] static Result<std::unique_ptr<Scheduler>> make(const Engine& engine, const SchedulerOptions& options);

  /// Queues all of them as one request or, after an error, none.
  [[nodiscard]] Result<void> submit(std::vector<Generation> generations);
  /// Runs passes until `stop`, or after `drain` until nothing is left.
  void run(const std::stop_token& stop);
  /// Refuses new generations; those queued or in progress are finished.
  void drain();
  /// The thread of `run` calls `look` once, between two passes or at once if none is running: it may read what passes
  /// change. Not called if `run` ends first.
  void between_passes(std::function<void()> look);
  [[nodiscard]] SchedulerCounts counts() const;
  /// Layers that the current pass has begun, at most the model's number; not counted in recorded passes.
  [[nodiscard]] uint32_t layers_begun() const;
  [[nodiscard]] uint32_t places() const { return static_cast<uint32_t>(places_.all().size()); }

 private:
  /// Rows of a pass that belong to one place, `first` counted from the pass's first row.
  struct PlaceRows {
    AnswerPlace& place;
    std::span<const uint32_t> tokens;
    uint32_t first = 0;
  };

  Scheduler(const Engine& engine, const SchedulerOptions& options)
      : engine_(engine),
        options_(options),
        places_(options.cache),
        admission_(options.places),
        waiting_(options.waiting) {}
  [[nodiscard]] bool wait(const std::stop_token& stop);
  void look();
  void admit();
  void occupy(AnswerPlace& place);
  void drop_gone();
  void drop_gone_waiting();
  void share_prefixes();
  [[nodiscard]] bool reads_prompts_in_turn() const;
  [[nodiscard]] std::vector<PlaceRows> choose_parts();
  void pass(const std::stop_token& stop);
  [[nodiscard]] Result<kernels::Rows> forward(std::span<const PlaceRows> parts, const std::stop_token& stop);
  [[nodiscard]] std::vector<PlaceRows> read_on(std::span<const PlaceRows> parts, const kernels::Rows& final,
                                               double row_seconds);
  [[nodiscard]] bool score_prompt(const PlaceRows& part, const kernels::Rows& final);
  [[nodiscard]] Result<void> tell_scores(const PlaceRows& part, const kernels::Rows& final);
  void choose_by_state(AnswerPlace& place, const kernels::Rows& final);
  void choose_by_logits(std::span<const PlaceRows> parts, const kernels::Rows& final, bool is_only);
  void deliver(AnswerPlace& place, const Result<void>& chosen, std::span<const float> logits, bool is_only);
  template <class Work>
  void attempt(AnswerPlace& place, Work&& work);
  void fail(AnswerPlace& place, const Error& error);
  void end(AnswerPlace& place, const Result<StopReason>& reason);
  static void tell_end(const Generation& generation, const Result<StopReason>& reason);

  Engine engine_;
  SchedulerOptions options_;
  AnswerPlaces places_;
  Admission admission_;
  std::vector<float> logits_;
  uint64_t clock_ = 0;
  uint64_t misses_of_prompts_ = UINT64_MAX;  // experts that the last pass with a prompt waited for
  std::atomic<uint64_t> layers_before_ = 0;  // layers begun before the present pass

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  WaitingQueue waiting_;
  std::vector<std::function<void()>> looks_;
  bool is_draining_ = false;
  SchedulerCounts counts_;
};

}  // namespace dspack::runtime
