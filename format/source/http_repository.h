// A repository in an HTTP folder: any server that honours Range, or the Hub's resolve URLs.
// Threads: thread-safe. Errors: as HttpClient; failures that may pass are repeated with growing pauses.
#pragma once

#include "format/source/repository.h"

namespace dspack::format {

struct HttpFolder {
  RepositoryKind kind = RepositoryKind::http;
  std::string description;  // what the user asked for
  std::string base_url;     // without a trailing slash; paths are appended
  std::string token;        // bearer token for this host, or empty
};

[[nodiscard]] std::unique_ptr<Repository> make_http_repository(HttpFolder folder, const RemoteOptions& options);

/// A path as part of a URL: everything but unreserved characters and "/" percent-encoded.
[[nodiscard]] std::string url_path(std::string_view path);

}  // namespace dspack::format
