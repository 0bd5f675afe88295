// Several answers of one model at a time. A pass takes the next token of every answer under way, and of the prompts
// that wait as much as a pass has rows: experts that several rows want are read once. What two prompts begin with is
// computed once, except where the prompt's own tokens are scored: what a cache holds has no logits. In exact mode an
// answer is, bit for bit, what it would be alone (model.h) and without drafts (speculator.h), drawn or not. Clients get
// places in turn (waiting_queue.h), and conversations the places that cost others least (place_choice.h).
// Threads: `run` belongs to one thread, which uses the model alone meanwhile; submit, drain and counts may be called
// from any. The listeners are called by the thread of `run`, and must not block; those of generations that nobody waits
// for any more, and that have no place yet, may hear of their end from a thread that submits others. Lifetime: borrows
// what the engine borrows. Errors: submit: those of the prompt (invalid), those of the queue; run: none of one answer,
// which its listener is told, what it throws included: where memory is short for one answer, the others go on.
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
  uint32_t places = 1;    // answers at once, each with a KV cache of the model's context
  uint32_t waiting = 64;  // requests that wait for a place; beyond, the queue refuses some
  /// How tokens are drafted, for which the engine has a module: a fixed number for every answer, else as many as pay
  /// while an answer is alone. Absent: none.
  std::optional<SpeculationOptions> speculation = {};
  /// Of what places held that others took; borrowed. nullptr: that is lost.
  PrefixCache* cache = nullptr;
};

/// Since the start.
struct SchedulerCounts {
  uint64_t generations = 0, cancelled = 0, failed = 0, refused = 0;
  uint64_t prompt_tokens = 0;  // computed
  uint64_t kept_tokens = 0;    // of prompts, found in a cache
  uint64_t answer_tokens = 0;
  uint64_t drafted_tokens = 0, accepted_drafts = 0;
  uint64_t copied_tokens = 0;  // of `kept_tokens`: from another place's cache
  uint64_t passes = 0, rows = 0;
  double seconds = 0;              // in passes
  uint32_t busy = 0, waiting = 0;  // now
  /// When the last pass ended in an error; absent: it did not.
  std::optional<std::chrono::steady_clock::time_point> failed_at = {};
  std::optional<PrefixCacheCounts> cache = {};
};

class Scheduler {
 public:
  /// Errors: budget (memory for the places).
  [[nodiscard]] static Result<std::unique_ptr<Scheduler>> make(const Engine& engine, const SchedulerOptions& options);

  /// All of them or, after an error, none.
  [[nodiscard]] Result<void> submit(std::vector<Generation> generations);
  /// Makes passes until `stop`, or after `drain` until nothing is left.
  void run(const std::stop_token& stop);
  /// No more is taken; what is under way or waits is finished.
  void drain();
  /// The thread of `run` calls `look` once, between two passes or at once if none is under way: what a pass changes may
  /// be read there. Never called if `run` ends before.
  void between_passes(std::function<void()> look);
  [[nodiscard]] SchedulerCounts counts() const;
  /// Layers that the pass under way has begun, where the device tells: as many as the model has at most.
  [[nodiscard]] uint32_t layers_begun() const;
  [[nodiscard]] uint32_t places() const { return static_cast<uint32_t>(places_.all().size()); }

 private:
  /// Rows of a pass that belong to one place, `first` counted from the pass's first row.
  struct Part {
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
  [[nodiscard]] std::vector<Part> choose_parts();
  void pass(const std::stop_token& stop);
  [[nodiscard]] Result<kernels::Rows> forward(std::span<const Part> parts, const std::stop_token& stop);
  [[nodiscard]] std::vector<Part> read_on(std::span<const Part> parts, const kernels::Rows& final, double row_seconds);
  [[nodiscard]] bool score_prompt(const Part& part, const kernels::Rows& final);
  [[nodiscard]] Result<void> tell_scores(const Part& part, const kernels::Rows& final);
  void choose_by_state(AnswerPlace& place, const kernels::Rows& final);
  void choose_by_logits(std::span<const Part> parts, const kernels::Rows& final, bool is_only);
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
  std::atomic<uint64_t> layers_before_ = 0;  // of all passes before the present one

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  WaitingQueue waiting_;
  std::vector<std::function<void()>> looks_;
  bool is_draining_ = false;
  SchedulerCounts counts_;
};

}  // namespace dspack::runtime
