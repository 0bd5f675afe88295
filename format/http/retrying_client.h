// HTTP requests that are retried after temporary failures, with growing pauses.
// Threads: thread-safe. Errors: as HttpClient, if the failure is permanent or retries are exhausted.
#pragma once

#include <atomic>
#include <functional>
#include <stop_token>

#include "format/http/client.h"

namespace dspack::format {

/// Explains a final failure in terms of the remote place; returns the failure's own error if there is nothing to add.
using ExplainFailure = std::function<Error(const HttpFailure&)>;

class RetryingClient {
 public:
  explicit RetryingClient(const RemoteOptions& options);

  /// One transfer, with as many requests as it needs.
  struct Transfer {
    /// Makes the request for each attempt, so that a transfer resumes where it was interrupted.
    std::function<HttpRequest()> next;
    ByteSink sink;
    /// Total bytes passed to the sink: attempts are counted since the last progress.
    const uint64_t& received;
    HeadSink on_head{};                       // see client.h
    std::function<void()> on_failure{};       // called after a failed attempt
    std::function<void()> on_link_expired{};  // called if its link had expired; unset: the failure is final
    ExplainFailure explain{};                 // unset: the failure's own error
  };
  [[nodiscard]] Result<HttpResponse> send(const Transfer& transfer, const std::stop_token& stop);

  /// Sends one request whose answer is kept in memory. With a body: only if carrying it out twice does no harm.
  [[nodiscard]] Result<HttpResponse> send(const HttpRequest& request, const std::stop_token& stop,
                                          const ExplainFailure& explain = {});
  /// The same in one attempt: for requests whose effect must be checked before a retry.
  [[nodiscard]] HttpOutcome attempt(const HttpRequest& request, const std::stop_token& stop);
  /// Waits before a retry. An error: retrying is pointless.
  [[nodiscard]] Result<void> pause(const HttpFailure& failure, unsigned failures, const std::stop_token& stop,
                                   const ExplainFailure& explain = {}) const;
  /// Whether there was ever an answer, even a refusal.
  [[nodiscard]] bool was_answered() const { return contacted_; }

 private:
  HttpOutcome send_once(HttpRequest request, const ByteSink& sink, const std::stop_token& stop, const HeadSink& on_head,
                        TransferWatch::Transfer& watched);
  [[nodiscard]] Result<void> pause(const HttpFailure& failure, unsigned failures, const std::stop_token& stop,
                                   const ExplainFailure& explain, TransferWatch::Transfer& watched) const;
  /// Whether to retry; the error if not.
  [[nodiscard]] Result<void> judge(const HttpFailure& failure, unsigned failures, const ExplainFailure& explain) const;
  /// Most attempts for one request, including the first.
  [[nodiscard]] unsigned attempts() const;
  [[nodiscard]] TransferWatch* watch() const { return counters_ ? &counters_->watch : nullptr; }

  HttpClient client_;
  unsigned attempts_;
  double pause_second_;
  std::function<void(NoteKind, std::string_view)> on_note_;
  std::shared_ptr<TransferCounters> counters_;
  std::atomic<bool> answered_{false};   // there was a good answer, or any answer to an API call
  std::atomic<bool> contacted_{false};  // there was any answer
};

}  // namespace dspack::format
