// A chat in a file: its messages, and the KV rows of the tokens that the model has read and written, so that it resumes
// without computing them again. A KV file (kv_file.h) from position 0 on, with the messages as its text: JSON in the
// form of OpenAI's chat API. A file that others could have written is not read: its content would be taken for the
// model's.
// Threads: single-thread. Errors: those of files and of kv_file.h, naming the file; conflict (an existing file is no
// saved chat, and is kept); invalid (not a chat).
#pragma once

#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/generate/loaded_model.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

struct SavedChat {
  std::string system = {};                 // empty: no system message
  std::vector<ChatMessage> messages = {};  // alternating questions and answers
};

/// The text of a file: JSON.
[[nodiscard]] std::string saved_messages(const SavedChat& chat);
/// `text`: untrusted.
[[nodiscard]] Result<SavedChat> parse_saved_messages(std::string_view text);

/// Precondition: the sequence is not empty.
[[nodiscard]] Result<void> save_chat(const std::string& file, const SavedChat& chat, const Sequence& sequence,
                                     LoadedModel& loaded, const std::stop_token& stop);
/// Replaces the sequence's content with the file's rows. A file that cannot be read leaves it unchanged.
[[nodiscard]] Result<SavedChat> load_chat(const std::string& file, Sequence& sequence, LoadedModel& loaded,
                                          const std::stop_token& stop);
/// The precision in which the file's rows were computed. Absent: there is no such file, or no saved chat in it.
[[nodiscard]] Result<std::optional<kernels::Precision>> find_saved_precision(const std::string& file);
/// Whether a file of that name exists.
[[nodiscard]] Result<bool> has_saved_chat(const std::string& file);

}  // namespace dspack::runtime
