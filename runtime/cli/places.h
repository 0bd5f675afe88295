// The places that the command line names: the model's folder or address, the cache of what is fetched, and the place
// that has what a part of a model lacks; and opening them.
// Threads: call from the main thread. Lifetime: what options are read into must live until the command line was parsed.
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

/// --absent-from, for what reads weights.
void add_absent_option(format::OptionTable& table, RemoteAccess& access);

/// --config, for what reads a model.
void add_config_option(format::OptionTable& table, RemoteAccess& access);

/// What looks on beside the one who is shown the progress: made of that one, and passes events on.
using ProgressWatch = std::function<std::shared_ptr<format::Progress>(std::shared_ptr<format::Progress> shown)>;

/// The checkpoint at a local folder or at a distant place with its cache (an http(s):// folder, a repository of the
/// Hub); of a part of a model completed by the place that `access` names. Errors: not_found; those of cache, network
/// and CheckpointAccess. `watch` may be empty; what it makes lives as long as the checkpoint.
[[nodiscard]] Result<std::unique_ptr<CheckpointAccess>> open_place(const std::string& place, const RemoteAccess& access,
                                                                   const std::stop_token& stop,
                                                                   const ProgressWatch& watch = {});

}  // namespace dspack::runtime
