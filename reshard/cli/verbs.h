// The verbs of reshard: the options of each, and what it does with them, are in the file of its name.
// Threads: main. Errors: those of the libraries; the runner prints them.
#pragma once

#include "format/cli/verb.h"

namespace dspack::reshard {

/// Without a word: packs a checkpoint, or says what that would take.
[[nodiscard]] format::Verb repack_verb();
[[nodiscard]] format::Verb inspect_verb();
[[nodiscard]] format::Verb verify_verb();
[[nodiscard]] format::Verb repair_verb();
[[nodiscard]] format::Verb unpack_verb();
[[nodiscard]] format::Verb link_verb();
[[nodiscard]] format::Verb seal_verb();
[[nodiscard]] format::Verb diff_verb();
[[nodiscard]] format::Verb publish_verb();

}  // namespace dspack::reshard
