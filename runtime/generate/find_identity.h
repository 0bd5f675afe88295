// Digest of everything that a loaded model's KV rows depend on: runs with equal digests compute equal rows.
// Threads: single-thread. Errors: those of reading config.json.
#pragma once

#include <stop_token>

#include "runtime/generate/kv_file.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

/// Digests config.json, the order of layers, the cache's planes, precision and kind of device, and the weights. A
/// packed repository contributes the digests of all tensors in its manifest; an ordinary checkpoint names, shapes and
/// places of its tensors, and sizes and versions (for local files the time of change) of its files, since reading all
/// of it would take as long as a prompt.
[[nodiscard]] Result<KvIdentity> find_identity(LoadedModel& loaded, const std::stop_token& stop);

}  // namespace dspack::runtime
