// One file on an HTTP server, read by ranges from wherever its address leads, and a folder of such files: any server
// that honours Range. On the Hub an address leads to a signed link, which is asked for anew when it has expired, and
// the answers must be of the pinned commit. Threads: thread-safe once probe or know has been called. Lifetime: a source
// borrows the client. Errors: as RetryingClient; corrupt (another file, size or commit than before).
#pragma once

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <string>

#include "format/http/headers.h"
#include "format/http/retrying_client.h"
#include "format/source/repository.h"

namespace dspack::format {

/// Where a file's own address has led: asked once, used until it expires. Resolving is what servers limit; ranges of
/// what was resolved are free. Thread-safe; while one thread asks the file's own address, others wait.
class FileLink {
 public:
  explicit FileLink(std::string address) : address_(std::move(address)) {}

  /// What to ask. `resolves`: it is the file's own address, for the first time, and others wait for what comes of it:
  /// then resolved() or failed() must follow.
  struct Target {
    std::string url;
    bool is_link = false;
    bool resolves = false;
  };
  [[nodiscard]] Target target(const std::stop_token& stop);
  /// The answer came from here.
  void resolved(const std::string& url);
  void failed();
  /// A link that is of no use any more.
  void expired(const std::string& url);

  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  enum class State { unknown, asking, known };

  std::string address_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  State state_ = State::unknown;  // guarded by mutex_
  std::string link_;              // guarded by mutex_; empty: the address itself answers
};

/// A file, and what may be said and asked of it.
struct HttpFile {
  std::string url;
  std::string token{};   // sent to the URL's own host only
  std::string commit{};  // that answers must be of; empty: not a file of the Hub
  ExplainFailure explain{};
};

class HttpSource final : public ByteSource {
 public:
  HttpSource(RetryingClient& client, HttpFile file) : client_(client), file_(std::move(file)), link_(file_.url) {}

  /// Asks for the first bytes: size and version are known afterwards. This, or know, comes before all else.
  [[nodiscard]] Result<void> probe(const std::stop_token& stop);
  /// Takes somebody else's word for size and version; answers that differ are `corrupt`.
  void know(const KnownFile& known);

  [[nodiscard]] uint64_t size_bytes() const override { return known_.size_bytes; }
  /// Of a file that the Hub keeps elsewhere its digest, which stays the same wherever a link leads; else the ETag.
  [[nodiscard]] const std::string& version() const override { return known_.version; }
  [[nodiscard]] std::optional<ContentDigest> declared() const override { return declared_; }
  [[nodiscard]] Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override;
  [[nodiscard]] Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) override;

 private:
  enum class What { head, payload };
  /// Its address, for messages.
  [[nodiscard]] std::string shown() const { return without_password(link_.address()); }
  /// One range, from wherever the file's address leads; without a sink in HttpResponse::body. Calls `resolved` with the
  /// answer of the address itself.
  Result<HttpResponse> fetch(What what, const std::function<ByteRange()>& range, const ByteSink& sink,
                             const uint64_t& received, const std::stop_token& stop, const HeadSink& resolved = {});

  /// Of the whole file, by a request of its own.
  std::optional<ContentDigest> ask_md5(const std::string& url, const std::stop_token& stop);

  RetryingClient& client_;
  HttpFile file_;
  FileLink link_;
  KnownFile known_;
  std::optional<ContentDigest> declared_;
  std::string etag_;         // that every answer must have; empty: any
  std::string linked_etag_;  // the same for what the Hub says when it redirects
  bool is_known_ = false;    // size and version: every later answer must fit them
  std::string head_;         // the first bytes, from the probe
};

/// `url` as the user wrote it.
[[nodiscard]] std::unique_ptr<Repository> make_http_repository(std::string_view url, const RemoteOptions& options);

}  // namespace dspack::format
