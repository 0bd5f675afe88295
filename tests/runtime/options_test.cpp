#include "runtime/cli/options.h"

#include <doctest/doctest.h>

#include <limits>

#include "runtime/cli/prompt.h"

namespace dspack::runtime::options_test {
namespace {

template <class T>
T parsed(std::vector<std::string> arguments) {
  CommandLine command = parse_command_line(std::move(arguments));
  if (const auto* exit = std::get_if<Exit>(&command)) MESSAGE(exit->text);
  REQUIRE(std::holds_alternative<T>(command));
  return std::get<T>(std::move(command));
}

TEST_CASE("command line: a run with every flag") {
  const auto run = parsed<RunOptions>({"dir",
                                       "-p",
                                       "text",
                                       "-n",
                                       "7",
                                       "--temp",
                                       "0.5",
                                       "--top-p",
                                       "0.9",
                                       "--seed",
                                       "18446744073709551615",
                                       "--ctx",
                                       "64",
                                       "--threads",
                                       "3",
                                       "--stats",
                                       "s.json",
                                       "--raw",
                                       "--cpu",
                                       "avx2"});
  CHECK(run.folder == "dir");
  CHECK(run.prompt == "text");
  CHECK(run.max_tokens == 7);
  CHECK(run.sampler.temperature == 0.5);
  CHECK(run.sampler.top_p == 0.9);
  CHECK(run.sampler.seed == 18446744073709551615ULL);
  CHECK(run.load.context == 64);
  CHECK(run.load.threads == 3);
  CHECK(run.load.instruction_set == "avx2");
  CHECK(run.stats_file == "s.json");
  CHECK(run.raw);
  CHECK(run.chat.chat_template.empty());
  CHECK_FALSE(run.chat.thinking.has_value());
}

TEST_CASE("command line: ways of reading") {
  CHECK(parsed<RunOptions>({"dir", "-p", "x"}).load.io == IoMethod::automatic);
  CHECK_FALSE(parsed<RunOptions>({"dir", "-p", "x"}).load.verify);
  const auto logits =
      parsed<LogitsOptions>({"logits", "dir", "--tokens", "1", "--out", "f", "--io", "mmap", "--verify"});
  CHECK(logits.load.io == IoMethod::mapped);
  CHECK(logits.load.verify);
  const CommandLine wrong = parse_command_line({"dir", "-p", "x", "--io", "fast"});
  REQUIRE(std::holds_alternative<Exit>(wrong));
  CHECK(std::get<Exit>(wrong).status == 2);
}

TEST_CASE("command line: where what is absent comes from") {
  CHECK(parsed<RunOptions>({"dir"}).load.remote.absent_from.empty());
  CHECK(parsed<RunOptions>({"dir", "--absent-from", "origin"}).load.remote.absent_from == "origin");
  CHECK(parsed<PlanOptions>({"plan", "dir", "--absent-from", "hf://o/n"}).load.remote.absent_from == "hf://o/n");
}

TEST_CASE("command line: sampling") {
  const auto run =
      parsed<RunOptions>({"--stop", "a b", "--stop", "-", "--logit-bias", "7:-inf", "--logit-bias=8:1.5", "--top-k",
                          "40", "--min-p", "0.05", "--repetition-penalty", "1.1", "dir", "-p", "x"});
  CHECK(run.folder == "dir");
  CHECK(run.stop == std::vector<std::string>{"a b", "-"});
  CHECK(run.sampler.logit_bias == std::map<uint32_t, double>{{7, -std::numeric_limits<double>::infinity()}, {8, 1.5}});
  CHECK(run.sampler.top_k == 40);
  CHECK(run.sampler.min_p == 0.05);
  CHECK(run.sampler.repetition_penalty == 1.1);
}

TEST_CASE("command line: a folder alone is a chat") {
  const auto run = parsed<RunOptions>({"dir"});
  CHECK_FALSE(run.prompt.has_value());
  CHECK_FALSE(run.load.context.has_value());
  CHECK(run.sampler.temperature == 0);
}

TEST_CASE("command line: drafting with the MTP module") {
  CHECK_FALSE(parsed<RunOptions>({"dir"}).load.speculation.has_value());
  CHECK_FALSE(parsed<RunOptions>({"dir", "--mtp", "off", "--mtp-hidden", "auto"}).load.speculation.has_value());
  const auto two = parsed<RunOptions>({"dir", "--mtp", "2"}).load.speculation;
  REQUIRE(two);
  CHECK(two->drafts == 2);
  CHECK(two->hidden == MtpHidden::post_norm);
  const auto automatic = parsed<RunOptions>({"dir", "--mtp", "auto", "--mtp-hidden", "auto"}).load.speculation;
  REQUIRE(automatic);
  CHECK_FALSE(automatic->drafts.has_value());
  CHECK_FALSE(automatic->hidden.has_value());
  CHECK(parsed<RunOptions>({"dir", "--mtp", "16", "--mtp-hidden", "pre-norm"}).load.speculation->hidden ==
        MtpHidden::pre_norm);
}

TEST_CASE("command line: a prompt of token ids") {
  const auto run = parsed<RunOptions>({"dir", "--tokens", "1,2,3", "-n", "4"});
  CHECK(run.tokens.ids == std::vector<uint32_t>{1, 2, 3});
  CHECK_FALSE(run.prompt.has_value());
  CHECK(parsed<RunOptions>({"dir", "--tokens", "-"}).tokens.file == "-");
  CHECK(parsed<RunOptions>({"dir", "--tokens", "@a,b"}).tokens.file == "a,b");
}

TEST_CASE("command line: token ids as a file has them") {
  for (const char* text : {"1,2,3", "1 2 3\n", " 1, 2 ,3 ", "1\n2\r\n3"}) {
    CAPTURE(text);
    const auto ids = parse_token_ids(text);
    REQUIRE(ids);
    CHECK(*ids == std::vector<uint32_t>{1, 2, 3});
  }
  CHECK(parse_token_ids(" \n")->empty());
  for (const char* text : {"1,,2", ",1", "1,", "1 x", "-1", "4294967296", "1.5", "0x1"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_token_ids(text).has_value());
  }
  CHECK(parse_token_ids("7 8 x").error().message == "number 3: \"x\" is not a token id");
}

TEST_CASE("command line: the other verbs") {
  const auto logits = parsed<LogitsOptions>({"logits", "dir", "--tokens", "1,2,3", "--out", "f", "--chunk", "2"});
  CHECK(logits.tokens.ids == std::vector<uint32_t>{1, 2, 3});
  CHECK(logits.out == "f");
  CHECK(logits.chunk == 2);
  const auto tokenize = parsed<TokenizeOptions>({"tokenize", "dir", "-p", "-x"});
  CHECK(tokenize.prompt == "-x");
  CHECK(tokenize.output == TokenizeOptions::Output::ids);
  const auto chat = parsed<TokenizeOptions>({"tokenize", "dir", "--chat", "f.json", "--text", "--no-question",
                                             "--chat-template", "kimi-k2", "--thinking", "off"});
  CHECK(chat.conversation == "f.json");
  CHECK(chat.output == TokenizeOptions::Output::text);
  CHECK_FALSE(chat.add_generation_prompt);
  CHECK(chat.chat.chat_template == "kimi-k2");
  CHECK(chat.chat.thinking == false);
}

TEST_CASE("command line: layers of both verbs that run a model") {
  const format::LayerSelection map = format::parse_layers("0-3,2-5").value();
  const format::LayerSelection ratio = format::parse_ratio_repeat("(0,.5),(.3,1)").value();
  CHECK_FALSE(parsed<RunOptions>({"dir"}).load.layers);
  CHECK(parsed<RunOptions>({"dir", "--layers", "0-3, 2-5"}).load.layers == map);
  CHECK(parsed<RunOptions>({"dir", "--ratio-repeat", "(0,.5),(.3,1)"}).load.layers == ratio);
  CHECK(parsed<LogitsOptions>({"logits", "dir", "--tokens", "1", "--out", "f", "--layers", "0-3,2-5"}).load.layers ==
        map);
}

TEST_CASE("command line: memory") {
  const auto run = parsed<RunOptions>({"dir", "-p", "x", "--ram", "24GB", "--experts", "12.5%", "--kv-dtype", "bf16"});
  CHECK(run.load.memory.ram->of(0) == 24'000'000'000);
  CHECK(run.load.memory.experts->of(800) == 100);
  CHECK(run.load.memory.kv_dtype == Dtype::bf16);
  const auto usual = parsed<RunOptions>({"dir", "-p", "x"});
  CHECK_FALSE(usual.load.memory.ram);
  CHECK_FALSE(usual.load.memory.experts);
  CHECK_FALSE(usual.load.memory.kv_dtype.has_value());
  CHECK(parsed<RunOptions>({"dir", "-p", "x", "--kv-dtype", "fp8"}).load.memory.kv_dtype == Dtype::f8_e4m3);
  const auto plan = parsed<PlanOptions>({"plan", "dir", "--ram", "50%", "--ctx", "64", "--prompt-tokens", "7",
                                         "--hit-rate", "40", "--mtp", "1", "--json"});
  CHECK(plan.folder == "dir");
  CHECK(plan.load.memory.ram->percent == 50);
  CHECK(plan.load.context == 64);
  CHECK(plan.prompt_tokens == 7);
  CHECK(plan.hit_rate == 40);
  CHECK(plan.load.speculation);
  CHECK(plan.json);
}

TEST_CASE("command line: the verbs that validate") {
  const auto eval = parsed<EvalOptions>({"eval", "dir", "--text", "t", "--ctx", "64", "--stride", "3"});
  CHECK(eval.text_file == "t");
  CHECK(eval.load.context == 64);
  CHECK(eval.stride == 3);
  const auto record =
      parsed<RecordOptions>({"record", "dir", "--tokens", "1,2", "--out", "f", "--modules", "a*,b", "--naive"});
  CHECK(record.tokens.ids == std::vector<uint32_t>{1, 2});
  CHECK(record.patterns == std::vector<std::string>{"a*", "b"});
  CHECK(record.load.attention == AttentionForm::expanded);
  const auto asked = parsed<RecordOptions>({"record", "dir", "-p", "x", "--raw", "--out", "f"});
  CHECK(asked.tokens.prompt == "x");
  CHECK(asked.tokens.raw);
  CHECK(asked.load.attention == AttentionForm::absorbed);
  const auto compare = parsed<CompareOptions>({"compare", "dir", "--reference", "f", "--tolerance", "0.5", "--inject"});
  CHECK(compare.reference == "f");
  CHECK(compare.tolerance == 0.5);
  CHECK(compare.inject);
  CHECK(compare.tokens.ids.empty());
}

TEST_CASE("command line: mistakes are one line with status 2") {
  const std::vector<std::vector<std::string>> mistakes = {
      {},
      {"dir", "extra"},
      {"dir", "--unknown"},
      {"dir", "-p"},
      {"dir", "--raw"},
      {"dir", "-p", "x", "-n", "-1"},
      {"dir", "--ctx", "0"},
      {"dir", "--tokens", "1,2", "-p", "x"},
      {"dir", "--tokens", "x"},
      {"dir", "--tokens", "@"},
      {"dir", "--tokens", "1,,2"},
      {"dir", "--tokens", "1,2,"},
      {"dir", "--tokens", ""},
      {"dir", "--tokens", "-", "-p", "x"},
      {"dir", "--threads", "0"},
      {"dir", "-p", "x", "--temp", "hot"},
      {"dir", "-p", "x", "--temp", "-1"},
      {"dir", "-p", "x", "--stop", ""},
      {"dir", "-p", "x", "--top-k", "-1"},
      {"dir", "-p", "x", "--min-p", "1.5"},
      {"dir", "-p", "x", "--repetition-penalty", "0"},
      {"dir", "-p", "x", "--logit-bias", "7"},
      {"dir", "-p", "x", "--logit-bias", "7:"},
      {"dir", "-p", "x", "--logit-bias", "-7:1"},
      {"dir", "-p", "x", "--logit-bias", "7:x"},
      {"dir", "-p", "x", "--logit-bias", "7:1 "},
      {"dir", "--mtp"},
      {"dir", "--mtp", "0"},
      {"dir", "--mtp", "17"},
      {"dir", "--mtp", "2x"},
      {"dir", "--mtp", "1", "--mtp-hidden", "both"},
      {"logits", "dir", "--out", "f"},
      {"logits", "dir", "--tokens", "1,-2", "--out", "f"},
      {"logits", "dir", "--tokens", "4294967296", "--out", "f"},
      {"dir", "--layers", ""},
      {"dir", "--layers", "3-1"},
      {"dir", "--layers", "0-65536"},
      {"dir", "--layers", "0-65535"},
      {"dir", "--layers", "all"},
      {"dir", "--ratio-repeat", ""},
      {"dir", "--ratio-repeat", "(0,1.5)"},
      {"dir", "--ratio-repeat", "0,1"},
      {"dir", "--layers", "0", "--ratio-repeat", "(0,1)"},
      {"tokenize", "dir", "-p", "x", "--layers", "0"},
      {"tokenize", "dir", "-p", "x", "--absent-from", "origin"},  // text is a part's own
      {"dir", "--absent-from", ""},
      {"tokenize", "dir"},
      {"tokenize", "dir", "-p", "x", "--chat", "f.json"},
      {"dir", "-p", "x", "--chat", "f.json"},
      {"tokenize", "dir", "-p", "x", "--json", "--text"},
      {"dir", "-p", "x", "--thinking", "maybe"},
      {"tokenize", "dir", "-p", "x", "--file", "y"},
      {"tokenize", "dir", "--file", "x", "--decode", "y"},
      {"logit", "dir"},
      {"eval", "dir"},
      {"eval", "dir", "--text", "t", "--stride", "0"},
      {"record", "dir", "--out", "f"},
      {"record", "dir", "--tokens", "1"},
      {"record", "dir", "--tokens", "1", "-p", "x", "--out", "f"},
      {"compare", "dir"},
      {"compare", "dir", "--reference", "f", "--tolerance", "-1"},
      {"compared", "dir"},
  };
  for (const auto& mistake : mistakes) {
    std::string shown;
    for (const std::string& word : mistake)
      shown += word + " ";
    CAPTURE(shown);
    const CommandLine command = parse_command_line(mistake);
    REQUIRE(std::holds_alternative<Exit>(command));
    const Exit& exit = std::get<Exit>(command);
    CHECK(exit.status == 2);
    CHECK(exit.text.starts_with("dsrun: "));
    CHECK(exit.text.find('\n') == exit.text.size() - 1);
  }
  const CommandLine near = parse_command_line({"tokenise", "dir"});
  CHECK(std::get<Exit>(near).text == "dsrun: there is no verb \"tokenise\"; did you mean \"tokenize\"?\n");
}

TEST_CASE("command line: help and version go to standard output") {
  for (const std::vector<std::string>& ask : {std::vector<std::string>{"--help"},
                                              {"logits", "--help"},
                                              {"tokenize", "-h"},
                                              {"eval", "-h"},
                                              {"record", "-h"},
                                              {"compare", "-h"}}) {
    const CommandLine command = parse_command_line(ask);
    REQUIRE(std::holds_alternative<Exit>(command));
    CHECK(std::get<Exit>(command).status == 0);
    CHECK(std::get<Exit>(command).text.find("Example") != std::string::npos);
  }
  const CommandLine version = parse_command_line({"--version"});
  CHECK(std::get<Exit>(version).text.starts_with("dsrun "));
}

}  // namespace
}  // namespace dspack::runtime::options_test
