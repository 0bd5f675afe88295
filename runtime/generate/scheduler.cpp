#include "runtime/generate/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "format/base/seconds.h"
#include "runtime/generate/prompt_rows.h"

namespace dspack::runtime {

namespace {

// With answers in progress, longer passes for prompts would delay their next tokens.
constexpr uint32_t kRowsBesideAnswers = 4096;

/// Refuses logits without probabilities, as the sampler does in rows that it chooses from.
Result<void> check_logits(std::span<const float> logits) {
  const auto bad = std::ranges::find_if(
      logits, [](float logit) { return std::isnan(logit) || logit == std::numeric_limits<float>::infinity(); });
  if (bad == logits.end()) return {};
  return Error{ErrorKind::corrupt, fmt::format("logit {} is {}", bad - logits.begin(), *bad)};
}

Error error_of(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
    return {ErrorKind::conflict, "there is not enough memory for this answer now"};
  }
  return {ErrorKind::io, exception.what()};
}

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::make(const Engine& engine, const SchedulerOptions& options) {
  std::unique_ptr<Scheduler> scheduler(new Scheduler(engine, options));
  std::deque<AnswerPlace>& places = scheduler->places_.all();
  for (uint32_t i = 0; i < options.places; ++i) {
    const auto drafting = options.speculation ? Model::Drafting::mtp : Model::Drafting::none;
    TRY_ASSIGN(Sequence sequence, engine.model.make_sequence(drafting));
    AnswerPlace& place = places.emplace_back(AnswerPlace{.sequence = std::move(sequence)});
    if (options.speculation) place.speculator.emplace(scheduler->engine_, *options.speculation);
  }
  return scheduler;
}

Result<void> Scheduler::submit(std::vector<Generation> generations) {
  const Model& model = engine_.model;
  for (const Generation& generation : generations) {
    TRY(check_prompt(generation.prompt, model.config(), model.context()));
    TRY(generation.sampler.check_vocab(model.config().vocab));
  }
  drop_gone_waiting();
  std::vector<Generation> gave_way;
  {
    const std::lock_guard lock(mutex_);
    if (is_draining_) return Error{ErrorKind::conflict, "the server is going down"};
    auto added = waiting_.add(std::move(generations));
    if (!added) {
      ++counts_.refused;
      return added.error();
    }
    gave_way = *std::move(added);
    counts_.refused += requests_of(gave_way);
    changed_.notify_all();
  }
  for (const Generation& each : gave_way) {
    tell_end(each, Error{ErrorKind::budget,
                         "too many requests are waiting, and of this client more than of others, for "
                         "one of which this one has given way"});
  }
  return {};
}

void Scheduler::drain() {
  const std::lock_guard lock(mutex_);
  is_draining_ = true;
  changed_.notify_all();
}

void Scheduler::between_passes(std::function<void()> look) {
  const std::lock_guard lock(mutex_);
  looks_.push_back(std::move(look));
  changed_.notify_all();
}

void Scheduler::look() {
  std::vector<std::function<void()>> looks;
  {
    const std::lock_guard lock(mutex_);
    looks.swap(looks_);
  }
  for (const auto& each : looks)
    each();
}

SchedulerCounts Scheduler::counts() const {
  const std::lock_guard lock(mutex_);
  SchedulerCounts counts = counts_;
  counts.waiting = waiting_.wanted();
  if (options_.cache != nullptr) counts.cache = options_.cache->counts();
  return counts;
}

uint32_t Scheduler::layers_begun() const {
  const uint64_t before = layers_before_;
  const uint64_t begun = engine_.scratch.state().layers_begun;
  return static_cast<uint32_t>(std::min<uint64_t>(begun - std::min(begun, before), engine_.model.layer_map().size()));
}

void Scheduler::run(const std::stop_token& stop) {
  while (wait(stop)) {
    look();
    drop_gone();
    admit();
    pass(stop);
  }
  for (AnswerPlace& place : places_.all())
    if (place.generation) end(place, StopReason::interrupted);
  std::vector<Generation> left;
  {
    const std::lock_guard lock(mutex_);
    is_draining_ = true;
    left = waiting_.take_all();
  }
  for (const Generation& generation : left)
    tell_end(generation, StopReason::interrupted);
}

/// Blocks until there is work; false: there will be none.
bool Scheduler::wait(const std::stop_token& stop) {
  if (stop.stop_requested()) return false;
  if (places_.busy() > 0) return true;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, stop, [this] { return is_draining_ || !waiting_.empty() || !looks_.empty(); });
  return !stop.stop_requested() && (!waiting_.empty() || !looks_.empty());
}

void Scheduler::drop_gone() {
  for (AnswerPlace& place : places_.all())
    if (place.generation && place.generation->gone.stop_requested()) end(place, StopReason::interrupted);
  drop_gone_waiting();
}

/// Called by any thread, since a pass may take minutes.
void Scheduler::drop_gone_waiting() {
  std::vector<Generation> gone;
  {
    const std::lock_guard lock(mutex_);
    gone = waiting_.take_gone();
    counts_.cancelled += gone.size();
  }
  for (const Generation& generation : gone)
    tell_end(generation, StopReason::interrupted);
}

void Scheduler::admit() {
  for (;;) {
    const uint32_t busy = places_.busy();
    if (busy == places() || !admission_.admits(busy)) return;
    std::optional<Generation> next;
    {
      const std::lock_guard lock(mutex_);
      next = waiting_.take([this](const std::string& client) { return places_.busy(client); });
      if (!next) return;
      ++counts_.generations;
    }
    const bool has_nothing_to_do = next->max_tokens == 0 && !next->scores_prompt;
    if (next->gone.stop_requested() || has_nothing_to_do) {
      tell_end(*next, has_nothing_to_do ? StopReason::max_tokens : StopReason::interrupted);
      continue;
    }
    AnswerPlace& place = places_.choose(*next);
    place.generation = std::move(next);
    {
      const std::lock_guard lock(mutex_);
      counts_.busy += 1;
    }
    attempt(place, [&] { occupy(place); });
  }
}

void Scheduler::occupy(AnswerPlace& place) {
  const uint32_t copied = places_.begin_with_common(place);
  place.answer.emplace(
      engine_, place.sequence, place.speculator ? &*place.speculator : nullptr, std::move(place.generation->prompt),
      AnswerLimits{.max_tokens = place.generation->max_tokens, .end_tokens = place.generation->end_tokens},
      place.generation->sampler);
  place.arrived = ++clock_;
  const uint32_t kept = place.sequence.length();
  place.generation->listener->started(kept);
  const std::lock_guard lock(mutex_);
  counts_.kept_tokens += kept;
  counts_.copied_tokens += copied;
}

/// Reuses rows that other places have computed meanwhile, for prompts that are being read.
void Scheduler::share_prefixes() {
  for (AnswerPlace& place : places_.all()) {
    if (!place.answer || !place.answer->is_reading() || place.generation->scores_prompt) continue;
    attempt(place, [&] {
      const uint32_t taken = places_.take_from_others(place, place.answer->tokens());
      if (taken == 0) return;
      place.generation->listener->started(place.sequence.length());
      const std::lock_guard lock(mutex_);
      counts_.kept_tokens += taken;
      counts_.copied_tokens += taken;
    });
  }
}

/// Whether a pass of few rows costs a prompt nearly as little a row as one of many: on a CPU that has the experts in
/// memory, except for less than one a layer, which prompts meet for the first time.
bool Scheduler::reads_prompts_in_turn() const {
  return engine_.model.device().is_host() && misses_of_prompts_ < engine_.model.layer_map().size();
}

/// Answers in progress first, so that their rows are adjacent, the longest unserved first; then prompts, as they came.
std::vector<Scheduler::PlaceRows> Scheduler::choose_parts() {
  std::vector<AnswerPlace*> answers;
  std::vector<AnswerPlace*> prompts;
  for (AnswerPlace& place : places_.all()) {
    if (!place.answer) continue;
    if (!place.answer->is_reading())
      answers.push_back(&place);
    else if (!places_.is_being_read_elsewhere(place))
      prompts.push_back(&place);
  }
  std::ranges::sort(answers, {}, [](const AnswerPlace* place) { return place->use.used; });
  std::ranges::sort(prompts, {}, &AnswerPlace::arrived);
  const bool is_fixed = options_.speculation && options_.speculation->drafts;
  const SchedulerCounts now = counts();
  const bool may_draft = is_fixed || (now.busy == 1 && now.waiting == 0);
  std::vector<PlaceRows> parts;
  uint32_t rows = 0;
  size_t to_serve = answers.size();
  const auto take = [&](AnswerPlace& place, uint32_t most) {
    attempt(place, [&] {
      const auto next = place.answer->next(most, may_draft, place.generation->gone);
      if (!next) return end(place, next.error());
      parts.push_back({.place = place, .tokens = *next, .first = rows});
      rows += static_cast<uint32_t>(next->size());
    });
  };
  const uint32_t all = engine_.model.max_rows();
  for (AnswerPlace* place : answers) {
    --to_serve;
    if (rows == all) break;
    const uint32_t left = all - rows;
    take(*place, to_serve < left ? left - static_cast<uint32_t>(to_serve) : 1);  // drafts leave the others a row
  }
  const uint32_t most = answers.empty() ? all : std::min(all, std::max(rows, kRowsBesideAnswers));
  std::vector<uint32_t> lacking;
  lacking.reserve(prompts.size());
  for (const AnswerPlace* place : prompts)
    lacking.push_back(place->answer->lacking());
  const bool in_turn = reads_prompts_in_turn();
  const uint32_t left = most - rows;
  const std::vector<uint32_t> shares =
      divide_rows(lacking, {.most = left,
                            .share = in_turn ? efficient_rows(engine_.model.config(), !answers.empty()) : left / 2,
                            .is_filled = !in_turn});
  for (size_t i = 0; i < prompts.size(); ++i)
    if (shares[i] > 0) take(*prompts[i], shares[i]);
  return parts;
}

void Scheduler::pass(const std::stop_token& stop) {
  share_prefixes();
  const std::vector<PlaceRows> parts = choose_parts();
  if (parts.empty()) return;
  uint32_t rows = 0;
  bool reads_prompt = false;
  for (const PlaceRows& part : parts) {
    part.place.use.used = ++clock_;
    rows += static_cast<uint32_t>(part.tokens.size());
    reads_prompt |= part.place.answer->is_reading();
  }
  const Model& model = engine_.model;
  const bool is_only = parts.size() == 1;
  model.experts().begin_pass({.phase = reads_prompt ? Phase::prefill : Phase::decode,
                              .rows = rows,
                              .draft_rows = is_only ? parts.front().place.answer->drafts() : 0});
  const uint64_t misses_before = model.experts().miss_counts().misses;
  const uint64_t drafts_before = counts_.accepted_drafts;
  layers_before_ = engine_.scratch.state().layers_begun.load();
  const auto start = std::chrono::steady_clock::now();
  const auto final = forward(parts, stop);
  if (!final) {
    if (final.error().kind == ErrorKind::cancelled) return;  // abandoned answers are dropped before the next pass
    {
      const std::lock_guard lock(mutex_);
      counts_.failed_at = std::chrono::steady_clock::now();
    }
    for (const PlaceRows& part : parts)
      end(part.place, final.error());
    return;
  }
  const std::vector<PlaceRows> going_on = read_on(parts, *final, seconds_since(start) / rows);
  if (!is_only || going_on.empty() || going_on.front().place.generation->listener->wants_logits())
    choose_by_logits(going_on, *final, is_only);
  else
    choose_by_state(going_on.front().place, *final);
  const uint64_t misses = model.experts().miss_counts().misses - misses_before;
  if (reads_prompt) misses_of_prompts_ = misses;
  const std::lock_guard lock(mutex_);
  if (!reads_prompt) {
    const auto answers = static_cast<uint32_t>(parts.size());
    const auto tokens = answers + static_cast<uint32_t>(counts_.accepted_drafts - drafts_before);
    admission_.record(answers, tokens, misses);
  }
  ++counts_.passes;
  counts_.failed_at.reset();
  counts_.rows += rows;
  counts_.seconds += seconds_since(start);
}

/// Runs the model over all parts; stops early once all of their clients are gone. An exception is an error of this
/// pass, whose parts cannot continue.
Result<kernels::Rows> Scheduler::forward(std::span<const PlaceRows> parts, const std::stop_token& stop) {
  std::vector<SequenceTokens> batch;
  for (const PlaceRows& part : parts)
    batch.push_back({.sequence = part.place.sequence, .tokens = part.tokens});
  std::stop_source abandoned;
  std::atomic<size_t> waited_for = parts.size();
  const auto leave = [&] {
    if (--waited_for == 0) abandoned.request_stop();
  };
  std::deque<std::stop_callback<decltype(leave)>> leaving;
  for (const PlaceRows& part : parts)
    leaving.emplace_back(part.place.generation->gone, leave);
  const std::stop_callback all_leave(stop, [&] { abandoned.request_stop(); });
  PassEnd* const end = parts.size() == 1 ? parts.front().place.answer->end_of_pass() : nullptr;
  try {
    TRY_ASSIGN(const auto hidden,
               engine_.model.forward(batch, engine_.scratch, abandoned.get_token(), {.trace = nullptr, .end = end}));
    return hidden.final;
  } catch (const std::exception& exception) {
    for (const PlaceRows& part : parts)
      part.place.sequence.truncate(0);  // their state is unknown
    return error_of(exception);
  }
}

/// Reports the progress of prompts. Returns the parts that have not ended.
std::vector<Scheduler::PlaceRows> Scheduler::read_on(std::span<const PlaceRows> parts, const kernels::Rows& final,
                                                     double row_seconds) {
  std::vector<PlaceRows> going_on;
  going_on.reserve(parts.size());
  for (const PlaceRows& part : parts) {
    attempt(part.place, [&] {
      const auto count = static_cast<uint32_t>(part.tokens.size());
      part.place.answer->passed(row_seconds * count);
      if (part.place.answer->is_reading()) {
        part.place.generation->listener->prompt_read(part.place.sequence.length());
        if (part.place.answer->lacking() == 0) places_.keep_prompt(part.place.sequence);
        const std::lock_guard lock(mutex_);
        counts_.prompt_tokens += count;
      }
      if (score_prompt(part, final)) going_on.push_back(part);
    });
  }
  return going_on;
}

/// False: the answer has ended, since it failed or only the scores were requested.
bool Scheduler::score_prompt(const PlaceRows& part, const kernels::Rows& final) {
  AnswerPlace& place = part.place;
  if (!place.generation->scores_prompt || !place.answer->is_reading()) return true;
  const auto scored = tell_scores(part, final);
  if (!scored) return end(place, scored.error()), false;
  const bool has_all = place.generation->max_tokens == 0 && place.answer->lacking() == 0;
  if (has_all) end(place, StopReason::max_tokens);
  return !has_all;
}

/// Reports the logits for the tokens after the part's rows, some rows at a time: those of a whole prompt may be
/// gigabytes.
Result<void> Scheduler::tell_scores(const PlaceRows& part, const kernels::Rows& final) {
  const std::span<const uint32_t> prompt = part.place.answer->tokens();
  GenerationListener& listener = *part.place.generation->listener;
  const uint64_t vocab = engine_.model.config().vocab;
  const size_t first = part.place.sequence.length() - part.tokens.size();  // the position of the first row
  if (first == 0) listener.prompt_scored(prompt.first(1), {});
  std::span<const uint32_t> untold = prompt.subspan(first + 1);  // the prompt's last row predicts the answer
  untold = untold.first(std::min(untold.size(), part.tokens.size()));
  for (uint32_t row = part.first; !untold.empty() && !part.place.generation->gone.stop_requested();) {
    const auto rows = static_cast<uint32_t>(std::min<size_t>(untold.size(), kScoredRows));
    logits_.resize(vocab * rows);
    engine_.picker.logits(rows_of(final, row, rows), logits_);
    TRY(engine_.model.check_device());
    TRY(check_logits(logits_));
    listener.prompt_scored(untold.first(rows), logits_);
    untold = untold.subspan(rows);
    row += rows;
  }
  return {};
}

/// Chooses from the final states: the device may determine the token for less than the logits cost.
void Scheduler::choose_by_state(AnswerPlace& place, const kernels::Rows& final) {
  Continuation& answer = *place.answer;
  if (!answer.needs_choice()) return;
  const uint32_t scored = answer.scored_rows();
  attempt(place,
          [&] { deliver(place, answer.choose(rows_of(final, final.rows - scored, scored)), {}, /*is_only=*/true); });
}

/// Chooses from logits. The head's weights are read once for adjacent answers; a prompt's last row is by itself.
/// `is_only`: the pass was of one answer alone.
void Scheduler::choose_by_logits(std::span<const PlaceRows> parts, const kernels::Rows& final, bool is_only) {
  const uint64_t vocab = engine_.model.config().vocab;
  while (!parts.empty()) {
    const bool is_reading = parts.front().place.answer->is_reading();
    if (is_reading && !parts.front().place.answer->needs_choice()) {
      parts = parts.subspan(1);
      continue;
    }
    uint32_t rows = parts.front().place.answer->scored_rows();
    const uint32_t first = parts.front().first + static_cast<uint32_t>(parts.front().tokens.size()) - rows;
    size_t together = 1;
    for (; !is_reading && together < parts.size(); ++together) {
      const Continuation& next = *parts[together].place.answer;
      if (next.is_reading() || rows + next.scored_rows() > kScoredRows) break;
      rows += next.scored_rows();
    }
    logits_.resize(vocab * rows);
    engine_.picker.logits(rows_of(final, first, rows), logits_);
    std::span<const float> left = logits_;
    for (const PlaceRows& part : parts.first(together)) {
      const auto logits = left.first(part.place.answer->scored_rows() * vocab);
      left = left.subspan(logits.size());
      attempt(part.place, [&] { deliver(part.place, part.place.answer->choose(logits), logits, is_only); });
    }
    parts = parts.subspan(together);
  }
}

/// `logits`: of the rows that were chosen from, or empty. `is_only`: the pass was of this answer alone.
void Scheduler::deliver(AnswerPlace& place, const Result<void>& chosen, std::span<const float> logits, bool is_only) {
  if (!chosen) return end(place, chosen.error());
  Continuation& answer = *place.answer;
  GenerationListener& listener = *place.generation->listener;
  const uint32_t drafts = answer.drafts();
  const uint32_t accepted = answer.accepted_drafts();
  if (drafts > 0) listener.drafted(drafts, accepted);
  if (drafts > 0 && is_only) engine_.model.experts().accept_drafts(accepted);
  const size_t vocab = logits.size() / answer.scored_rows();
  const size_t before = answer.answer().size();
  const auto on_token = [&](uint32_t token, uint32_t row) {
    return listener.token(token, logits.empty() ? logits : logits.subspan(row * vocab, vocab));
  };
  const auto reason = answer.deliver(on_token, place.generation->gone);
  if (reason == StopReason::end_token) {
    const size_t row = answer.answer().size() - before;
    // A form may be complete with its last token: then no end token was chosen.
    if (row < answer.chosen().size()) {
      listener.end_token(answer.chosen()[row], logits.empty() ? logits : logits.subspan(row * vocab, vocab));
    }
  }
  {
    const std::lock_guard lock(mutex_);
    counts_.answer_tokens += answer.answer().size() - before;
    counts_.drafted_tokens += drafts;
    counts_.accepted_drafts += accepted;
  }
  if (reason) end(place, *reason);
}

/// An exception in the work for an answer ends only that answer.
template <class Work>
void Scheduler::attempt(AnswerPlace& place, Work&& work) {
  try {
    work();
  } catch (const std::exception& exception) {
    if (place.generation) fail(place, error_of(exception));
  }
}

/// Drops the sequence, whose state is unknown, and ends the answer.
void Scheduler::fail(AnswerPlace& place, const Error& error) {
  place.answer.reset();
  place.sequence.truncate(0);
  place.use = {.used = place.use.used};
  end(place, error);
}

void Scheduler::end(AnswerPlace& place, const Result<StopReason>& reason) {
  if (place.answer) place.answer->finish();
  place.answer.reset();
  const Generation generation = *std::exchange(place.generation, std::nullopt);
  {
    const std::lock_guard lock(mutex_);
    counts_.busy -= 1;
    if (!reason) ++counts_.failed;
    if (reason && *reason == StopReason::interrupted) ++counts_.cancelled;
  }
  if (!reason && reason.error().kind == ErrorKind::corrupt) places_.forget(place.sequence);
  tell_end(generation, reason);
  if (options_.cache != nullptr && options_.cache->is_durable()) places_.keep(place.sequence);
}

/// If memory is too short to notify a listener, it is dropped, and its client's connection with it.
void Scheduler::tell_end(const Generation& generation, const Result<StopReason>& reason) {
  try {
    generation.listener->ended(reason);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace dspack::runtime
