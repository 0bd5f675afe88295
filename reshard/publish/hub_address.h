// Where a repository's API lies on a Hub, and what may be said of an address: the token goes to the Hub's own host
// only, and neither it nor a signed query is for messages. Threads: plain values and pure functions. Source:
// huggingface_hub (hf_api.py, lfs.py), read as a description of the protocol.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/source/repository.h"

namespace dspack::reshard {

inline constexpr char kDefaultRevision[] = "main";

struct HubAddress {
  std::string endpoint;    // without a trailing slash
  std::string token;       // may be empty
  std::string repository;  // "org/name"

  [[nodiscard]] std::string organization() const { return repository.substr(0, repository.find('/')); }
  [[nodiscard]] std::string name() const { return repository.substr(repository.find('/') + 1); }
  /// "https://hub/api/models/org/name" + tail
  [[nodiscard]] std::string api(std::string_view tail) const;
  /// For people: "https://hub/org/name".
  [[nodiscard]] std::string page() const { return endpoint + "/" + repository; }
};

/// "org/name", also as it is pasted (pasted_hub_name). Errors: invalid, with what is allowed.
[[nodiscard]] Result<std::string> parse_repository_name(std::string_view text);

[[nodiscard]] HubAddress hub_address(const format::RemoteOptions& remote, std::string repository);

/// A revision as one part of a path: "refs/pr/1" is "refs%2Fpr%2F1".
[[nodiscard]] std::string encoded_revision(std::string_view revision);

/// The token, if the URL is the endpoint's own scheme, host and port; else nothing.
[[nodiscard]] std::string token_for(const HubAddress& hub, const std::string& url);

/// Without query, fragment and password.
[[nodiscard]] std::string public_url(std::string_view url);

/// A text as it may be shown: no token, no query of a URL.
[[nodiscard]] std::string redacted(std::string_view text, const std::string& token);
/// The same of a server's own words, and at most 300 bytes of them.
[[nodiscard]] std::string public_words(std::string_view text, const std::string& token);

}  // namespace dspack::reshard
