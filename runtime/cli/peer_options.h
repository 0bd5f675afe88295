// Options of llama.cpp, vLLM and SGLang that their users type here, too, and what dsrun has instead.
// Threads: thread-safe. Errors: none.
#pragma once

#include <vector>

#include "format/cli/verb.h"

namespace dspack::runtime {

[[nodiscard]] std::vector<format::PeerOption> peer_options();

}  // namespace dspack::runtime
