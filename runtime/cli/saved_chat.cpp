#include "runtime/cli/saved_chat.h"

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "runtime/generate/find_identity.h"

namespace dspack::runtime {

namespace {

Result<KvFile> read_chat(const std::string& path, const KvIdentity& identity) {
  TRY_ASSIGN(const auto file, format::posix_file_system().open_read_own(path));
  TRY_ASSIGN(KvFile content, read_kv_file(*file, identity));
  if (content.block.first != 0 || content.notes.text.empty()) {
    return invalid("it is a part of a prefix cache, and no chat");
  }
  return content;
}

Result<void> check_replaceable(const std::string& path) {
  format::FileSystem& files = format::posix_file_system();
  TRY_ASSIGN(const auto info, files.stat(path));
  if (!info) return {};
  if (info->is_regular) {
    TRY_ASSIGN(const auto file, files.open_read(path));
    if (is_kv_file(*file)) return {};
  }
  return Error{ErrorKind::conflict, "there is something else of that name; choose another one"};
}

}  // namespace

std::string saved_messages(const SavedChat& chat) {
  OrderedJson messages = OrderedJson::array();
  if (!chat.system.empty()) messages.push_back({{"role", "system"}, {"content", chat.system}});
  for (const ChatMessage& message : chat.messages) {
    messages.push_back(
        {{"role", message.role == Role::user ? "user" : "assistant"}, {"content", message.content.value_or("")}});
  }
  // An answer that was cut within a character ends in invalid UTF-8.
  return messages.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Result<SavedChat> parse_saved_messages(std::string_view text) {
  TRY_ASSIGN(Conversation conversation, parse_conversation(text));
  SavedChat chat;
  for (ChatMessage& message : conversation.messages) {
    if (message.role == Role::system && chat.system.empty() && chat.messages.empty()) {
      chat.system = message.content.value_or("");
      continue;
    }
    const Role expected = chat.messages.size() % 2 == 0 ? Role::user : Role::assistant;
    if (message.role != expected || !message.content)
      return invalid("its messages are not questions and answers in turn");
    chat.messages.push_back({.role = expected, .content = std::move(message.content)});
  }
  if (chat.messages.size() % 2 != 0) return invalid("its last question has no answer");
  return chat;
}

Result<bool> has_saved_chat(const std::string& file) {
  auto info = format::posix_file_system().stat(file);
  if (!info) return info.error().in(brief(file));
  return info->has_value();
}

Result<std::optional<kernels::Precision>> find_saved_precision(const std::string& file) {
  TRY_ASSIGN(const bool exists, has_saved_chat(file));
  if (!exists) return std::optional<kernels::Precision>();
  const auto opened = format::posix_file_system().open_read_own(file);
  if (!opened) return opened.error().in(brief(file));
  return kv_file_precision(**opened);
}

Result<void> save_chat(const std::string& file, const SavedChat& chat, const Sequence& sequence, LoadedModel& loaded,
                       const std::stop_token& stop) {
  if (const auto may = check_replaceable(file); !may) return may.error().in(brief(file));
  TRY_ASSIGN(const KvIdentity identity, find_identity(loaded, stop));
  const std::string text = saved_messages(chat);
  if (text.size() > kMaxKvTextBytes) return Error{ErrorKind::budget, "the messages are too long to be saved"};
  TRY_ASSIGN(const KvBlock block, sequence.read_block(0, sequence.length()));
  return write_kv_file(format::posix_file_system(), file, block, {.parent = identity.digest, .text = text}, identity);
}

Result<SavedChat> load_chat(const std::string& file, Sequence& sequence, LoadedModel& loaded,
                            const std::stop_token& stop) {
  TRY_ASSIGN(const KvIdentity identity, find_identity(loaded, stop));
  const auto content = read_chat(file, identity);
  if (!content) return content.error().in(brief(file));
  auto chat = parse_saved_messages(content->notes.text);
  if (!chat) return chat.error().in(brief(file));
  if (!content->block.goes_on)
    return Error{ErrorKind::invalid, "it has no rows to go on from: it is no saved chat, but a part of one"}.in(
        brief(file));
  sequence.truncate(0);
  TRY(sequence.append(content->block, content->block.end()));
  return chat;
}

}  // namespace dspack::runtime
