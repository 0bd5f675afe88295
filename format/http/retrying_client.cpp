#include "format/http/retrying_client.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

namespace dspack::format {
namespace {

// The Hub's rate limit windows are five minutes long; a longer wait is left to the user.
constexpr double kMaxWaitSeconds = 310;

// A server that never answered is more likely a wrong address than a temporary fault.
constexpr unsigned kFirstContactAttempts = 5;

// Shorter pauses are not reported.
constexpr double kToldPauseSeconds = 5;

// A link that is refused again at once has not expired: some servers answer 403 to requests that they do not like.
constexpr unsigned kMaxExpiredLinks = 3;

// An answer that contradicts the request may be temporary, or come from one of many servers with the same name. A
// server that does not support ranges at all is given up soon.
constexpr unsigned kMaxWrongAnswers = 3;

double random_fraction() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

bool asks_for_fewer(long status) {
  constexpr long kUnavailable = 503;
  return status == kTooManyRequests || status == kUnavailable;
}

}  // namespace

RetryingClient::RetryingClient(const RemoteOptions& options)
    : client_({options.certificate_file, options.rate_limit, options.counters, options.stall_seconds}),
      attempts_(options.attempts),
      pause_second_(options.pause_second),
      on_note_(options.on_note),
      counters_(options.counters) {}

HttpOutcome RetryingClient::send_once(HttpRequest request, const ByteSink& sink, const std::stop_token& stop,
                                      const HeadSink& on_head, TransferWatch::Transfer& watched) {
  const ByteSink watched_sink = [&](std::span<const std::byte> bytes) {
    watched.moved(bytes.size(), TransferWatch::Time::clock::now());
    return sink(bytes);
  };
  if (request.slice) {
    uint64_t before = 0;
    request.slice->on_sent = [&watched, before, tell = std::move(request.slice->on_sent)](uint64_t sent) mutable {
      watched.moved(sent - std::min(before, sent), TransferWatch::Time::clock::now());
      before = sent;
      if (tell) tell(sent);
    };
  }
  HttpOutcome outcome = client_.send(request, sink ? watched_sink : sink, stop, on_head);
  const auto* failure = std::get_if<HttpFailure>(&outcome);
  const bool was_answered = failure == nullptr || failure->status != 0;
  if (was_answered) contacted_ = true;
  if (failure == nullptr || (was_answered && request.any_status)) answered_ = true;
  return outcome;
}

Result<HttpResponse> RetryingClient::send(const Transfer& transfer, const std::stop_token& stop) {
  uint64_t progress = transfer.received;
  unsigned expired = 0;
  unsigned wrong = 0;
  TransferWatch::Transfer watched(watch(), TransferWatch::Time::clock::now());
  for (unsigned failures = 1;; ++failures) {
    HttpOutcome outcome = send_once(transfer.next(), transfer.sink, stop, transfer.on_head, watched);
    if (auto* response = std::get_if<HttpResponse>(&outcome)) return std::move(*response);
    auto& failure = std::get<HttpFailure>(outcome);
    if (transfer.on_failure) transfer.on_failure();
    if (transfer.received != progress) {
      failures = 1;
      expired = wrong = 0;
    }
    progress = transfer.received;
    if (counters_) ++counters_->retries;
    if (counters_ && asks_for_fewer(failure.status)) ++counters_->refusals;
    if (failure.link_expired && transfer.on_link_expired) {
      if (expired++ < kMaxExpiredLinks) {
        transfer.on_link_expired();
        continue;
      }
      failure.error.message += fmt::format(
          "; {} new links were refused too, so age is not the reason. Try again later, or from another network",
          kMaxExpiredLinks);
    }
    if (failure.wrong_answer) {
      failure.may_pass = ++wrong < kMaxWrongAnswers;
      if (!failure.may_pass) failure.error.message += fmt::format("; gave up after {} such answers", wrong);
    }
    TRY(pause(failure, failures, stop, transfer.explain, watched));
  }
}

Result<HttpResponse> RetryingClient::send(const HttpRequest& request, const std::stop_token& stop,
                                          const ExplainFailure& explain) {
  constexpr uint64_t kNoProgress = 0;  // a repeated attempt starts over
  return send({.next = [&request] { return request; }, .sink = {}, .received = kNoProgress, .explain = explain}, stop);
}

HttpOutcome RetryingClient::attempt(const HttpRequest& request, const std::stop_token& stop) {
  TransferWatch::Transfer watched(watch(), TransferWatch::Time::clock::now());
  return send_once(request, {}, stop, {}, watched);
}

Result<void> RetryingClient::pause(const HttpFailure& failure, unsigned failures, const std::stop_token& stop,
                                   const ExplainFailure& explain) const {
  TransferWatch::Transfer watched(watch(), TransferWatch::Time::clock::now());
  return pause(failure, failures, stop, explain, watched);
}

Result<void> RetryingClient::pause(const HttpFailure& failure, unsigned failures, const std::stop_token& stop,
                                   const ExplainFailure& explain, TransferWatch::Transfer& watched) const {
  TRY(judge(failure, failures, explain));
  const double seconds = std::max(backoff_seconds(failures, random_fraction()), failure.wait_seconds.value_or(0));
  watched.pauses(failures, attempts() - 1, seconds * pause_second_, TransferWatch::Time::clock::now());
  if (on_note_ && seconds >= kToldPauseSeconds)
    on_note_(NoteKind::pause, fmt::format("{}; trying again in {:.0f} s", failure.error.message, seconds));
  if (!wait_for(seconds * pause_second_, stop)) return stopped();
  return {};
}

unsigned RetryingClient::attempts() const {
  return answered_ ? attempts_ : std::min(attempts_, kFirstContactAttempts);
}

Result<void> RetryingClient::judge(const HttpFailure& failure, unsigned failures, const ExplainFailure& explain) const {
  if (!failure.may_pass || (failure.no_such_host && !answered_)) return explain ? explain(failure) : failure.error;
  if (failures >= attempts())
    return Error{failure.error.kind, fmt::format("{}; gave up after {} attempts", failure.error.message, failures)};
  if (failure.wait_seconds.value_or(0) <= kMaxWaitSeconds) return {};
  return Error{failure.error.kind, fmt::format("{} and asks to wait {:.0f} s; run the command again then",
                                               failure.error.message, *failure.wait_seconds)};
}

}  // namespace dspack::format
