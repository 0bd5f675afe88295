// Several answers of one model at a time. A pass takes the next token of every answer under way, and of the prompts
// that wait as much as a pass has rows: experts that several rows want are read once. What two prompts begin with is
// computed once, except where the prompt's own tokens are scored: what a cache holds has no logits. In exact mode an
// answer is, bit for bit, what it would be alone (model.h) and without drafts (speculator.h), drawn or not.
// Threads: `run` belongs to one thread, which uses the model alone meanwhile; submit, drain and counts may be called
// from any. The listeners are called by the thread of `run`, and must not block; those of generations that nobody waits
// for any more, and that have no place yet, may hear of their end from a thread that submits others. Lifetime: borrows
// what the engine borrows. Errors: submit: those of the prompt (invalid), budget (as many wait as may); run: none of
// one answer, which its listener is told.
#pragma once

#include <atomic>
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
#include "runtime/generate/continuation.h"
#include "runtime/generate/prefix_cache.h"

namespace dspack::runtime {

/// What one generation tells.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  /// It has a place, whose cache holds so many of the prompt's tokens from an earlier conversation.
  virtual void started(uint32_t kept) = 0;
  /// So many of the prompt's tokens are in the cache.
  virtual void prompt_read(uint32_t tokens) = 0;
  /// Tokens of a prompt that is scored, in order, before those of the answer. `logits`: FP32 [tokens, vocab], each row
  /// what the prompt says before that token; the first call has the prompt's first token and no logits.
  virtual void prompt_scored(std::span<const uint32_t> /*tokens*/, std::span<const float> /*logits*/) {}
  /// Whether `token` looks at logits, which take time to fetch from a device.
  [[nodiscard]] virtual bool wants_logits() const { return true; }
  /// A token of the answer; `logits` are what it was chosen from, [vocab], or empty if they are not wanted. False ends
  /// the answer with this token.
  [[nodiscard]] virtual bool token(uint32_t id, std::span<const float> logits) = 0;
  /// The end token that was chosen, which is no part of the answer; logits as above.
  virtual void end_token(uint32_t /*id*/, std::span<const float> /*logits*/) {}
  /// So many drafted tokens were verified by a pass, and so many of them chosen.
  virtual void drafted(uint32_t tokens, uint32_t accepted) = 0;
  /// Called last, and once.
  virtual void ended(const Result<StopReason>& reason) = 0;
};

struct Generation {
  std::vector<uint32_t> prompt;
  uint32_t max_tokens = UINT32_MAX;
  std::vector<uint32_t> end_tokens = {};
  Sampler sampler;
  std::shared_ptr<GenerationListener> listener;
  std::stop_token gone = {};  // nobody waits for the answer any more: it ends, and while it waits, makes room at once
  /// The listener is told what the model says of every token of the prompt, which is then computed as a whole. With
  /// max_tokens 0 nothing follows.
  bool scores_prompt = false;
  uint64_t request = 0;  // the scheduler's: the same for those submitted together
};

/// Generations that wait, of all requests: each keeps its prompt, its sampler and what its client asked for.
inline constexpr uint32_t kMostWaiting = 2048;

struct SchedulerOptions {
  uint32_t places = 1;  // answers at once, each with a KV cache of the model's context
  /// Requests that wait for a place; more are refused. One may be of several generations: of kMostWaiting at most, with
  /// those of the others.
  uint32_t waiting = 64;
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
  [[nodiscard]] uint32_t places() const { return static_cast<uint32_t>(places_.size()); }

 private:
  struct Place {
    Sequence sequence;
    std::optional<Speculator> speculator = {};
    std::optional<Generation> generation = {};
    std::optional<Continuation> answer = {};  // of the generation
    uint64_t arrived = 0;                     // when its generation came
    uint64_t used = 0;                        // when; the least is the longest unused
  };
  /// Rows of a pass that belong to one place, `first` counted from the pass's first row.
  struct Part {
    Place& place;
    std::span<const uint32_t> tokens;
    uint32_t first = 0;
  };

  Scheduler(const Engine& engine, const SchedulerOptions& options)
      : engine_(engine), options_(options), admission_(options.places) {}
  [[nodiscard]] uint32_t waiting_requests() const;
  [[nodiscard]] bool wait(const std::stop_token& stop);
  void look();
  void admit();
  void occupy(Place& place, Generation generation);
  void keep_common(Place& place, const Generation& generation);
  uint32_t take_from_places(Place& place, std::span<const uint32_t> prompt);
  void drop_gone();
  void drop_gone_waiting();
  void share_prefixes();
  [[nodiscard]] bool is_being_read_elsewhere(const Place& place) const;
  [[nodiscard]] std::vector<Part> choose_parts();
  void pass(const std::stop_token& stop);
  [[nodiscard]] std::vector<Part> score_prompts(std::span<const Part> parts, const kernels::Rows& final);
  [[nodiscard]] Result<void> score_prompt(const Part& part, const kernels::Rows& final);
  void choose_by_state(Place& place, const kernels::Rows& final);
  void choose_by_logits(std::span<const Part> parts, const kernels::Rows& final, bool is_only);
  void deliver(Place& place, const Result<void>& chosen, std::span<const float> logits, bool is_only);
  void forget(Sequence& sequence);
  void end(Place& place, const Result<StopReason>& reason);

  Engine engine_;
  SchedulerOptions options_;
  std::deque<Place> places_;
  Admission admission_;
  std::vector<float> logits_;
  uint64_t clock_ = 0;
  std::atomic<uint64_t> layers_before_ = 0;  // of all passes before the present one

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Generation> waiting_;
  uint64_t requests_ = 0;  // so far
  std::vector<std::function<void()>> looks_;
  bool is_draining_ = false;
  SchedulerCounts counts_;
};

}  // namespace dspack::runtime
