#include "runtime/cli/chat.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <utility>

#include "format/base/foreign_text.h"
#include "format/cli/output.h"
#include "format/cli/verb.h"
#include "format/file_system.h"
#include "runtime/cli/answer.h"
#include "runtime/cli/answer_status.h"
#include "runtime/cli/chat_command.h"
#include "runtime/cli/generation_options.h"
#include "runtime/cli/input_history.h"
#include "runtime/cli/line_editor.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/message_assembler.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/prompt.h"
#include "runtime/cli/saved_chat.h"
#include "runtime/cli/terminal.h"
#include "runtime/generate/stats.h"

namespace dspack::runtime {

namespace {

/// Source of messages: a terminal with a line editor, one without, or a pipe.
class Typist {
 public:
  Typist(ChatTerminal& terminal, bool keeps_history)
      : terminal_(terminal),
        history_(format::posix_file_system(), keeps_history ? user_history_file() : format::Path()) {
    if (terminal.is_interactive()) editor_ = LineEditor::open([&terminal] { return terminal.next_input(); });
    if (editor_) terminal_.hide_typing();
  }

  struct Input {
    ChatTerminal::Event event = ChatTerminal::Event::end_of_input;
    std::string text;  // interrupted: the text typed so far, or empty
  };
  /// Reads one line, or a message of several lines from the line editor.
  [[nodiscard]] Input read(bool goes_on);
  [[nodiscard]] bool edits() const { return editor_ != nullptr; }
  void load_history();
  void remember(const std::string& message);

 private:
  ChatTerminal& terminal_;
  InputHistory history_;
  std::unique_ptr<LineEditor> editor_;
  bool history_fails_ = false;  // and a note was printed
};

Typist::Input Typist::read(bool goes_on) {
  const std::string prompt = goes_on ? "... " : "> ";
  if (!editor_) {
    if (stdin_is_terminal() && format::stdout_is_terminal()) format::print_out(prompt);
    (void)std::fflush(stdout);
    ChatTerminal::Input input = terminal_.read_line();
    return {.event = input.event, .text = std::move(input.line)};
  }
  LineEditor::Typed typed = editor_->read(prompt);
  terminal_.hide_typing();
  switch (typed.outcome) {
    case LineEditor::Outcome::message: return {.event = ChatTerminal::Event::line, .text = std::move(typed.text)};
    case LineEditor::Outcome::interrupted:
      return {.event = ChatTerminal::Event::interrupted, .text = std::move(typed.text)};
    case LineEditor::Outcome::end_of_input: break;
  }
  format::print_out("\n");
  return {};
}

void Typist::load_history() {
  if (!editor_) return;
  const auto entries = history_.read();
  if (!entries) {
    note("what was typed in earlier chats is not at hand: " + entries.error().message);
    return;
  }
  for (const std::string& entry : *entries)
    editor_->remember(entry);
}

void Typist::remember(const std::string& message) {
  if (!editor_) return;
  if (message.size() <= InputHistory::kMaxEntryBytes) editor_->remember(message);
  if (const auto kept = history_.add(message); !kept && !std::exchange(history_fails_, true)) {
    note("what is typed is not kept for later chats: " + kept.error().message);
  }
}

class Chat {
 public:
  Chat(LoadedModel& loaded, Session session, const TextModel& text, SamplerOptions sampling, Sampler sampler,
       const RunOptions& options)
      : loaded_(loaded),
        text_(text),
        sampling_(std::move(sampling)),
        sampler_(std::move(sampler)),
        stop_(options.stop),
        session_(std::move(session)) {
    render_.arguments = options.chat.arguments();
    generate_ = generate_options(loaded, options.max_tokens);
  }

  void set_system(std::string text) { system_ = std::move(text); }
  Result<int> run(ChatTerminal& terminal, Typist& typist);
  [[nodiscard]] const Session& session() const { return session_; }
  Result<void> save(const std::string& file);
  Result<void> load(const std::string& file);
  /// Whether a question has been answered.
  [[nodiscard]] bool has_begun() const { return !history_.empty(); }

 private:
  enum class Next { go_on, leave };
  /// Errors: those of an answer if standard input is no terminal.
  Result<Next> handle(const std::string& message, ChatTerminal& terminal, bool edits);
  /// Errors: those of the command.
  Result<Next> obey(const CommandLine& command, ChatTerminal& terminal, bool edits);
  Result<void> set_temperature(const std::string& number);
  Result<void> attach(const std::string& file);
  Result<void> regenerate(ChatTerminal& terminal);
  Result<ChatText> render(std::span<const ChatMessage> conversation, const std::stop_token& stop);
  Result<void> answer(const std::string& message, ChatTerminal& terminal);

  LoadedModel& loaded_;
  const TextModel& text_;
  SamplerOptions sampling_;
  Sampler sampler_;
  StopStrings stop_;
  Session session_;
  RenderOptions render_;
  GenerateOptions generate_;
  std::string system_;                // empty: none
  std::string attached_;              // text of files, for the next question
  std::vector<ChatMessage> history_;  // without the system message
};

Result<int> Chat::run(ChatTerminal& terminal, Typist& typist) {
  MessageAssembler assembler;
  bool warned = false;  // the last Ctrl-C at the prompt printed a warning
  for (;;) {
    const Typist::Input input = typist.read(assembler.is_open());
    std::optional<std::string> message;
    switch (input.event) {
      case ChatTerminal::Event::interrupted: {
        if (warned && input.text.empty()) return format::kInterruptedStatus;
        const bool was_idle = input.text.empty() && !(typist.edits() && assembler.is_open());
        warned = was_idle;
        assembler.reset();
        format::print_help(was_idle ? "\n(Ctrl-C again or /exit leaves)" : "");
        continue;
      }
      case ChatTerminal::Event::end_of_input: message = assembler.finish(); break;
      case ChatTerminal::Event::line: message = assembler.push(input.text); break;
    }
    warned = false;
    if (message && !message->empty()) {
      typist.remember(*message);
      TRY_ASSIGN(const Next next, handle(*message, terminal, typist.edits()));
      if (next == Next::leave) return 0;
    }
    if (input.event == ChatTerminal::Event::end_of_input) return 0;
  }
}

// An error (a conversation that has become too long, an expert file that is gone) ends the answer; it ends the chat
// only if a program asked, which relies on the exit status. A mistake in a command ends nothing.
Result<Chat::Next> Chat::handle(const std::string& message, ChatTerminal& terminal, bool edits) {
  const auto command = parse_command(message);
  if (!command || *command) {
    const auto next = command ? obey(**command, terminal, edits) : Result<Next>(command.error());
    if (next) return *next;
    format::print_error("dsrun: " + next.error().message);
    return Next::go_on;
  }
  if (auto done = answer(attached_ + message, terminal); !done) {
    if (!stdin_is_terminal()) return done.error();
    format::print_error("dsrun: " + done.error().message + (history_.empty() ? "" : " (/clear starts anew)"));
  } else {
    attached_.clear();
  }
  return Next::go_on;
}

Result<Chat::Next> Chat::obey(const CommandLine& command, ChatTerminal& terminal, bool edits) {
  switch (command.command) {
    case Command::leave: return Next::leave;
    case Command::help: format::print_help(command_help(edits)); break;
    case Command::clear:
      history_.clear();
      attached_.clear();
      session_.clear();
      note("(the conversation is forgotten)");
      break;
    case Command::context:
      format::print_help(
          fmt::format("{} of {} positions are used", session_.sequence().length(), loaded_.model().context()));
      break;
    case Command::load: TRY(load(command.argument)); break;
    case Command::save: TRY(save(command.argument)); break;
    case Command::read: TRY(attach(command.argument)); break;
    case Command::regen: TRY(regenerate(terminal)); break;
    case Command::stats: format::print_help(summary(collect_stats(loaded_, session_))); break;
    case Command::system:
      system_ = command.argument;
      note(system_.empty() ? "(there is no system message now)" : "(the system message is set)");
      break;
    case Command::temp: TRY(set_temperature(command.argument)); break;
  }
  return Next::go_on;
}

Result<void> Chat::save(const std::string& file) {
  if (!has_begun()) return Error{ErrorKind::invalid, "nothing was answered yet that could be saved"};
  TRY(save_chat(file, {.system = system_, .messages = history_}, session_.sequence(), loaded_, {}));
  note(
      fmt::format("(saved in {}: {} messages, {} tokens)", brief(file), history_.size(), session_.sequence().length()));
  return {};
}

Result<void> Chat::load(const std::string& file) {
  TRY_ASSIGN(SavedChat saved, load_chat(file, session_.sequence(), loaded_, {}));
  system_ = std::move(saved.system);
  history_ = std::move(saved.messages);
  attached_.clear();
  note(fmt::format("(loaded from {}: {} messages, {} tokens)", brief(file), history_.size(),
                   session_.sequence().length()));
  return {};
}

Result<void> Chat::set_temperature(const std::string& number) {
  const auto temperature = format::between(0.0, 100.0)(number);
  if (!temperature) return temperature.error().in("/temp");
  SamplerOptions changed = sampling_;
  changed.temperature = *temperature;
  TRY_ASSIGN(sampler_, Sampler::make(changed));
  sampling_ = changed;
  note(fmt::format("(sampling: {})", describe(sampling_)));
  return {};
}

Result<void> Chat::attach(const std::string& file) {
  TRY_ASSIGN(const std::string text, read_text_file(file));
  if (attached_.size() + text.size() > kMaxFileBytes) {
    return Error{ErrorKind::budget, fmt::format("/read: the files of one question can have at most {} in all",
                                                format::human_bytes(kMaxFileBytes))};
  }
  attached_ += text + (text.ends_with('\n') ? "\n" : "\n\n");
  note(fmt::format("({} are put in front of the next question)", format::human_bytes(text.size())));
  return {};
}

// The sequence keeps the prefix that both answers share. Uses the next seed, else the same answer would result.
Result<void> Chat::regenerate(ChatTerminal& terminal) {
  if (history_.empty()) return Error{ErrorKind::invalid, "/regen: nothing was answered yet"};
  ++sampling_.seed;
  TRY_ASSIGN(sampler_, Sampler::make(sampling_));
  const std::vector<ChatMessage> before = history_;
  const std::string question = history_[history_.size() - 2].content.value_or("");
  history_.resize(history_.size() - 2);
  auto done = answer(question, terminal);
  if (!done || history_.size() < before.size()) history_ = before;  // undoes a failure or an early stop
  return done;
}

// Templates remove an answer's reasoning by its end mark. If the answer was cut before that mark, all of it is
// reasoning.
std::string closed_reasoning(std::string_view prompt, std::string said) {
  const bool open = begins_reasoning(prompt) || said.starts_with("<think>");
  if (open && said.find("</think>") == std::string::npos) said += "</think>";
  return said;
}

Result<ChatText> Chat::render(std::span<const ChatMessage> conversation, const std::stop_token& stop) {
  RenderOptions options = render_;
  options.now = local_time();
  options.stop = stop;
  return text_.render_chat(conversation, std::move(options));
}

Result<void> Chat::answer(const std::string& message, ChatTerminal& terminal) {
  std::vector<ChatMessage> conversation;
  if (!system_.empty()) conversation.push_back({.role = Role::system, .content = system_});
  conversation.insert(conversation.end(), history_.begin(), history_.end());
  conversation.push_back({.role = Role::user, .content = message});
  // Ctrl-C stops the template as well as the model.
  const std::stop_token work = terminal.begin_work();
  const auto prompt = render(conversation, work);
  const auto tokens =
      prompt ? text_.tokenizer().encode(prompt->text, prompt->special) : Result<std::vector<uint32_t>>(prompt.error());
  if (!tokens) {
    terminal.end_work();
    return tokens.error();
  }
  const auto end_of_reasoning = text_.end_of_reasoning();
  AnswerPrinter printer(text_.tokenizer(), stop_, begins_reasoning(prompt->text), end_of_reasoning);
  const auto answer = generate_with_status(
      loaded_, session_, *tokens, generate_, sampler_, [&](uint32_t token) { return printer.push(token); }, work);
  terminal.end_work();
  std::string said = printer.finish();
  if (!answer) return answer.error();
  report_end(answer->reason);
  if (said.empty() && answer->reason == StopReason::interrupted) return {};  // as if it had not been asked
  history_.push_back({.role = Role::user, .content = message});
  // If the mark is a token, it would become text in the next prompt, from which earlier reasoning is removed anyway.
  said = end_of_reasoning ? said.substr(printer.answer_begin()) : closed_reasoning(prompt->text, std::move(said));
  history_.push_back({.role = Role::assistant, .content = std::move(said)});
  return {};
}

/// A session resumes in its own precision if none is named, on a device that has it.
Result<LoadOptions> load_options(const RunOptions& options) {
  LoadOptions load = options.load;
  if (load.device.precision || options.session.empty()) return load;
  TRY_ASSIGN(load.device.precision, find_saved_precision(options.session));
  // Only a CPU rounds without being asked.
  const bool rounds = load.device.precision.value_or(kernels::Precision::exact) != kernels::Precision::exact;
  if (rounds && load.device.kind == DeviceKind::automatic) load.device.kind = DeviceKind::cpu;
  if (const auto fits = check_model_options(load); !fits) return fits.error().in(brief(options.session));
  return load;
}

}  // namespace

Result<int> run_chat(const RunOptions& options) {
  ChatTerminal terminal;
  TRY(Sampler::make(options.sampler.over()));
  TRY_ASSIGN(std::string system, read_system(options.system));
  Typist typist(terminal, !options.no_history);
  const std::stop_token loading = terminal.begin_work();
  TRY_ASSIGN(const LoadOptions load, load_options(options));
  TRY_ASSIGN(auto loaded, load_model(options.folder, load, loading));
  TRY_ASSIGN(const TextModel text, load_text(*loaded, options.chat, loading));
  // Reports a failing chat template now, not after the first question.
  const ChatMessage greeting{.role = Role::user, .content = "Hello"};
  TRY(text.render_chat({&greeting, 1}, {.stop = loading}));
  // On a terminal, uses the repository's recommended sampling, and prints a note on it.
  SamplerOptions sampling = options.sampler.over();
  if (stdin_is_terminal() && format::stdout_is_terminal()) {
    TRY_ASSIGN(sampling, choose_sampling(loaded->access().files(), options.sampler, loading));
  }
  TRY_ASSIGN(Sampler sampler, Sampler::make(sampling));
  terminal.end_work();
  typist.load_history();
  note(fmt::format("{}, {} positions; /help lists the commands", loaded->device().description(),
                   loaded->model().context()));
  TRY_ASSIGN(Session session, loaded->start_session());
  Chat chat(*loaded, std::move(session), text, sampling, std::move(sampler), options);
  if (!options.session.empty()) {
    TRY_ASSIGN(const bool goes_on, has_saved_chat(options.session));
    if (goes_on) TRY(chat.load(options.session));
  }
  if (!system.empty()) chat.set_system(std::move(system));
  const auto ended = chat.run(terminal, typist);
  // Also after an answer has failed: the earlier answers are saved.
  if (!options.session.empty() && chat.has_begun()) TRY(chat.save(options.session));
  TRY_ASSIGN(const int status, ended);
  TRY(report_stats(*loaded, chat.session(), options.stats_file));
  return status;
}

}  // namespace dspack::runtime
