// A repository in an HTTP folder: any server that honours Range.
// Threads: thread-safe. Errors: as HttpClient; failures that may pass are repeated with growing pauses.
#pragma once

#include "format/source/repository.h"

namespace dspack::format {

/// `url` as the user wrote it.
[[nodiscard]] std::unique_ptr<Repository> make_http_repository(std::string_view url, const RemoteOptions& options);

}  // namespace dspack::format
