// A chat in a file: its messages, and the KV rows of what the model has read and said, so that it resumes without
// reading all of that again. A KV file (kv_file.h) from position 0 on, with the messages as its text: JSON in the form
// of OpenAI's chat API. A file that others can have written is not read: whatever is in it would be said to be the
// model's.
// Threads: single-thread. Errors: those of files and of kv_file.h, naming the file; conflict (what is there is no saved
// chat, and stays); invalid (no chat).
#pragma once

#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/generate/loaded_model.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

struct SavedChat {
  std::string system = {};                 // empty: none
  std::vector<ChatMessage> messages = {};  // questions and answers in turn
};

/// The text of a file: JSON.
[[nodiscard]] std::string saved_messages(const SavedChat& chat);
/// Of such a text, which anybody may have written.
[[nodiscard]] Result<SavedChat> parse_saved_messages(std::string_view text);

/// Precondition: the sequence holds something.
[[nodiscard]] Result<void> save_chat(const std::string& file, const SavedChat& chat, const Sequence& sequence,
                                     LoadedModel& loaded, const std::stop_token& stop);
/// Puts the rows into the sequence in place of what it held; after an error that stays.
[[nodiscard]] Result<SavedChat> load_chat(const std::string& file, Sequence& sequence, LoadedModel& loaded,
                                          const std::stop_token& stop);
/// Whether there is anything of that name.
[[nodiscard]] Result<bool> has_saved_chat(const std::string& file);

}  // namespace dspack::runtime
