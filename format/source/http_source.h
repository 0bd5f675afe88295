// One file on an HTTP server, read by ranges from wherever its address leads. On the Hub that is a signed link, which
// is asked for anew when it has expired, and the answers must be of the pinned commit. Threads: thread-safe once probe
// or know has been called. Lifetime: borrows the client. Errors: as PatientClient; corrupt (another file, size or
// commit than before).
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "format/source/file_link.h"
#include "format/source/http_headers.h"
#include "format/source/patient_client.h"
#include "format/source/repository.h"

namespace dspack::format {

struct HttpFile {
  std::string url;
  std::string token{};   // sent to the URL's own host only
  std::string commit{};  // that answers must be of; empty: not a file of the Hub
  ExplainFailure explain{};
};

class HttpSource final : public ByteSource {
 public:
  HttpSource(PatientClient& client, HttpFile file) : client_(client), file_(std::move(file)), link_(file_.url) {}

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
  /// One range, from wherever the file's address leads. `before` each attempt; `resolved` with the answer of the
  /// address itself.
  Result<HttpResponse> fetch(What what, const std::function<ByteRange()>& range, const std::function<void()>& before,
                             const ByteSink& sink, const uint64_t& received, const std::stop_token& stop,
                             const HeadSink& resolved = {});

  /// Of the whole file, by a request of its own.
  std::optional<ContentDigest> ask_md5(const std::string& url, const std::stop_token& stop);

  PatientClient& client_;
  HttpFile file_;
  FileLink link_;
  KnownFile known_;
  std::optional<ContentDigest> declared_;
  std::string etag_;             // that every answer must have; empty: any
  std::string linked_etag_;      // the same for what the Hub says when it redirects
  bool is_known_ = false;        // size and version: every later answer must fit them
  std::vector<std::byte> head_;  // the first bytes, from the probe
};

}  // namespace dspack::format
