#include "runtime/cli/loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "format/base/size.h"
#include "format/cli/output.h"
#include "format/file_system.h"
#include "runtime/cli/places.h"

namespace dspack::runtime {

namespace {

// Prints nothing if the model's layers run once each, in order.
void note_layers(const Model& model) {
  const format::LayerMap& map = model.layer_map();
  const uint32_t layers = model.config().layers;
  const bool ascending = std::ranges::adjacent_find(map, std::ranges::greater_equal{}) == map.end();
  if (map.size() == layers && ascending) return;
  note(fmt::format("layers {} ({} in all; the model has {})", format::to_string(map), map.size(), layers));
}

// If no context length was requested, and the usual one would take too much memory.
void note_room(const Model& model, const LoadOptions& options) {
  const uint32_t usual = std::min(model.config().max_positions, kDefaultContext);
  const uint32_t room = model.context();
  if (options.context || room >= usual) return;
  note(fmt::format(
      "room for {} positions instead of {}, since the KV cache of {} layers takes {} a position; --ctx asks "
      "for more",
      room, usual, model.layer_map().size(), size_words(model.cache_bytes() / room)));
}

// If no precision was named.
void note_precision(const LoadedModel& loaded, const DeviceOptions& options) {
  const kernels::Precision precision = loaded.chosen().precision();
  if (options.precision || precision == kernels::Precision::exact) return;
  note(fmt::format("precision {}, {} (--precision exact rounds nothing)", kernels::to_string(precision),
                   rounding_words(precision)));
}

Result<ChatTemplate> choose_template(const std::string& name_or_file) {
  auto named = ChatTemplate::named(name_or_file);
  if (named) return named;
  const auto source = format::read_text(format::posix_file_system(), name_or_file, kMaxTextBytes);
  if (!source && source.error().kind == ErrorKind::not_found) {
    return Error{ErrorKind::not_found, fmt::format("{}; no such file", named.error().message)};
  }
  if (!source) return source.error();
  auto compiled = ChatTemplate::compile(*source);
  if (!compiled) return compiled.error().in(name_or_file);
  return compiled;
}

Result<void> apply_options(const ChatOptions& options, TextModel& text) {
  if (!options.chat_template.empty()) {
    TRY_ASSIGN(const ChatTemplate chosen, choose_template(options.chat_template));
    text.use_template(chosen);
  }
  const auto& chat = text.chat_template();
  if (!chat) return {};
  if (options.thinking && !chat->has_thinking_switch()) {
    return Error{ErrorKind::invalid, "--thinking: the chat template has no such switch; leave it out"};
  }
  const auto checked = check_template_args(options.template_args, *chat);
  const auto& for_tools = text.chat_template(true);
  if (checked || (for_tools && check_template_args(options.template_args, *for_tools))) return {};
  return checked.error().in("--template-args");
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> load_model(const std::string& folder, const LoadOptions& options,
                                                const std::stop_token& stop, const ProgressWatch& watch) {
  TRY(format::try_output(options.route_trace));
  TRY_ASSIGN(auto access, open_place(folder, options.remote, stop, watch));
  note(fmt::format("loading {}", folder));
  LoadOptions shown = options;
  if (!shown.progress) shown.progress = access->progress();
  auto loaded = LoadedModel::load(std::move(access), shown, stop);
  if (shown.progress) shown.progress->finished();
  if (!loaded) return loaded;
  note_layers((*loaded)->model());
  note_room((*loaded)->model(), options);
  for (const std::string& passed_over : (*loaded)->model().config().notes)
    note(passed_over);
  for (const std::string& warning : (*loaded)->checkpoint().warnings())
    note(warning);
  note((*loaded)->chosen().note());
  note_precision(**loaded, options.device);
  note(memory_note((*loaded)->memory_plan(), (*loaded)->experts().stats().policy));
  return loaded;
}

Result<TextModel> load_text(format::Repository& repository, const ChatOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(TextModel text, TextModel::load(repository, stop));
  TRY(apply_options(options, text));
  return text;
}

Result<TextModel> load_text(LoadedModel& loaded, const ChatOptions& options, const std::stop_token& stop) {
  auto text = TextModel::load(loaded.access().files(), stop);
  if (!text) {
    const Error& error = text.error();
    const bool by_ids = error.kind == ErrorKind::not_found || error.kind == ErrorKind::unsupported;
    return by_ids ? Error{error.kind, error.message + " (--tokens runs the model by token ids)"} : error;
  }
  const uint32_t ids = text->tokenizer().vocab_size();
  const uint32_t vocab = loaded.model().config().vocab;
  if (ids > vocab) {
    return Error{
        ErrorKind::invalid,
        fmt::format(
            "the tokenizer (tokenizer.json or tiktoken.model) has token ids up to {}, but the model only has {} tokens "
            "(vocab_size in config.json); it belongs to another model",
            ids - 1, vocab)};
  }
  TRY(apply_options(options, *text));
  return text;
}

void note(std::string_view text) {
  if (!text.empty() && format::stderr_is_terminal()) format::print_error(text);
}

}  // namespace dspack::runtime
