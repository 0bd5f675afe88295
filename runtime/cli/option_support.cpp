#include "runtime/cli/option_support.h"

#include <fmt/format.h>

#include <algorithm>

#include "dspack_version.h"
#include "runtime/cli/device_options.h"
#include "runtime/cli/io_options.h"
#include "runtime/cli/memory_options.h"
#include "runtime/cli/prompt.h"
#include "runtime/cli/remote_options.h"

namespace dspack::runtime {

namespace {

// An option whose text `parser` reads.
template <class Parser>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, Parser parser,
                        std::optional<format::LayerSelection>& into, const std::string& about) {
  const auto take = [name, parser, &into](const std::string& text) {
    auto parsed = parser(text);
    if (!parsed) throw CLI::ValidationError(name, parsed.error().message);
    into = std::move(*parsed);
  };
  return app.add_option_function<std::string>(name, take, about);
}

}  // namespace

std::unique_ptr<CLI::App> make_app(const std::string& name, const std::string& about) {
  auto app = std::make_unique<CLI::App>(about, name);
  app->get_formatter()->column_width(28);
  app->set_help_flag("-h,--help", "Print this help");
  return app;
}

std::optional<Exit> parse(CLI::App& app, std::vector<std::string> arguments) {
  std::ranges::reverse(arguments);  // CLI11 takes them from the back
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return Exit{.status = 0, .text = app.help()};
  } catch (const CLI::CallForVersion&) {
    return Exit{.status = 0, .text = fmt::format("dsrun {}\n", kVersion)};
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::ranges::replace(text, '\n', ' ');
    return Exit{.status = 2, .text = fmt::format("dsrun: {} ({} --help explains)\n", text, app.get_name())};
  }
  return std::nullopt;
}

void add_folder(CLI::App& app, std::string& folder) {
  app.add_option("DIR", folder, "Folder of the model, or its address: http(s)://..., org/name[@revision], hf://...")
      ->required()
      ->type_name("");
}

void add_load_options(CLI::App& app, LoadOptions& load) {
  app.add_option("--ctx", load.context, "Positions to keep room for (default: what the model allows, at most 4096)")
      ->check(between(1U, 1U << 26U))
      ->type_name("N");
  app.add_option("--threads", load.threads, "Threads (default: one per core); results do not depend on it")
      ->check(between(1U, 4096U))
      ->type_name("N");
  app.add_option("--cpu", load.instruction_set, "Instruction set: scalar, avx2 or avx512 (default: the widest)")
      ->type_name("NAME");
  add_device_options(app, load.device);
  app.callback([&load] {
    if (const std::string text = contradiction_of(load.device); !text.empty()) throw CLI::ParseError(text, 2);
  });
  add_memory_options(app, load.memory);
  add_remote_options(app, load.remote);
  add_absent_option(app, load.remote);
  auto* layers = add_parsed(app, "--layers", format::parse_layers, load.layers,
                            "Pass these layers in this order; repeated ones share their weights")
                     ->type_name("LAYERS")
                     ->option_text("0-3,2-5");
  add_parsed(app, "--ratio-repeat", format::parse_ratio_repeat, load.layers,
             "The same by shares of the depth, gaps filled (docs/layer-maps.md)")
      ->type_name("PAIRS")
      ->option_text("(0,.5),(.3,1)")
      ->excludes(layers);
  add_io_options(app, load);
}

CLI::Option* add_tokens(CLI::App& app, TokenArgument& tokens, const std::string& about) {
  const auto take = [&tokens](const std::vector<std::string>& words) {
    const std::string& first = words.front();
    if (words.size() == 1 && (first == "-" || (first.starts_with('@') && first.size() > 1))) {
      tokens.file = first == "-" ? first : first.substr(1);
      return;
    }
    for (const std::string& word : words) {
      auto ids = parse_token_ids(word);
      if (ids && ids->empty()) throw CLI::ValidationError("--tokens", "a token id is empty");
      if (!ids) throw CLI::ValidationError("--tokens", ids.error().message);
      tokens.ids.insert(tokens.ids.end(), ids->begin(), ids->end());
    }
  };
  return app.add_option_function<std::vector<std::string>>("--tokens", take, about)->type_name("1,2,3|@FILE|-");
}

void add_chat_options(CLI::App& app, ChatOptions& chat, std::optional<std::string>& thinking) {
  app.add_option("--chat-template", chat.chat_template,
                 "Render as this template does: a name (a wrong one lists them), or a file with its Jinja source")
      ->type_name("NAME|FILE");
  app.add_option("--thinking", thinking, "Whether the answer begins with reasoning (DeepSeek-V3.1; default: off)")
      ->check(CLI::IsMember({"on", "off"}).description(""))
      ->type_name("on|off");
}

}  // namespace dspack::runtime
