// dsrun's command line: the table of its verbs.
// Threads: main. Errors: those of the libraries; the runner prints them.
#pragma once

#include "format/cli/verb.h"

namespace dspack::runtime {

/// Without a word: answers a prompt, or chats where none is given.
[[nodiscard]] format::Verb run_verb();
[[nodiscard]] format::Verb logits_verb();
[[nodiscard]] format::Verb tokenize_verb();
[[nodiscard]] format::Verb eval_verb();
[[nodiscard]] format::Verb record_verb();
[[nodiscard]] format::Verb compare_verb();
[[nodiscard]] format::Verb replay_verb();
[[nodiscard]] format::Verb plan_verb();

[[nodiscard]] inline format::Program dsrun_program() {
  return {.name = "dsrun",
          .verbs = {run_verb(), logits_verb(), tokenize_verb(), eval_verb(), record_verb(), compare_verb(),
                    replay_verb(), plan_verb()},
          .when_interrupted = {}};
}

}  // namespace dspack::runtime
