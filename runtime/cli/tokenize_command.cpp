// dsrun tokenize DIR: the token ids of a text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/cli/output.h"
#include "format/json.h"
#include "runtime/cli/command_support.h"
#include "runtime/cli/commands.h"

namespace dspack::runtime {

namespace {

format::Json pieces(const Tokenizer& tokenizer, std::span<const uint32_t> tokens) {
  format::Json list = format::Json::array();
  for (const uint32_t token : tokens) {
    list.push_back({{"id", token}, {"text", tokenizer.decode(std::span(&token, 1), SpecialOutput::keep)}});
  }
  return list;
}

}  // namespace

Result<int> run_tokenize(const TokenizeOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(const std::string prompt, read_prompt(options.prompt));
  TRY_ASSIGN(auto repository, open_folder(options.folder));
  TRY_ASSIGN(const TextModel text, TextModel::load(*repository, stop));
  TRY_ASSIGN(const std::vector<uint32_t> tokens, text.tokenizer().encode(prompt, SpecialTokens::parse));
  if (options.json) {
    format::print_out(pieces(text.tokenizer(), tokens).dump() + "\n");
  } else {
    format::print_out(fmt::format("{}\n", fmt::join(tokens, " ")));
  }
  return 0;
}

}  // namespace dspack::runtime
