// Options for models that lie across a network, and opening the places that the command line names.
// Threads: call from the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <stop_token>
#include <string>

#include "format/source/repository.h"
#include "runtime/storage/remote_place.h"

namespace dspack::runtime {

/// --cache and --disk. `access` must live until the command line was parsed.
void add_remote_options(CLI::App& app, RemoteAccess& access);

/// --absent-from, for what reads weights. The same holds for `access`.
void add_absent_option(CLI::App& app, RemoteAccess& access);

/// A local folder, or a distant place with its cache: an http(s):// folder or a repository of the Hub; of a
/// part of a model both together, where `access` says where the rest is. Errors: not_found; those of cache and
/// network, and of CompletedPlace.
[[nodiscard]] Result<std::unique_ptr<format::Repository>> open_place(const std::string& place,
                                                                     const RemoteAccess& access,
                                                                     const std::stop_token& stop);

}  // namespace dspack::runtime
