#include "runtime/generate/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "format/base/seconds.h"

namespace dspack::runtime {

namespace {

// A pass that is longer for prompts would make those wait who are being answered.
constexpr uint32_t kRowsBesideAnswers = 4096;

/// What has no probabilities; the sampler refuses the same in rows that it chooses from.
Result<void> check_logits(std::span<const float> logits) {
  const auto bad = std::ranges::find_if(
      logits, [](float logit) { return std::isnan(logit) || logit == std::numeric_limits<float>::infinity(); });
  if (bad == logits.end()) return {};
  return Error{ErrorKind::corrupt, fmt::format("logit {} is {}", bad - logits.begin(), *bad)};
}

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::make(const Engine& engine, const SchedulerOptions& options) {
  std::unique_ptr<Scheduler> scheduler(new Scheduler(engine, options));
  for (uint32_t i = 0; i < options.places; ++i) {
    const auto drafting = options.speculation ? Model::Drafting::mtp : Model::Drafting::none;
    TRY_ASSIGN(Sequence sequence, engine.model.make_sequence(drafting));
    Place& place = scheduler->places_.emplace_back(Place{.sequence = std::move(sequence)});
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
  const std::lock_guard lock(mutex_);
  if (is_draining_) return Error{ErrorKind::conflict, "the server is going down"};
  const uint32_t waiting = waiting_requests();
  if (waiting >= options_.waiting || waiting_.size() + generations.size() > kMostWaiting) {
    ++counts_.refused;
    return Error{ErrorKind::budget, fmt::format("{} requests are waiting already, for {} answers; {} may, for {}",
                                                waiting, waiting_.size(), options_.waiting, kMostWaiting)};
  }
  ++requests_;
  for (Generation& generation : generations) {
    generation.request = requests_;
    waiting_.push_back(std::move(generation));
  }
  changed_.notify_all();
  return {};
}

/// Those submitted together count as one, also when some of them have their place.
uint32_t Scheduler::waiting_requests() const {
  uint32_t count = 0;
  uint64_t last = 0;
  for (const Generation& generation : waiting_)
    if (std::exchange(last, generation.request) != generation.request) ++count;
  return count;
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
  counts.waiting = static_cast<uint32_t>(
      std::ranges::count_if(waiting_, [](const Generation& generation) { return !generation.gone.stop_requested(); }));
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
  changed_.wait(lock, stop, [this] { return is_draining_ || !waiting_.empty() || !looks_.empty(); });
  return !stop.stop_requested() && (!waiting_.empty() || !looks_.empty());
}

void Scheduler::drop_gone() {
  for (Place& place : places_)
    if (place.generation && place.generation->gone.stop_requested()) end(place, StopReason::interrupted);
  drop_gone_waiting();
}

/// Of any thread, since a pass may take minutes.
void Scheduler::drop_gone_waiting() {
  std::deque<Generation> gone;
  {
    const std::lock_guard lock(mutex_);
    std::deque<Generation> wanted;
    for (Generation& each : waiting_)
      (each.gone.stop_requested() ? gone : wanted).push_back(std::move(each));
    waiting_.swap(wanted);
    counts_.cancelled += gone.size();
  }
  for (const Generation& generation : gone)
    generation.listener->ended(StopReason::interrupted);
}

/// The one that has waited for longest gets the free place that holds most of its prompt; of equals the one that has
/// been unused for longest.
void Scheduler::admit() {
  for (;;) {
    const auto busy = static_cast<uint32_t>(
        std::ranges::count_if(places_, [](const Place& place) { return place.generation.has_value(); }));
    if (busy == places_.size() || !admission_.admits(busy)) return;
    std::optional<Generation> next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      ++counts_.generations;
    }
    const bool has_nothing_to_do = next->max_tokens == 0 && !next->scores_prompt;
    if (next->gone.stop_requested() || has_nothing_to_do) {
      next->listener->ended(has_nothing_to_do ? StopReason::max_tokens : StopReason::interrupted);
      continue;
    }
    Place* best = nullptr;
    uint32_t most = 0;
    for (Place& place : places_) {
      if (place.generation) continue;
      const uint32_t common = next->scores_prompt ? 0 : kept_tokens(place.sequence.tokens(), next->prompt);
      if (best == nullptr || common > most || (common == most && place.used < best->used)) {
        best = &place;
        most = common;
      }
    }
    occupy(*best, *std::move(next));
  }
}

/// Leaves in the place what the prompt begins with, as much as there is anywhere; nothing of one that is scored, since
/// a cache has no logits.
void Scheduler::keep_common(Place& place, const Generation& generation) {
  const std::span<const uint32_t> prompt = generation.prompt;
  const uint32_t kept = generation.scores_prompt ? 0 : kept_tokens(place.sequence.tokens(), prompt);
  if (options_.cache != nullptr && kept < place.sequence.length()) options_.cache->keep(place.sequence);
  place.sequence.truncate(kept);
  if (generation.scores_prompt) return;
  take_from_places(place, prompt);
  if (options_.cache != nullptr) options_.cache->restore(place.sequence, prompt.first(prompt.size() - 1));
}

void Scheduler::occupy(Place& place, Generation generation) {
  keep_common(place, generation);
  place.generation = std::move(generation);
  place.answer.emplace(
      engine_, place.sequence, place.speculator ? &*place.speculator : nullptr, std::move(place.generation->prompt),
      AnswerLimits{.max_tokens = place.generation->max_tokens, .end_tokens = place.generation->end_tokens},
      place.generation->sampler);
  place.arrived = ++clock_;
  const uint32_t kept = place.sequence.length();
  place.generation->listener->started(kept);
  const std::lock_guard lock(mutex_);
  counts_.kept_tokens += kept;
  counts_.busy += 1;
}

/// What any other place holds of `prompt`, with which the place's sequence begins; returns how much that is.
uint32_t Scheduler::take_from_places(Place& place, std::span<const uint32_t> prompt) {
  const uint32_t before = place.sequence.length();
  for (const Place& other : places_) {
    const uint32_t common = kept_tokens(other.sequence.tokens(), prompt);
    if (&other != &place && common > place.sequence.length()) place.sequence.extend_from(other.sequence, common);
  }
  const uint32_t taken = place.sequence.length() - before;
  const std::lock_guard lock(mutex_);
  counts_.copied_tokens += taken;
  return taken;
}

/// Of prompts that are being read already.
void Scheduler::share_prefixes() {
  for (Place& place : places_) {
    if (!place.answer || !place.answer->is_reading() || place.generation->scores_prompt) continue;
    const uint32_t taken = take_from_places(place, place.answer->tokens());
    if (taken == 0) continue;
    place.generation->listener->started(place.sequence.length());
    const std::lock_guard lock(mutex_);
    counts_.kept_tokens += taken;
  }
}

/// Whether an earlier prompt that is being read has at least half of what this one lacks.
bool Scheduler::is_being_read_elsewhere(const Place& place) const {
  if (place.generation->scores_prompt) return false;  // it takes nothing
  return std::ranges::any_of(places_, [&place](const Place& other) {
    if (&other == &place || !other.answer || !other.answer->is_reading() || other.arrived > place.arrived) return false;
    const uint32_t common = kept_tokens(other.answer->tokens(), place.answer->tokens());
    return common >= place.sequence.length() + (place.answer->lacking() + 1) / 2;
  });
}

/// Answers under way first, so that their rows lie side by side; then prompts. Of each kind the longest unserved first.
std::vector<Scheduler::Part> Scheduler::choose_parts() {
  std::vector<Place*> answers;
  std::vector<Place*> prompts;
  for (Place& place : places_) {
    if (!place.answer) continue;
    if (!place.answer->is_reading())
      answers.push_back(&place);
    else if (!is_being_read_elsewhere(place))
      prompts.push_back(&place);
  }
  const auto use = [](const Place* place) { return place->used; };
  std::ranges::sort(answers, {}, use);
  std::ranges::sort(prompts, {}, use);
  const bool is_fixed = options_.speculation && options_.speculation->drafts;
  const SchedulerCounts now = counts();
  const bool may_draft = is_fixed || (now.busy == 1 && now.waiting == 0);
  std::vector<Part> parts;
  uint32_t rows = 0;
  size_t to_serve = answers.size();
  const auto take = [&](Place& place, uint32_t most) {
    const auto next = place.answer->next(most, may_draft, place.generation->gone);
    if (!next) return end(place, next.error());
    parts.push_back({.place = place, .tokens = *next, .first = rows});
    rows += static_cast<uint32_t>(next->size());
  };
  const uint32_t all = engine_.model.max_rows();
  for (Place* place : answers) {
    --to_serve;
    if (rows == all) break;
    const uint32_t left = all - rows;
    take(*place, to_serve < left ? left - static_cast<uint32_t>(to_serve) : 1);  // drafts leave the others a row
  }
  const uint32_t most = answers.empty() ? all : std::min(all, std::max(rows, kRowsBesideAnswers));
  for (Place* place : prompts) {
    if (rows == most) break;
    take(*place, most - rows);
  }
  return parts;
}

void Scheduler::pass(const std::stop_token& stop) {
  share_prefixes();
  const std::vector<Part> parts = choose_parts();
  if (parts.empty()) return;
  std::vector<SequenceTokens> batch;
  uint32_t rows = 0;
  bool reads_prompt = false;
  for (const Part& part : parts) {
    batch.push_back({.sequence = part.place.sequence, .tokens = part.tokens});
    part.place.used = ++clock_;
    rows += static_cast<uint32_t>(part.tokens.size());
    reads_prompt |= part.place.answer->is_reading();
  }
  // The pass ends early if nobody waits for anything of it any more.
  std::stop_source abandoned;
  std::atomic<size_t> waited_for = parts.size();
  const auto leave = [&] {
    if (--waited_for == 0) abandoned.request_stop();
  };
  std::deque<std::stop_callback<decltype(leave)>> leaving;
  for (const Part& part : parts)
    leaving.emplace_back(part.place.generation->gone, leave);
  const std::stop_callback all_leave(stop, [&] { abandoned.request_stop(); });

  const Model& model = engine_.model;
  Place* const only = parts.size() == 1 ? &parts.front().place : nullptr;
  model.experts().begin_pass({.phase = reads_prompt ? Phase::prefill : Phase::decode,
                              .rows = rows,
                              .draft_rows = only == nullptr ? 0 : only->answer->drafts()});
  const uint64_t misses_before = model.experts().miss_counts().misses;
  const uint64_t drafts_before = counts_.accepted_drafts;
  layers_before_ = engine_.scratch.state().layers_begun.load();
  const auto start = std::chrono::steady_clock::now();
  const auto hidden = model.forward(batch, engine_.scratch, abandoned.get_token(),
                                    {.trace = nullptr, .end = only == nullptr ? nullptr : only->answer->end_of_pass()});
  leaving.clear();
  if (!hidden) {
    if (hidden.error().kind == ErrorKind::cancelled) return;  // those who left are dropped before the next pass
    for (const Part& part : parts)
      end(part.place, hidden.error());
    return;
  }
  const double seconds = seconds_since(start);
  for (const Part& part : parts) {
    const auto count = static_cast<uint32_t>(part.tokens.size());
    part.place.answer->passed(seconds * count / rows);
    if (!part.place.answer->is_reading()) continue;
    part.place.generation->listener->prompt_read(part.place.sequence.length());
    const std::lock_guard lock(mutex_);
    counts_.prompt_tokens += count;
  }
  const std::vector<Part> going_on = score_prompts(parts, hidden->final);
  if (only == nullptr || going_on.empty() || only->generation->listener->wants_logits())
    choose_by_logits(going_on, hidden->final, only != nullptr);
  else
    choose_by_state(*only, hidden->final);
  const std::lock_guard lock(mutex_);
  if (!reads_prompt) {
    const auto answers = static_cast<uint32_t>(parts.size());
    const auto tokens = answers + static_cast<uint32_t>(counts_.accepted_drafts - drafts_before);
    admission_.record(answers, tokens, model.experts().miss_counts().misses - misses_before);
  }
  ++counts_.passes;
  counts_.rows += rows;
  counts_.seconds += seconds_since(start);
}

/// Those that have not ended with it: for some the scores are all that was asked for.
std::vector<Scheduler::Part> Scheduler::score_prompts(std::span<const Part> parts, const kernels::Rows& final) {
  std::vector<Part> going_on;
  for (const Part& part : parts) {
    Place& place = part.place;
    if (place.generation->scores_prompt && place.answer->is_reading()) {
      const auto scored = score_prompt(part, final);
      const bool has_all = place.generation->max_tokens == 0 && place.answer->lacking() == 0;
      if (!scored || has_all) {
        end(place, scored ? Result<StopReason>(StopReason::max_tokens) : scored.error());
        continue;
      }
    }
    going_on.push_back(part);
  }
  return going_on;
}

/// What the part's rows say of the tokens after them, some rows at a time: logits of a whole prompt may be gigabytes.
Result<void> Scheduler::score_prompt(const Part& part, const kernels::Rows& final) {
  const std::span<const uint32_t> prompt = part.place.answer->tokens();
  GenerationListener& listener = *part.place.generation->listener;
  const uint64_t vocab = engine_.model.config().vocab;
  const size_t first = part.place.sequence.length() - part.tokens.size();  // the position of the first row
  if (first == 0) listener.prompt_scored(prompt.first(1), {});
  std::span<const uint32_t> untold = prompt.subspan(first + 1);  // the prompt's last row tells of the answer
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

/// Where the device may tell the token for less than the logits cost.
void Scheduler::choose_by_state(Place& place, const kernels::Rows& final) {
  Continuation& answer = *place.answer;
  if (!answer.needs_choice()) return;
  const uint32_t scored = answer.scored_rows();
  deliver(place, answer.choose(rows_of(final, final.rows - scored, scored)), {}, /*is_only=*/true);
}

/// The weights of the output head are read once for answers that lie side by side; a prompt's last row is by itself.
/// `is_only`: the pass was of one answer alone.
void Scheduler::choose_by_logits(std::span<const Part> parts, const kernels::Rows& final, bool is_only) {
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
    for (const Part& part : parts.first(together)) {
      const auto logits = left.first(part.place.answer->scored_rows() * vocab);
      left = left.subspan(logits.size());
      deliver(part.place, part.place.answer->choose(logits), logits, is_only);
    }
    parts = parts.subspan(together);
  }
}

/// `logits` of the rows that were chosen from, or none. `is_only`: the pass was of this answer alone.
void Scheduler::deliver(Place& place, const Result<void>& chosen, std::span<const float> logits, bool is_only) {
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
    // A form may be whole with its last token: then no end token was chosen.
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

/// Rows that gave no probabilities, wherever they have come from, are not kept, nor gone on from: not by this place,
/// and not by others that may have them from it or from the same file.
void Scheduler::forget(Sequence& sequence) {
  const std::vector<uint32_t> tokens(sequence.tokens().begin(), sequence.tokens().end());
  if (options_.cache != nullptr) options_.cache->forget(tokens);
  sequence.truncate(0);
  for (Place& other : places_)
    if (!other.generation && kept_tokens(other.sequence.tokens(), tokens) > 0) other.sequence.truncate(0);
}

void Scheduler::end(Place& place, const Result<StopReason>& reason) {
  place.answer->finish();
  place.answer.reset();
  const Generation generation = *std::exchange(place.generation, std::nullopt);
  {
    const std::lock_guard lock(mutex_);
    counts_.busy -= 1;
    if (!reason) ++counts_.failed;
    if (reason && *reason == StopReason::interrupted) ++counts_.cancelled;
  }
  if (!reason && reason.error().kind == ErrorKind::corrupt) forget(place.sequence);
  generation.listener->ended(reason);
  if (options_.cache != nullptr && options_.cache->is_durable()) options_.cache->keep(place.sequence);
}

}  // namespace dspack::runtime
