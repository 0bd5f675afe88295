#include "runtime/cli/chat.h"

#include <fmt/format.h>

#include <cstdio>

#include "format/cli/output.h"
#include "format/cli/verb.h"
#include "runtime/cli/answer.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/message_assembler.h"
#include "runtime/cli/terminal.h"

namespace dspack::runtime {

namespace {

constexpr char kHelp[] =
    "/clear  forget the conversation\n"
    "/exit   leave (also Ctrl-D)\n"
    "Ctrl-C  stop the answer; twice at the prompt: leave\n"
    "Several lines: paste them, end each but the last with \\, or put them between two lines of \"\"\"";

class Chat {
 public:
  Chat(LoadedModel& loaded, Session session, const TextModel& text, Sampler sampler, const RunOptions& options)
      : text_(text), sampler_(std::move(sampler)), stop_(options.stop), session_(std::move(session)) {
    render_.thinking = options.chat.thinking.value_or(false);
    render_.thinking_is_said = options.chat.thinking.has_value();
    generate_ = generate_options(loaded, options.max_tokens);
  }

  Result<int> run(ChatTerminal& terminal);
  [[nodiscard]] const Session& session() const { return session_; }

 private:
  enum class Next { go_on, leave };
  /// Errors: those of an answer, where no person could react to them.
  Result<Next> handle(const std::string& message, ChatTerminal& terminal);
  Next command(const std::string& message);
  Result<void> answer(const std::string& message, ChatTerminal& terminal);

  const TextModel& text_;
  Sampler sampler_;
  StopStrings stop_;
  Session session_;
  RenderOptions render_;
  GenerateOptions generate_;
  std::vector<ChatMessage> history_;
};

void show_prompt(const MessageAssembler& assembler) {
  if (!stdin_is_terminal() || !format::stdout_is_terminal()) return;
  format::print_out(assembler.is_open() ? "... " : "> ");
  (void)std::fflush(stdout);
}

Result<int> Chat::run(ChatTerminal& terminal) {
  MessageAssembler assembler;
  bool warned = false;  // a Ctrl-C at the prompt was just answered with a warning
  for (;;) {
    show_prompt(assembler);
    ChatTerminal::Input input = terminal.read_line();
    std::optional<std::string> message;
    switch (input.event) {
      case ChatTerminal::Event::interrupted:
        if (warned) return format::kInterruptedStatus;
        warned = true;
        assembler.reset();
        format::print_help("\n(Ctrl-C again or /exit leaves)");
        continue;
      case ChatTerminal::Event::end_of_input: message = assembler.finish(); break;
      case ChatTerminal::Event::line: message = assembler.push(input.line); break;
    }
    warned = false;
    if (message && !message->empty()) {
      TRY_ASSIGN(const Next next, handle(*message, terminal));
      if (next == Next::leave) return 0;
    }
    if (input.event == ChatTerminal::Event::end_of_input) return 0;
  }
}

Result<Chat::Next> Chat::handle(const std::string& message, ChatTerminal& terminal) {
  if (message.starts_with('/') && message.find('\n') == std::string::npos) return command(message);
  // An error (a conversation that has become too long, an expert file that is gone) ends the answer, and the chat only
  // where a program has asked: it goes by the exit status.
  if (auto done = answer(message, terminal); !done) {
    if (!stdin_is_terminal()) return done.error();
    format::print_error("dsrun: " + done.error().message + (history_.empty() ? "" : " (/clear starts anew)"));
  }
  return Next::go_on;
}

Chat::Next Chat::command(const std::string& message) {
  if (message == "/exit") return Next::leave;
  if (message == "/help") {
    format::print_help(kHelp);
  } else if (message == "/clear") {
    history_.clear();
    session_.clear();
    note("(the conversation is forgotten)");
  } else {
    format::print_error(fmt::format("dsrun: there is no command {}; /help lists them", message));
  }
  return Next::go_on;
}

// Templates leave out an answer's reasoning by its end. Where the answer was cut before that, all of it is reasoning.
std::string closed_reasoning(std::string_view prompt, std::string said) {
  const bool open = prompt.ends_with("<think>") || prompt.ends_with("<think>\n") || said.starts_with("<think>");
  if (open && said.find("</think>") == std::string::npos) said += "</think>";
  return said;
}

Result<void> Chat::answer(const std::string& message, ChatTerminal& terminal) {
  std::vector<ChatMessage> conversation = history_;
  conversation.push_back({.role = Role::user, .content = message});
  TRY_ASSIGN(const std::string prompt, text_.render_chat(conversation, render_));
  TRY_ASSIGN(const std::vector<uint32_t> tokens, text_.tokenizer().encode(prompt, SpecialTokens::parse));
  AnswerPrinter printer(text_.tokenizer(), stop_);
  const auto answer = session_.generate(
      tokens, generate_, sampler_, [&](uint32_t token) { return printer.push(token); }, terminal.begin_work());
  terminal.end_work();
  std::string said = printer.finish();
  if (!answer) return answer.error();
  report_end(answer->reason);
  if (said.empty() && answer->reason == StopReason::interrupted) return {};  // as if it had not been asked
  conversation.push_back({.role = Role::assistant, .content = closed_reasoning(prompt, std::move(said))});
  history_ = std::move(conversation);
  return {};
}

}  // namespace

Result<int> run_chat(const RunOptions& options) {
  ChatTerminal terminal;
  TRY_ASSIGN(Sampler sampler, Sampler::make(options.sampler));
  const std::stop_token loading = terminal.begin_work();
  TRY_ASSIGN(auto loaded, load_model(options.folder, options.load, loading));
  TRY_ASSIGN(const TextModel text, load_text(*loaded, options.chat, loading));
  TRY(text.render_chat({}, {}));  // an unknown chat template is said now, not after the first question
  terminal.end_work();
  note(fmt::format("{}, {} positions; /help lists the commands", loaded->device().description(),
                   loaded->model().context()));
  TRY_ASSIGN(Session session, loaded->start_session());
  Chat chat(*loaded, std::move(session), text, std::move(sampler), options);
  TRY_ASSIGN(const int status, chat.run(terminal));
  TRY(report_stats(*loaded, chat.session(), options.stats_file));
  return status;
}

}  // namespace dspack::runtime
