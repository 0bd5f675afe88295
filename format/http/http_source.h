// One file on an HTTP server, read by ranges from wherever its address leads, and a folder of such files: any server
// that supports Range. On the Hub an address leads to a signed link, which is requested again once it has expired;
// answers must be for the pinned commit. Threads: thread-safe after probe or know. Lifetime: a source borrows the
// client. Errors: as RetryingClient; corrupt (another file, size or commit than before).
#pragma once

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <string>

#include "format/http/headers.h"
#include "format/http/retrying_client.h"
#include "format/source/repository.h"

namespace dspack::format {

/// The link to which a file's own address redirects: resolved once, used until it expires. Servers limit how often an
/// address is resolved, but not ranges of the link. Thread-safe; while one thread resolves, others wait.
class FileLink {
 public:
  explicit FileLink(std::string address) : address_(std::move(address)) {}

  /// The URL to request. `resolves`: it is the file's own address, and other threads wait for the result: resolved() or
  /// failed() must follow.
  struct Target {
    std::string url;
    bool is_link = false;
    bool resolves = false;
  };
  [[nodiscard]] Target target(const std::stop_token& stop);
  /// The answer came from `url`.
  void resolved(const std::string& url);
  void failed();
  /// The link `url` is no longer valid.
  void expired(const std::string& url);

  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  enum class LinkState { unknown, asking, known };

  std::string address_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  LinkState state_ = LinkState::unknown;  // guarded by mutex_
  std::string link_;                      // guarded by mutex_; empty: the address itself answers
};

/// A file's address, and how to request it and explain failures.
struct HttpFile {
  std::string url;
  std::string token{};   // sent only to the URL's own host
  std::string commit{};  // answers must be for this commit; empty: not a file of the Hub
  ExplainFailure explain{};
};

class HttpSource final : public ByteSource {
 public:
  HttpSource(RetryingClient& client, HttpFile file) : client_(client), file_(std::move(file)), link_(file_.url) {}

  /// Requests the first bytes, which gives size and version. Call this, or know, before anything else.
  [[nodiscard]] Result<void> probe(const std::stop_token& stop);
  /// Sets size and version as known from elsewhere; answers that differ are `corrupt`.
  void know(const KnownFile& known);

  [[nodiscard]] uint64_t size_bytes() const override { return known_.size_bytes; }
  /// The digest of a file that the Hub stores elsewhere, which is the same wherever a link leads; for other files the
  /// ETag.
  [[nodiscard]] const std::string& version() const override { return known_.version; }
  [[nodiscard]] std::optional<ContentDigest> declared() const override { return declared_; }
  [[nodiscard]] Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override;
  [[nodiscard]] Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) override;

 private:
  enum class What { head, payload };
  /// The address, for messages.
  [[nodiscard]] std::string shown() const { return without_password(link_.address()); }
  /// Requests one range, from wherever the file's address leads; without a sink the bytes are in HttpResponse::body.
  /// Calls `resolved` with the answer of the address itself.
  Result<HttpResponse> fetch(What what, const std::function<ByteRange()>& range, const ByteSink& sink,
                             const uint64_t& received, const std::stop_token& stop, const HeadSink& resolved = {});

  /// The digest that the server declares for the whole file, by a separate request.
  std::optional<ContentDigest> ask_md5(const std::string& url, const std::stop_token& stop);

  RetryingClient& client_;
  HttpFile file_;
  FileLink link_;
  KnownFile known_;
  std::optional<ContentDigest> declared_;
  std::string etag_;         // every answer must have it; empty: any
  std::string linked_etag_;  // the same for the Hub's redirect
  bool is_known_ = false;    // size and version: later answers must match them
  std::string head_;         // first bytes, from the probe
};

/// `url`: as the user wrote it.
[[nodiscard]] std::unique_ptr<Repository> make_http_repository(std::string_view url, const RemoteOptions& options);

}  // namespace dspack::format
