#include "format/source/patient_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "format/source/backoff.h"

namespace dspack::format {
namespace {

// The Hub's windows are five minutes long; a server that wants more is better left to the user.
constexpr double kMaxWaitSeconds = 310;

// A server that never answered is more likely a wrong address than a fault that passes.
constexpr unsigned kFirstContactAttempts = 5;

// Shorter pauses are not worth a line.
constexpr double kToldPauseSeconds = 5;

// A link that expires again at once was not refused for its age: some servers answer 403 to what they do not like.
constexpr unsigned kMaxExpiredLinks = 3;

// An answer to another question than the one asked: one of many servers behind a name may be at fault, or one moment. A
// server that does not know ranges at all is not asked for long.
constexpr unsigned kMaxWrongAnswers = 3;

double random_fraction() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

bool asks_for_fewer(long status) {
  constexpr long kTooManyRequests = 429;
  constexpr long kUnavailable = 503;
  return status == kTooManyRequests || status == kUnavailable;
}

}  // namespace

PatientClient::PatientClient(const RemoteOptions& options)
    : client_({options.certificate_file, options.rate_limit, options.counters, options.stall_seconds}),
      attempts_(options.attempts),
      on_note_(options.on_note),
      counters_(options.counters) {}

Result<HttpResponse> PatientClient::get(const Transfer& transfer, const std::stop_token& stop) {
  uint64_t progress = transfer.received;
  unsigned expired = 0;
  unsigned wrong = 0;
  for (unsigned failures = 1;; ++failures) {
    auto outcome = client_.get(transfer.next(), transfer.sink, stop, transfer.on_head);
    if (auto* response = std::get_if<HttpResponse>(&outcome)) {
      answered_ = contacted_ = true;
      return std::move(*response);
    }
    auto& failure = std::get<HttpFailure>(outcome);
    if (failure.status != 0) contacted_ = true;
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
          "; so are {} new ones, so it is not their age. Try again later, or from another network", kMaxExpiredLinks);
    }
    if (failure.wrong_answer) {
      failure.may_pass = ++wrong < kMaxWrongAnswers;
      if (!failure.may_pass) failure.error.message += fmt::format("; gave up after {} such answers", wrong);
    }
    TRY(pause(failure, failures, stop, transfer.explain));
  }
}

std::variant<HttpReply, HttpFailure> PatientClient::attempt(const HttpCall& call, const std::stop_token& stop) {
  auto outcome = client_.exchange(call, stop);
  const auto* reply = std::get_if<HttpReply>(&outcome);
  if (reply == nullptr) return outcome;
  answered_ = contacted_ = true;
  if (auto failure = passing_failure(*reply, call.name)) return std::move(*failure);
  return outcome;
}

Result<HttpReply> PatientClient::exchange(const HttpCall& call, const std::stop_token& stop) {
  for (unsigned failures = 1;; ++failures) {
    auto outcome = attempt(call, stop);
    if (auto* reply = std::get_if<HttpReply>(&outcome)) return std::move(*reply);
    if (counters_) ++counters_->retries;
    TRY(pause(std::get<HttpFailure>(outcome), failures, stop));
  }
}

Result<void> PatientClient::pause(const HttpFailure& failure, unsigned failures, const std::stop_token& stop,
                                  const ExplainFailure& explain) const {
  TRY(judge(failure, failures, explain));
  const double seconds = std::max(backoff_seconds(failures, random_fraction()), failure.wait_seconds.value_or(0));
  if (on_note_ && seconds >= kToldPauseSeconds)
    on_note_(fmt::format("{}; trying again in {:.0f} s", failure.error.message, seconds));
  if (!wait_for(seconds, stop)) return Error{ErrorKind::cancelled, "stopped on request"};
  return {};
}

Result<void> PatientClient::judge(const HttpFailure& failure, unsigned failures, const ExplainFailure& explain) const {
  if (!failure.may_pass || (failure.no_such_host && !answered_)) return explain ? explain(failure) : failure.error;
  const unsigned attempts = answered_ ? attempts_ : std::min(attempts_, kFirstContactAttempts);
  if (failures >= attempts)
    return Error{failure.error.kind, fmt::format("{}; gave up after {} attempts", failure.error.message, failures)};
  if (failure.wait_seconds.value_or(0) <= kMaxWaitSeconds) return {};
  return Error{failure.error.kind, fmt::format("{} and asks to wait {:.0f} s; run the command again then",
                                               failure.error.message, *failure.wait_seconds)};
}

}  // namespace dspack::format
