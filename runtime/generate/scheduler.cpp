#include "runtime/generate/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "format/base/seconds.h"

namespace dspack::runtime {

namespace {

size_t common_length(std::span<const uint32_t> held, std::span<const uint32_t> prompt) {
  return static_cast<size_t>(std::ranges::mismatch(held, prompt).in1 - held.begin());
}

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::make(const Engine& engine, const SchedulerOptions& options) {
  std::unique_ptr<Scheduler> scheduler(new Scheduler(engine, options));
  for (uint32_t i = 0; i < options.places; ++i) {
    TRY_ASSIGN(Sequence sequence, engine.model.make_sequence());
    scheduler->places_.push_back({.sequence = std::move(sequence)});
  }
  return scheduler;
}

Result<void> Scheduler::submit(Generation generation) {
  const Model& model = engine_.model;
  TRY(check_prompt(generation.prompt, model.config(), model.context()));
  TRY(generation.sampler.check_vocab(model.config().vocab));
  const std::lock_guard lock(mutex_);
  if (is_draining_) return Error{ErrorKind::conflict, "the server is going down"};
  if (waiting_.size() >= options_.waiting) {
    ++counts_.refused;
    return Error{ErrorKind::budget, fmt::format("{} requests are waiting already", waiting_.size())};
  }
  waiting_.push_back(std::move(generation));
  changed_.notify_all();
  return {};
}

void Scheduler::drain() {
  const std::lock_guard lock(mutex_);
  is_draining_ = true;
  changed_.notify_all();
}

SchedulerCounts Scheduler::counts() const {
  const std::lock_guard lock(mutex_);
  SchedulerCounts counts = counts_;
  counts.waiting = static_cast<uint32_t>(waiting_.size());
  if (options_.cache != nullptr) counts.cache = options_.cache->counts();
  return counts;
}

void Scheduler::run(const std::stop_token& stop) {
  while (wait(stop)) {
    drop_gone();
    admit();
    pass(stop);
  }
  for (Place& place : places_)
    if (place.generation) end(place, StopReason::interrupted);
  std::deque<Generation> left;
  {
    const std::lock_guard lock(mutex_);
    is_draining_ = true;
    left.swap(waiting_);
  }
  for (const Generation& generation : left)
    generation.listener->ended(StopReason::interrupted);
}

/// Until there is something to do; false: no more.
bool Scheduler::wait(const std::stop_token& stop) {
  if (stop.stop_requested()) return false;
  if (std::ranges::any_of(places_, [](const Place& place) { return place.generation.has_value(); })) return true;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, stop, [this] { return is_draining_ || !waiting_.empty(); });
  return !stop.stop_requested() && !waiting_.empty();
}

void Scheduler::drop_gone() {
  for (Place& place : places_)
    if (place.generation && place.generation->gone.stop_requested()) end(place, StopReason::interrupted);
}

/// The one that has waited for longest gets the free place that holds most of its prompt; of equals the one that has
/// been unused for longest.
void Scheduler::admit() {
  for (;;) {
    const bool is_full = std::ranges::all_of(places_, [](const Place& place) { return place.generation.has_value(); });
    if (is_full) return;
    std::optional<Generation> next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      ++counts_.generations;
    }
    if (next->gone.stop_requested() || next->max_tokens == 0) {
      next->listener->ended(next->max_tokens == 0 ? StopReason::max_tokens : StopReason::interrupted);
      continue;
    }
    Place* best = nullptr;
    size_t most = 0;
    for (Place& place : places_) {
      if (place.generation) continue;
      const size_t common = common_length(place.sequence.tokens(), next->prompt);
      if (best == nullptr || common > most || (common == most && place.used < best->used)) {
        best = &place;
        most = common;
      }
    }
    occupy(*best, *std::move(next));
  }
}

size_t Scheduler::keep_common(Place& place, std::span<const uint32_t> prompt) {
  // At least the last token is computed, or there would be nothing to continue from.
  const std::span<const uint32_t> wanted = prompt.first(prompt.size() - 1);
  const size_t kept = common_length(place.sequence.tokens(), wanted);
  if (options_.cache != nullptr && kept < place.sequence.length()) options_.cache->keep(place.sequence);
  place.sequence.truncate(static_cast<uint32_t>(kept));
  return options_.cache == nullptr ? kept : kept + options_.cache->restore(place.sequence, wanted);
}

void Scheduler::occupy(Place& place, Generation generation) {
  const size_t kept = keep_common(place, generation.prompt);
  place.tokens = generation.prompt;
  place.answered = 0;
  place.generation = std::move(generation);
  place.generation->listener->started(static_cast<uint32_t>(kept));
  const std::lock_guard lock(mutex_);
  counts_.kept_tokens += kept;
  counts_.busy += 1;
}

/// Answers under way first, a row each, so that their rows lie side by side; then prompts, the longest unserved first.
std::vector<Scheduler::Part> Scheduler::choose_parts() {
  std::vector<Part> parts;
  std::vector<Place*> prompts;
  uint32_t left = engine_.model.max_rows();
  for (Place& place : places_) {
    if (!place.generation) continue;
    if (place.answered > 0 && left > 0) {
      parts.push_back({.place = &place, .rows = 1});
      --left;
    } else {
      prompts.push_back(&place);
    }
  }
  std::ranges::sort(prompts, {}, [](const Place* place) { return place->used; });
  for (Place* place : prompts) {
    const uint32_t rows = std::min(left, place->lacking());
    if (rows == 0) break;
    parts.push_back({.place = place, .rows = rows});
    left -= rows;
  }
  return parts;
}

void Scheduler::pass(const std::stop_token& stop) {
  const std::vector<Part> parts = choose_parts();
  if (parts.empty()) return;
  std::vector<SequenceTokens> batch;
  uint32_t rows = 0;
  bool reads_prompt = false;
  for (const auto& [place, count] : parts) {
    batch.push_back(
        {.sequence = place->sequence, .tokens = std::span(place->tokens).subspan(place->sequence.length(), count)});
    place->used = ++clock_;
    rows += count;
    reads_prompt |= place->answered == 0;
  }
  // The pass ends early if nobody waits for anything of it any more.
  std::stop_source abandoned;
  std::atomic<size_t> waited_for = parts.size();
  const auto leave = [&] {
    if (--waited_for == 0) abandoned.request_stop();
  };
  std::deque<std::stop_callback<decltype(leave)>> leaving;
  for (const Part& part : parts)
    leaving.emplace_back(part.place->generation->gone, leave);
  const std::stop_callback all_leave(stop, [&] { abandoned.request_stop(); });

  const Model& model = engine_.model;
  model.experts().begin_pass({.phase = reads_prompt ? Phase::prefill : Phase::decode, .rows = rows, .draft_rows = 0});
  const auto start = std::chrono::steady_clock::now();
  const auto hidden = model.forward(batch, engine_.scratch, abandoned.get_token());
  leaving.clear();
  if (!hidden) {
    if (hidden.error().kind == ErrorKind::cancelled) return;  // those who left are dropped before the next pass
    for (const Part& part : parts)
      end(*part.place, hidden.error());
    return;
  }
  advance(parts, hidden->final);
  const std::lock_guard lock(mutex_);
  ++counts_.passes;
  counts_.rows += rows;
  counts_.seconds += seconds_since(start);
}

/// Chooses the token that follows each part whose tokens are all in its cache now.
void Scheduler::advance(const std::vector<Part>& parts, const kernels::Rows& final) {
  TokenPicker& picker = engine_.picker;
  const uint64_t vocab = engine_.model.config().vocab;
  const auto answers =
      static_cast<uint32_t>(std::ranges::count_if(parts, [](const Part& part) { return part.place->answered > 0; }));
  uint32_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [place, rows] = parts[i];
    row += rows;
    if (place->answered == 0) {
      place->generation->listener->prompt_read(place->sequence.length());
      const std::lock_guard lock(mutex_);
      counts_.prompt_tokens += rows;
    }
    if (place->lacking() > 0) continue;
    // The weights of the output head are read once for all answers; a prompt's last row is by itself.
    std::span<const float> logits;
    if (i < answers) {
      if (i == 0) {
        logits_.resize(vocab * answers);
        picker.logits(rows_of(final, 0, answers), logits_);
      }
      logits = std::span(logits_).subspan(i * vocab, vocab);
    } else {
      logits_.resize(vocab);
      picker.logits(rows_of(final, row - 1, 1), logits_);
      logits = logits_;
    }
    if (const auto works = engine_.model.check_device(); !works) {
      end(*place, works.error());
      continue;
    }
    deliver(*place, place->generation->sampler.sample(logits, place->tokens), logits);
  }
}

void Scheduler::deliver(Place& place, const Result<uint32_t>& token, std::span<const float> logits) {
  if (!token) return end(place, token.error());
  const Generation& generation = *place.generation;
  if (std::ranges::find(generation.end_tokens, *token) != generation.end_tokens.end()) {
    return end(place, StopReason::end_token);
  }
  ++place.answered;
  place.tokens.push_back(*token);
  {
    const std::lock_guard lock(mutex_);
    ++counts_.answer_tokens;
  }
  if (!generation.listener->token(*token, logits)) return end(place, StopReason::stopped);
  if (place.answered >= generation.max_tokens) return end(place, StopReason::max_tokens);
  if (place.sequence.length() == place.sequence.capacity()) return end(place, StopReason::context_full);
}

void Scheduler::end(Place& place, const Result<StopReason>& reason) {
  const Generation generation = *std::exchange(place.generation, std::nullopt);
  {
    const std::lock_guard lock(mutex_);
    counts_.busy -= 1;
    if (!reason) ++counts_.failed;
    if (reason && *reason == StopReason::interrupted) ++counts_.cancelled;
  }
  generation.listener->ended(reason);
  if (options_.cache != nullptr && options_.cache->is_durable()) options_.cache->keep(place.sequence);
}

}  // namespace dspack::runtime
