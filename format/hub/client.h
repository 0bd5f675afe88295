// The Hugging Face Hub over HTTP, for one repository: its addresses, the token (sent only to the Hub's own host), and
// the calls that read. writer.h has the calls that write.
// Threads: thread-safe, except pin. Errors: network (no such repository or revision, gated, private, not reached; each
// with the remedy), not_found (a file), invalid (not the Hub's protocol), and those of RetryingClient.
// Source: huggingface_hub (hf_api.py, file_download.py), read as a description of the protocol.
#pragma once

#include <optional>
#include <stop_token>
#include <string>

#include "format/http/http_source.h"
#include "format/hub/name.h"
#include "format/hub/refusal.h"
#include "format/hub/snapshot.h"
#include "format/source/repository.h"

namespace dspack::format {

class HubClient {
 public:
  /// `repository`: "org/name".
  HubClient(const RemoteOptions& options, std::string repository);

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }  // without a trailing slash
  [[nodiscard]] const std::string& repository() const { return repository_; }
  [[nodiscard]] std::string organization() const { return repository_.substr(0, repository_.find('/')); }
  [[nodiscard]] std::string name() const { return repository_.substr(repository_.find('/') + 1); }
  /// For people: "https://hub/org/name".
  [[nodiscard]] std::string page() const { return hub_page_url(endpoint_, repository_); }
  /// "https://hub/api/models/org/name" + tail
  [[nodiscard]] std::string api_url(std::string_view tail) const;
  [[nodiscard]] std::string file_url(const std::string& revision, std::string_view path) const;
  /// The token, if the URL has the endpoint's scheme, host and port; else nothing.
  [[nodiscard]] std::string token_for(const std::string& url) const;
  [[nodiscard]] bool has_token() const { return !token_.empty(); }
  /// Must not appear in messages. May be empty.
  [[nodiscard]] const std::string& token() const { return token_; }

  [[nodiscard]] RetryingClient& http() const { return *http_; }

  /// From now on the repository has this name, and answers to requests for this commit must name it.
  void pin(const HubCommit& commit);

  /// The commit that a revision stands for now. One HEAD request for config.json: its answer names the commit whether
  /// the file exists or not, and shows at once if the files may not be read; a renamed repository takes one more
  /// request. If a server names the commit only for existing files, the API is asked.
  [[nodiscard]] Result<HubCommit> resolve(const std::string& revision, const std::stop_token& stop) const;
  /// A file to be read by ranges.
  [[nodiscard]] HttpFile file(const std::string& revision, std::string_view path) const;
  /// A whole small file. Errors: also budget (longer than `limit_bytes`).
  [[nodiscard]] Result<std::string> read_text(const std::string& revision, std::string_view path, uint64_t limit_bytes,
                                              const std::stop_token& stop) const;
  /// The Hub's declaration of a file, by one HEAD request: for a server without listings.
  [[nodiscard]] Result<std::optional<DeclaredFile>> declared(const std::string& revision, std::string_view path,
                                                             const std::stop_token& stop) const;

  /// Explains refusals to read a revision.
  [[nodiscard]] ExplainFailure explain(const std::string& revision) const;

 private:
  [[nodiscard]] HubRequest asked(const std::string& revision) const;
  [[nodiscard]] HttpRequest file_request(const std::string& revision, std::string_view path) const;
  Result<HubCommit> ask_api(const HubName& name, const std::stop_token& stop) const;

  std::string endpoint_;
  std::string token_;
  std::string repository_;
  std::string commit_;  // answers to requests for it must name it; empty: any
  std::unique_ptr<RetryingClient> http_;
};

}  // namespace dspack::format
