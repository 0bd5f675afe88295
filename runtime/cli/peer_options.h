// Options of llama.cpp, vLLM and SGLang that users may try here, with dsrun's replacements.
// Threads: thread-safe. Errors: none.
#pragma once

#include <vector>

#include "format/cli/verb.h"

namespace dspack::runtime {

[[nodiscard]] std::vector<format::PeerOption> peer_options();

}  // namespace dspack::runtime
