// The places that the command line names: the model's folder or address, the cache of what is fetched, and where what a
// part of a model lacks is read; and opening them.
// Threads: call from the main thread. Lifetime: what options are read into must live until the command line was parsed.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

#include "format/cli/option_table.h"
#include "format/source/repository.h"
#include "runtime/storage/remote_place.h"

namespace dspack::runtime {

/// DIR.
void add_folder(format::OptionTable& table, std::string& folder);

/// --cache and --disk.
void add_cache_options(format::OptionTable& table, RemoteAccess& access);

/// --absent-from, for what reads weights.
void add_absent_option(format::OptionTable& table, RemoteAccess& access);

/// A local folder, or a distant place with its cache: an http(s):// folder or a repository of the Hub; of a
/// part of a model both together, where `access` says where the rest is. Errors: not_found; those of cache and
/// network, and of CompletedPlace.
[[nodiscard]] Result<std::unique_ptr<format::Repository>> open_place(const std::string& place,
                                                                     const RemoteAccess& access,
                                                                     const std::stop_token& stop);

}  // namespace dspack::runtime
