#include "runtime/generate/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "format/base/seconds.h"
#include "runtime/model/scratch.h"

namespace dspack::runtime {

namespace {

using Clock = std::chrono::steady_clock;

// Rows of logits in memory at once; 64 of V3 are 33 MB.
constexpr uint32_t kLogitRows = 64;

/// How `sampler` is going to draw the next token, if the context has no say in it.
std::optional<TokenDraw> draw_of(Sampler& sampler) {
  const auto settings = sampler.drawn_as_they_stand();
  if (!settings) return std::nullopt;
  return TokenDraw{.settings = *settings, .uniform = sampler.next_uniform()};
}

}  // namespace

void Session::clear() {
  roll_back(0);
}

void Session::roll_back(size_t length) {
  cached_.resize(length);
  model_.cache().truncate(static_cast<uint32_t>(length));
  if (speculator_ != nullptr) speculator_->truncate(static_cast<uint32_t>(length));
}

Result<void> Session::check(std::span<const uint32_t> prompt) const {
  if (prompt.empty()) return Error{ErrorKind::invalid, "the prompt holds no token"};
  for (const uint32_t token : prompt) {
    if (token >= model_.config().vocab) {
      return Error{ErrorKind::invalid,
                   fmt::format("token {} is outside the vocabulary of {} (vocab_size in config.json)", token,
                               model_.config().vocab)};
    }
  }
  const uint32_t capacity = model_.cache().capacity();
  if (prompt.size() <= capacity) return {};
  return Error{ErrorKind::invalid,
               fmt::format("the prompt has {} tokens, but the context holds {}; shorten it or allow "
                           "more with --ctx (this model: up to {})",
                           prompt.size(), capacity, model_.config().longest_context())};
}

Result<HiddenStates> Session::append(std::span<const uint32_t> tokens, Phase phase, const std::stop_token& stop,
                                     const std::optional<TokenDraw>& draw) {
  const auto rows = static_cast<uint32_t>(tokens.size());
  model_.experts().begin_pass({.phase = phase, .rows = rows, .draft_rows = phase == Phase::decode ? rows - 1 : 0});
  TRY_ASSIGN(const HiddenStates hidden, model_.forward(tokens, stop, {}, draw));
  cached_.insert(cached_.end(), tokens.begin(), tokens.end());
  if (speculator_ != nullptr) speculator_->observe(hidden);
  return hidden;
}

// Tokens of the prompt that the cache holds. At least the last token is computed, or there would be nothing to continue
// from.
size_t Session::common_length(std::span<const uint32_t> prompt) const {
  const auto [mine, theirs] = std::ranges::mismatch(cached_, prompt);
  return std::min<size_t>(static_cast<size_t>(mine - cached_.begin()), prompt.size() - 1);
}

// Hidden states of the last chunk.
Result<HiddenStates> Session::prefill(std::span<const uint32_t> prompt, const std::stop_token& stop) {
  const auto start = Clock::now();
  const size_t common = common_length(prompt);
  roll_back(common);
  HiddenStates hidden;
  for (size_t done = common; done < prompt.size();) {
    const size_t count = std::min<size_t>(model_.max_rows(), prompt.size() - done);
    TRY_ASSIGN(hidden, append(prompt.subspan(done, count), Phase::prefill, stop));
    done += count;
  }
  times_.prefill_tokens += prompt.size() - common;
  const double seconds = seconds_since(start);
  times_.prefill_seconds += seconds;
  if (speculator_ != nullptr) speculator_->prefilled(prompt.size() - common, seconds);
  return hidden;
}

Result<uint32_t> Session::choose(const kernels::Rows& final, std::span<const uint32_t> context, Sampler& sampler) {
  if (sampler.takes_highest()) {
    if (const auto tokens = model_.likeliest(final)) return tokens->front();
  } else if (const auto draw = draw_of(sampler)) {
    if (const auto token = model_.drawn(final, *draw)) {
      (void)sampler.uniform();  // this number has been used
      return *token;
    }
  }
  logits_.resize(model_.config().vocab);
  model_.logits(final, logits_);
  return sampler.sample(logits_, context);
}

Result<std::vector<uint32_t>> Session::verify(const kernels::Rows& final, std::span<const uint32_t> tokens,
                                              Sampler& sampler) {
  if (sampler.takes_highest()) {
    if (const auto likeliest = model_.likeliest(final)) return speculator_->verify(*likeliest);
  }
  logits_.resize(uint64_t{final.rows} * model_.config().vocab);
  model_.logits(final, logits_);
  return speculator_->verify(tokens, logits_, sampler);
}

// The answer's first token.
Result<std::vector<uint32_t>> Session::begin(const HiddenStates& hidden, Sampler& sampler) {
  const auto token = choose(rows_of(hidden.final, hidden.final.rows - 1, 1), cached_, sampler);
  TRY(model_.check_device());
  if (!token) return token.error();
  return std::vector<uint32_t>{*token};
}

// One pass over the last of `tokens`, which the cache does not hold yet, and over what may follow it (at most
// `most_drafts`). Returns what follows for certain; the cache then holds all but the last of it.
Result<std::vector<uint32_t>> Session::step(std::span<const uint32_t> tokens, uint32_t most_drafts, Sampler& sampler,
                                            const std::stop_token& stop) {
  std::vector<uint32_t> run = {tokens.back()};
  if (speculator_ != nullptr) {
    TRY_ASSIGN(const auto drafts, speculator_->propose(tokens, most_drafts, sampler, stop));
    run.insert(run.end(), drafts.begin(), drafts.end());
  }
  const auto draw = speculator_ == nullptr ? draw_of(sampler) : std::nullopt;
  TRY_ASSIGN(const HiddenStates hidden, append(run, Phase::decode, stop, draw));
  std::vector<uint32_t> certain;
  if (speculator_ != nullptr) {
    auto verified = verify(hidden.final, tokens, sampler);
    TRY(model_.check_device());
    TRY_ASSIGN(certain, std::move(verified));
    model_.experts().accept_drafts(static_cast<uint32_t>(certain.size()) - 1);
    roll_back(tokens.size() + certain.size() - 1);
  } else {
    const auto token = choose(hidden.final, tokens, sampler);
    TRY(model_.check_device());
    if (!token) return token.error();
    certain.push_back(*token);
  }
  ++times_.decode_passes;
  return certain;
}

// Hands over one token after the other, each as if it had come alone. Nullopt: the answer goes on.
std::optional<StopReason> Session::deliver(std::span<const uint32_t> certain, const GenerateOptions& options,
                                           const TokenCallback& on_token, const std::stop_token& stop,
                                           Answer& answer) const {
  for (const uint32_t& token : certain) {
    if (&token != certain.data() && stop.stop_requested()) return StopReason::interrupted;
    if (std::ranges::find(options.end_tokens, token) != options.end_tokens.end()) return StopReason::end_token;
    answer.tokens.push_back(token);
    if (!on_token(token)) return StopReason::stopped;
    if (answer.tokens.size() >= options.max_tokens) return StopReason::max_tokens;
  }
  if (model_.cache().length() == model_.cache().capacity()) return StopReason::context_full;
  return std::nullopt;
}

Result<Answer> Session::generate(std::span<const uint32_t> prompt, const GenerateOptions& options, Sampler& sampler,
                                 const TokenCallback& on_token, const std::stop_token& stop) {
  TRY(check(prompt));
  TRY(sampler.check_vocab(model_.config().vocab));
  Answer answer;
  if (options.max_tokens == 0) return answer;
  if (options.before_prefill) TRY(options.before_prefill(prompt.size() - common_length(prompt)));
  const auto hidden = prefill(prompt, stop);
  const auto start = Clock::now();
  auto certain = hidden ? begin(*hidden, sampler) : Result<std::vector<uint32_t>>(hidden.error());
  std::vector<uint32_t> tokens(prompt.begin(), prompt.end());
  while (certain) {
    if (const auto end = deliver(*certain, options, on_token, stop, answer)) {
      answer.reason = *end;
      break;
    }
    tokens.insert(tokens.end(), certain->begin(), certain->end());
    const uint64_t wanted = options.max_tokens - answer.tokens.size();
    const uint32_t room = std::min(model_.cache().capacity() - model_.cache().length(), model_.max_rows());
    certain = step(tokens, static_cast<uint32_t>(std::min<uint64_t>(wanted, room) - 1), sampler, stop);
  }
  times_.decode_seconds += seconds_since(start);
  if (!certain && certain.error().kind != ErrorKind::cancelled) return certain.error();
  if (!certain) answer.reason = StopReason::interrupted;
  const size_t sampled = answer.tokens.size() + (answer.reason == StopReason::end_token ? 1 : 0);
  if (sampled > 0) times_.decode_tokens += sampled - 1;  // the first one came of the prompt's pass
  // Drafts that stood, but lie behind the end.
  const size_t spoken = prompt.size() + answer.tokens.size();
  if (cached_.size() > spoken) roll_back(spoken);
  return answer;
}

Result<void> Session::logits(std::span<const uint32_t> prompt, uint32_t chunk, const LogitsCallback& on_rows,
                             const std::stop_token& stop) {
  TRY(check(prompt));
  clear();
  const size_t most = chunk == 0 ? model_.max_rows() : std::min(chunk, model_.max_rows());
  for (size_t done = 0; done < prompt.size();) {
    const auto start = Clock::now();
    const size_t count = std::min(most, prompt.size() - done);
    TRY_ASSIGN(const HiddenStates hidden,
               append(prompt.subspan(done, count), count == 1 ? Phase::decode : Phase::prefill, stop));
    std::vector<float> rows;
    for (uint32_t first = 0; first < count; first += kLogitRows) {
      const auto part = std::min<uint32_t>(kLogitRows, static_cast<uint32_t>(count) - first);
      rows.resize(size_t{part} * model_.config().vocab);
      model_.logits(rows_of(hidden.final, first, part), rows);
      TRY(model_.check_device());
      on_rows(rows);
    }
    done += count;
    times_.prefill_tokens += count;
    times_.prefill_seconds += seconds_since(start);
  }
  return {};
}

}  // namespace dspack::runtime
