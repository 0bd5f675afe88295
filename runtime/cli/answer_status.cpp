#include "runtime/cli/answer_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "format/base/size.h"
#include "format/cli/status_line.h"

namespace dspack::runtime {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSlowTokenSeconds = 1;  // after this time, the cause of the wait is shown
constexpr double kSlowRate = 0.1;        // tokens a second; below, three decimals are shown
constexpr double kEstimateSeconds = 2;   // earlier estimates of the time left would be guesses

class AnswerStatus {
 public:
  explicit AnswerStatus(LoadedModel& loaded)
      : loaded_(loaded), transfers_(loaded.access().transfers()), layers_(loaded.model().layer_map().size()) {
    begin_part(Clock::now());
  }

  /// `tokens`: number of prompt tokens to be computed.
  void begin_prompt(uint64_t tokens) {
    {
      const std::lock_guard lock(mutex_);
      passes_ = std::max<uint64_t>(1, ceil_div(tokens, uint64_t{loaded_.model().max_rows()}));
      begin_part(Clock::now());
    }
    line_.start([this] { return text(); }, {.shade = format::Shade::dimmed});
  }

  void add_token() {
    const auto now = Clock::now();
    const std::lock_guard lock(mutex_);
    if (tokens_) {
      rate_.reached(++*tokens_, now);
    } else {
      rate_.start(*(tokens_ = 1), now);
    }
    begin_part(now);
  }

  void end() { line_.stop(); }

 private:
  struct Amounts {
    uint64_t layers = 0;
    uint64_t experts = 0;
    uint64_t bytes = 0;
    uint64_t expected_experts = 0;  // for the whole prompt
  };

  /// The amounts done so far in this run, and the current cause of waiting.
  Amounts amounts(Awaited& awaited) const {
    const PassState& state = loaded_.pass_state();
    Amounts now{.layers = state.layers_begun};
    awaited = state.reads_layer ? Awaited::layer : Awaited::computing;
    if (const StreamedStore* store = loaded_.experts().store()) {
      const ExpertReading reading = store->reading();
      now.experts = reading.experts;
      now.expected_experts = reading.prompt.experts;
      // An expert across a network may take minutes: its bytes count as they come.
      now.bytes = reading.bytes[static_cast<size_t>(Medium::disk)] + (transfers_ ? transfers_->watch.moved_bytes() : 0);
      if (reading.awaited > 0) awaited = reading.awaited_from == Medium::network ? Awaited::network : Awaited::disk;
    }
    return now;
  }

  /// Call with the lock held if the line's thread may be running.
  void begin_part(Clock::time_point now) {
    Awaited ignored{};
    before_ = amounts(ignored);
    begin_ = now;
    if (!tokens_) bytes_rate_.start(before_.bytes, now);
  }

  /// Share of a prompt's work: its finished layers, and of the current one the experts read out of the expected number.
  double share_done(uint64_t begun, const Amounts& amounts) {
    constexpr double kMaxOfLayer = 0.95;
    if (std::exchange(layers_seen_, amounts.layers) != amounts.layers) layer_experts_ = amounts.experts;
    const auto layers = static_cast<double>(layers_ * passes_);
    double of_layer = 0;
    if (amounts.expected_experts > 0) {
      const double expected = static_cast<double>(amounts.expected_experts) / layers;
      of_layer = std::min(kMaxOfLayer, static_cast<double>(amounts.experts - layer_experts_) / expected);
    }
    return (static_cast<double>(begun - 1) + of_layer) / layers;
  }

  std::string text() {
    const std::lock_guard lock(mutex_);
    if (tokens_ && !format::can_redraw()) return {};  // no status of answers in a pipe
    const auto now = Clock::now();
    AnswerMoment moment{.tokens = tokens_, .layers = layers_, .passes = passes_};
    const Amounts amounts = this->amounts(moment.awaited);
    bytes_rate_.reached(amounts.bytes, now);
    moment.bytes_per_second = bytes_rate_.at(now);
    moment.experts = amounts.experts - before_.experts;
    moment.bytes = amounts.bytes - before_.bytes;
    if (transfers_) moment.wait = transfers_->watch.wait(now);
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    if (tokens_) moment.tokens_per_second = rate_.at(now);
    moment.token_seconds = seconds;
    if (const uint64_t begun = amounts.layers - before_.layers; begun > 0) {
      moment.layer = (begun - 1) % layers_ + 1;
      moment.pass = (begun - 1) / layers_ + 1;
      const double done = share_done(begun, amounts);
      if (!tokens_ && done > 0 && seconds >= kEstimateSeconds) moment.seconds_left = seconds * (1 - done) / done;
    }
    return answer_status_line(moment);
  }

  LoadedModel& loaded_;
  const std::shared_ptr<const format::TransferCounters> transfers_;
  const uint64_t layers_;
  std::mutex mutex_;  // guards all members below but the line
  std::optional<uint64_t> tokens_;
  uint64_t passes_ = 1;
  Amounts before_;  // when the prompt began, or at the last token
  Clock::time_point begin_;
  uint64_t layers_seen_ = 0;
  uint64_t layer_experts_ = 0;     // experts read when the current layer began
  format::RecentRate rate_;        // tokens
  format::RecentRate bytes_rate_;  // bytes of experts
  format::StatusLine line_;        // last: calls text()
};

void say_awaited(const AnswerMoment& moment, std::string& line) {
  const std::string layer = moment.layer > 0 ? fmt::format("layer {} of {}", moment.layer, moment.layers) : "";
  switch (moment.awaited) {
    case Awaited::computing: line += fmt::format(", computing{}{}", layer.empty() ? "" : " ", layer); break;
    case Awaited::layer: line += fmt::format(", reading {}", layer); break;
    case Awaited::disk: line += fmt::format(", experts from disk: {}", format::human_bytes(moment.bytes)); break;
    case Awaited::network:
      line += fmt::format(", experts from the network: {}", format::human_bytes(moment.bytes));
      break;
  }
}

/// Empty if bytes are arriving, or none are awaited.
std::string silence_of(const AnswerMoment& moment) {
  if (moment.awaited != Awaited::network || !moment.wait) return {};
  return format::silence_words("byte", moment.wait->silence_seconds, moment.wait);
}

std::string prompt_line(const AnswerMoment& moment) {
  const std::string silence = silence_of(moment);
  std::string line = moment.passes > 1 ? fmt::format("prompt, part {} of {}:", moment.pass, moment.passes) : "prompt:";
  line += moment.layer > 0 ? fmt::format(" layer {} of {}", moment.layer, moment.layers)
                           : " " + format::clock_words(moment.token_seconds);
  if (moment.awaited == Awaited::layer) line += ", which is read";
  if (moment.experts > 0 || moment.bytes > 0) {
    line += fmt::format(", {} {}, {}", moment.experts, moment.experts == 1 ? "expert" : "experts",
                        format::human_bytes(moment.bytes));
    if (moment.bytes_per_second >= 1 && silence.empty())
      line += fmt::format(", {}/s", format::human_bytes(static_cast<uint64_t>(moment.bytes_per_second)));
  }
  if (!silence.empty()) return fmt::format("{}, {}", line, silence);
  return moment.seconds_left ? fmt::format("{}, {} left", line, format::clock_words(*moment.seconds_left)) : line;
}

}  // namespace

std::string answer_status_line(const AnswerMoment& moment) {
  if (!moment.tokens) return prompt_line(moment);
  std::string line = fmt::format("{} {}", *moment.tokens, *moment.tokens == 1 ? "token" : "tokens");
  if (const double rate = moment.tokens_per_second; rate > 0)
    line += fmt::format(", {:.{}f} tokens/s", rate, rate < kSlowRate ? 3 : 1);
  if (moment.token_seconds < kSlowTokenSeconds) return line;
  say_awaited(moment, line);
  const std::string silence = silence_of(moment);
  return silence.empty() ? line : fmt::format("{}, {}", line, silence);
}

Result<Answer> generate_with_status(LoadedModel& loaded, Session& session, std::span<const uint32_t> prompt,
                                    GenerateOptions options, Sampler& sampler, const TokenCallback& on_token,
                                    const std::stop_token& stop) {
  AnswerStatus status(loaded);
  options.before_prefill = [&status, before = std::move(options.before_prefill)](uint64_t tokens) -> Result<void> {
    if (before) TRY(before(tokens));
    status.begin_prompt(tokens);
    return {};
  };
  const auto with_count = [&](uint32_t token) {
    status.add_token();
    return on_token(token);
  };
  auto answer = session.generate(prompt, options, sampler, with_count, stop);
  status.end();
  return answer;
}

}  // namespace dspack::runtime
