// What the KV cache of a loaded model depends on, as one digest: two runs with the same digest compute the same rows.
// Threads: single-thread. Errors: those of reading config.json.
#pragma once

#include <stop_token>

#include "runtime/generate/kv_file.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

/// From config.json, the order of layers, the cache's planes, precision and kind of device, and the weights: of a
/// packed repository the digests that its manifest has of every tensor, of an ordinary checkpoint names, shapes and
/// places of the tensors, and sizes and versions (a local file's time of change) of its files, since reading all of it
/// would take as long as a prompt.
[[nodiscard]] Result<KvIdentity> find_identity(LoadedModel& loaded, const std::stop_token& stop);

}  // namespace dspack::runtime
