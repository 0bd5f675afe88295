#include "runtime/cli/validation_options.h"

#include "runtime/cli/option_support.h"

namespace dspack::runtime {

namespace {

void add_pass_tokens(CLI::App& app, PassTokens& tokens) {
  CLI::Option* ids = add_tokens(app, tokens);
  app.add_option("-p,--prompt", tokens.prompt, "A question; - reads it from standard input")
      ->type_name("TEXT")
      ->excludes(ids);
  app.add_flag("--raw", tokens.raw, "Take the text as it is instead of putting it as a question")->excludes(ids);
}

void add_naive(CLI::App& app, LoadOptions& load) {
  app.add_flag_callback(
      "--naive", [&load] { load.attention = AttentionForm::expanded; },
      "Expand keys and values (slow): a second implementation of attention, which computes kv_b_proj too");
}

}  // namespace

CommandLine parse_eval(std::vector<std::string> arguments) {
  EvalOptions options;
  auto app = make_app("dsrun eval", "Measures the perplexity of a text, with its standard error.");
  app->footer(
      "Example:\n  dsrun eval ./ds-packed --text wiki.test.raw --ctx 512\n\n"
      "The text is cut into windows of --ctx positions, each beginning with the BOS token where the tokenizer asks "
      "for\n"
      "one. Every token is scored once, given what stands before it in its window. With --stride M less than --ctx,\n"
      "windows overlap: all but the first score their last M tokens only, the rest is context.");
  add_folder(*app, options.folder);
  app->add_option("--text", options.text_file, "File with the text")->required()->type_name("FILE");
  app->add_option("--stride", options.stride, "Tokens from one window to the next (default: windows do not overlap)")
      ->check(between(1U, 1U << 26U))
      ->type_name("M");
  add_load_options(*app, options.load);
  app->get_option("--ctx")->description("Positions of a window (default: what the model allows, at most 4096)");
  app->add_option("--json", options.json_file, "Write the figures as JSON")->type_name("FILE");
  if (auto exit = parse(*app, std::move(arguments))) return *exit;
  return options;
}

CommandLine parse_record(std::vector<std::string> arguments) {
  RecordOptions options;
  auto app = make_app("dsrun record", "Writes what every module of the model reads and makes as a safetensors file.");
  app->footer(
      "Examples:\n"
      "  dsrun record ./ds-packed -p \"Once upon a time,\" --raw --out run.safetensors\n"
      "  dsrun record ./ds-packed --tokens 0,5,17 --out run.safetensors --modules \"*.self_attn.*,lm_head\"\n\n"
      "The file holds <module>.input.0 and <module>.output under the names of Hugging Face's modules, and input_ids.\n"
      "DeepSeek-V3 takes about 130 MB a token, 80 of them in routed experts (--modules leaves out what is not "
      "wanted).\n"
      "All tokens go through the model at once, at most 4096.");
  add_folder(*app, options.folder);
  add_pass_tokens(*app, options.tokens);
  app->add_option("--out", options.out, "File to write")->required()->type_name("FILE.safetensors");
  app->add_option("--modules", options.patterns, "Only these modules; * stands for any characters")
      ->delimiter(',')
      ->type_name("PATTERN,...");
  add_naive(*app, options.load);
  add_load_options(*app, options.load);
  app->get_option("--ctx")->description("Positions to keep room for (default: as many as there are tokens)");
  if (auto exit = parse(*app, std::move(arguments))) return *exit;
  if (!options.tokens.is_given() && !options.tokens.prompt) {
    return Exit{.status = 2, .text = "dsrun: record needs something to run; give --tokens or -p\n"};
  }
  return options;
}

CommandLine parse_compare(std::vector<std::string> arguments) {
  CompareOptions options;
  auto app = make_app("dsrun compare", "Compares the model's modules with a recording of them.");
  app->footer(
      "Example:\n  dsrun compare ./ds-packed --reference run.safetensors\n\n"
      "The recording is made by dsrun record, or by hooks on another implementation: tensors <module>.input.0 and\n"
      "<module>.output (or .output.0), in F64, F32, BF16 or F16, or \"logits\" alone. The relative error is\n"
      "sum |a - b| / sum |b|. A module departs if its output's error exceeds the tolerance; the first one is named.\n"
      "Status: 0 within the tolerance, 1 beyond it or failed, 2 wrong usage.");
  add_folder(*app, options.folder);
  app->add_option("--reference", options.reference, "The recording")->required()->type_name("FILE.safetensors");
  add_pass_tokens(*app, options.tokens);
  app->add_option("--tolerance", options.tolerance,
                  "Relative error that is allowed (default: 1e-4; 0.125 where the recording is in BF16 or F16)")
      ->check(between(0.0, 1e9))
      ->type_name("X");
  app->add_flag("--inject", options.inject,
                "Give each module the recorded input, so that errors do not add up from one module to the next");
  add_naive(*app, options.load);
  add_load_options(*app, options.load);
  app->get_option("--ctx")->description("Positions to keep room for (default: as many as there are tokens)");
  app->add_option("--json", options.json_file, "Write all figures as JSON")->type_name("FILE");
  if (auto exit = parse(*app, std::move(arguments))) return *exit;
  return options;
}

}  // namespace dspack::runtime
