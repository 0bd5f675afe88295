// The places that the command line names: the model's folder or address, the cache of fetched data, and the place that
// completes a part of a model; and opening them.
// Threads: call from the main thread. Lifetime: the targets of options must live until the command line has been
// parsed.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "format/cli/option_table.h"
#include "runtime/access/checkpoint_access.h"

namespace dspack::runtime {

/// DIR.
void add_folder(format::OptionTable& table, std::string& folder);

/// --cache and --disk.
void add_cache_options(format::OptionTable& table, RemoteAccess& access);

/// --absent-from, for verbs that read weights.
void add_absent_option(format::OptionTable& table, RemoteAccess& access);

/// --config, for verbs that read a model.
void add_config_option(format::OptionTable& table, RemoteAccess& access);

/// Makes an additional observer of progress, which forwards all events to `shown`.
using ProgressWatch = std::function<std::shared_ptr<format::Progress>(std::shared_ptr<format::Progress> shown)>;

/// Opens the checkpoint at a local folder, or at a distant place with its cache (an http(s):// folder, a repository on
/// the Hub). A part of a model is completed from the place that `access` names. Errors: not_found; those of cache,
/// network and CheckpointAccess. `watch` may be empty; its observer lives as long as the checkpoint.
[[nodiscard]] Result<std::unique_ptr<CheckpointAccess>> open_place(const std::string& place, const RemoteAccess& access,
                                                                   const std::stop_token& stop,
                                                                   const ProgressWatch& watch = {});

}  // namespace dspack::runtime
