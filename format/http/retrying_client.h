// HTTP requests that are retried after temporary failures, with growing pauses.
// Threads: thread-safe. Errors: as HttpClient, when the failure is permanent or retries are exhausted.
#pragma once

#include <atomic>
#include <functional>
#include <stop_token>

#include "format/http/client.h"

namespace dspack::format {

/// The error of a failure that is final, in the words of who knows the place; its own where it has none to add.
using ExplainFailure = std::function<Error(const HttpFailure&)>;

class RetryingClient {
 public:
  explicit RetryingClient(const RemoteOptions& options);

  /// One transfer, in as many requests as it takes.
  struct Transfer {
    /// The request to make, anew for each attempt, so that a transfer goes on where it was cut.
    std::function<HttpRequest()> next;
    ByteSink sink;
    /// What the sink has seen in all: attempts count from the last progress.
    const uint64_t& received;
    HeadSink on_head{};                       // see client.h
    std::function<void()> on_failure{};       // an attempt failed
    std::function<void()> on_link_expired{};  // and that because its link has expired; unset: final
    ExplainFailure explain{};                 // unset: the failure's own error
  };
  [[nodiscard]] Result<HttpResponse> send(const Transfer& transfer, const std::stop_token& stop);

  /// One request whose answer is kept in memory. With a body: only what may be carried out twice without harm.
  [[nodiscard]] Result<HttpResponse> send(const HttpRequest& request, const std::stop_token& stop,
                                          const ExplainFailure& explain = {});
  /// The same in one attempt: for what must be looked for before it is repeated.
  [[nodiscard]] HttpOutcome attempt(const HttpRequest& request, const std::stop_token& stop);
  /// Waits before a repetition. An error: it is of no use to try again.
  [[nodiscard]] Result<void> pause(const HttpFailure& failure, unsigned failures, const std::stop_token& stop,
                                   const ExplainFailure& explain = {}) const;
  /// Whether anybody was ever reached, if only to be refused.
  [[nodiscard]] bool was_answered() const { return contacted_; }

 private:
  HttpOutcome send_once(HttpRequest request, const ByteSink& sink, const std::stop_token& stop, const HeadSink& on_head,
                        TransferWatch::Transfer& watched);
  [[nodiscard]] Result<void> pause(const HttpFailure& failure, unsigned failures, const std::stop_token& stop,
                                   const ExplainFailure& explain, TransferWatch::Transfer& watched) const;
  /// An error: it is of no use to try again.
  [[nodiscard]] Result<void> judge(const HttpFailure& failure, unsigned failures, const ExplainFailure& explain) const;
  /// Of one request, the first included.
  [[nodiscard]] unsigned attempts() const;
  [[nodiscard]] TransferWatch* watch() const { return counters_ ? &counters_->watch : nullptr; }

  HttpClient client_;
  unsigned attempts_;
  double pause_second_;
  std::function<void(NoteKind, std::string_view)> on_note_;
  std::shared_ptr<TransferCounters> counters_;
  std::atomic<bool> answered_{false};   // whether there was ever a good answer, or any to a call of an API
  std::atomic<bool> contacted_{false};  // whether there was any
};

}  // namespace dspack::format
