// Several answers of one model at a time. A pass takes the next token of every answer under way, and of the prompts
// that wait as much as a pass has rows: experts that several rows want are read once. In exact mode an answer is, bit
// for bit, what it would be alone (model.h).
// Threads: `run` belongs to one thread, which uses the model alone meanwhile; submit, drain and counts may be called
// from any. The listeners are called by the thread of `run`, and must not block. Lifetime: borrows what the engine
// borrows. Errors: submit: those of the prompt (invalid), budget (as many wait as may); run: none of one answer, which
// its listener is told.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "runtime/generate/prefix_cache.h"
#include "runtime/generate/session.h"

namespace dspack::runtime {

/// What one generation tells.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  /// It has a place, whose cache holds so many of the prompt's tokens from an earlier conversation.
  virtual void started(uint32_t kept) = 0;
  /// So many of the prompt's tokens are in the cache.
  virtual void prompt_read(uint32_t tokens) = 0;
  /// A token of the answer; `logits` are what it was chosen from, [vocab]. False ends the answer with this token.
  [[nodiscard]] virtual bool token(uint32_t id, std::span<const float> logits) = 0;
  /// Called last, and once.
  virtual void ended(const Result<StopReason>& reason) = 0;
};

struct Generation {
  std::vector<uint32_t> prompt;
  uint32_t max_tokens = UINT32_MAX;
  std::vector<uint32_t> end_tokens = {};
  Sampler sampler;
  std::shared_ptr<GenerationListener> listener;
  std::stop_token gone = {};  // nobody waits for the answer any more
};

struct SchedulerOptions {
  uint32_t places = 1;    // answers at once, each with a KV cache of the model's context
  uint32_t waiting = 64;  // generations that wait for a place; more are refused
  /// Of what places held that others took; borrowed. nullptr: that is lost.
  PrefixCache* cache = nullptr;
};

/// Since the start.
struct SchedulerCounts {
  uint64_t generations = 0, cancelled = 0, failed = 0, refused = 0;
  uint64_t prompt_tokens = 0;  // computed
  uint64_t kept_tokens = 0;    // of prompts, found in a cache
  uint64_t answer_tokens = 0;
  uint64_t passes = 0, rows = 0;
  double seconds = 0;              // in passes
  uint32_t busy = 0, waiting = 0;  // now
  std::optional<PrefixCacheCounts> cache = {};
};

class Scheduler {
 public:
  /// Errors: budget (memory for the places).
  [[nodiscard]] static Result<std::unique_ptr<Scheduler>> make(const Engine& engine, const SchedulerOptions& options);

  [[nodiscard]] Result<void> submit(Generation generation);
  /// Makes passes until `stop`, or after `drain` until nothing is left.
  void run(const std::stop_token& stop);
  /// No more is taken; what is under way or waits is finished.
  void drain();
  [[nodiscard]] SchedulerCounts counts() const;
  [[nodiscard]] uint32_t places() const { return static_cast<uint32_t>(places_.size()); }

 private:
  struct Place {
    Sequence sequence;
    std::optional<Generation> generation = {};
    std::vector<uint32_t> tokens = {};  // of prompt and answer; the sequence lacks the last ones
    uint32_t answered = 0;
    uint64_t used = 0;  // when; the least is the longest unused

    [[nodiscard]] uint32_t lacking() const { return static_cast<uint32_t>(tokens.size()) - sequence.length(); }
  };
  struct Part {
    Place* place;
    uint32_t rows;
  };

  Scheduler(const Engine& engine, const SchedulerOptions& options) : engine_(engine), options_(options) {}
  [[nodiscard]] bool wait(const std::stop_token& stop);
  void admit();
  void occupy(Place& place, Generation generation);
  /// Leaves in the place what `prompt` begins with, as much as there is anywhere; returns how much.
  [[nodiscard]] size_t keep_common(Place& place, std::span<const uint32_t> prompt);
  void drop_gone();
  [[nodiscard]] std::vector<Part> choose_parts();
  void pass(const std::stop_token& stop);
  void advance(const std::vector<Part>& parts, const kernels::Rows& final);
  void deliver(Place& place, const Result<uint32_t>& token, std::span<const float> logits);
  void end(Place& place, const Result<StopReason>& reason);

  Engine engine_;
  SchedulerOptions options_;
  std::vector<Place> places_;
  std::vector<float> logits_;
  uint64_t clock_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Generation> waiting_;
  bool is_draining_ = false;
  SchedulerCounts counts_;
};

}  // namespace dspack::runtime
