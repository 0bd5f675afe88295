// The verbs of reshard. The file named after a verb has its options and runs it.
// Threads: main. Errors: those of the libraries; the runner prints them.
#pragma once

#include "format/cli/verb.h"

namespace dspack::reshard {

/// The verb without a word: packs a checkpoint, or with --dry-run prints what that would take.
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
