#include <doctest/doctest.h>

#include <limits>

#include "runtime/cli/verbs.h"

namespace dspack::runtime::options_test {
namespace {

format::CommandLine command_line(std::vector<std::string> arguments) {
  return format::parse_command_line(dsrun_program(), std::move(arguments));
}

template <class T>
T parsed(std::vector<std::string> arguments) {
  const format::CommandLine command = command_line(std::move(arguments));
  if (!command.verb) MESSAGE(command.text);
  REQUIRE(command.verb);
  const auto* options = std::any_cast<std::shared_ptr<T>>(&command.verb->options);
  REQUIRE(options != nullptr);
  return **options;
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
                                       "--dev",
                                       "cpu=avx2"});
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
      parsed<LogitsOptions>({"logits", "dir", "--tokens", "1", "--out", "f", "--dev", "io=mmap", "--verify"});
  CHECK(logits.load.io == IoMethod::mapped);
  CHECK(logits.load.verify);
  const format::CommandLine wrong = command_line({"dir", "-p", "x", "--dev", "io=fast"});
  REQUIRE_FALSE(wrong.verb);
  CHECK(wrong.status == 2);
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

TEST_CASE("command line: other words") {
  CHECK(parsed<RunOptions>({"dir", "Why?"}).prompt == "Why?");
  CHECK(parsed<RunOptions>({"run", "dir", "Why?", "--raw"}).raw);
  CHECK_FALSE(parsed<RunOptions>({"chat", "dir"}).prompt.has_value());
  CHECK_FALSE(command_line({"dir", "Why?", "-p", "Why?"}).verb);
  CHECK(parsed<RunOptions>({"dir", "--temperature", "0.5"}).sampler.temperature == 0.5);
  CHECK(parsed<RunOptions>({"dir", "--ctx", "32k"}).load.context == 32768);
  CHECK(parsed<RunOptions>({"dir", "-n", "2k"}).max_tokens == 2048);
  CHECK(parsed<PlanOptions>({"plan", "dir", "--prompt-tokens", "8k"}).prompt_tokens == 8192);
  CHECK(parsed<BenchVerbOptions>({"bench", "dir", "-p", "1k,512"}).prompts == std::vector<uint32_t>{1024, 512});
  CHECK(parsed<PlanOptions>({"plan", "dir", "--network-rate", "1Gbit"}).what_if.rates.network == 125'000'000);
  for (const char* option : {"--ram", "--vram", "--disk", "--max-fetch"}) {
    CAPTURE(option);
    const format::CommandLine asked = command_line({"dir", "-p", "x", option, "24"});
    CHECK(asked.status == 2);
    CHECK(asked.text.find("\"24\" would be 24 bytes; did you mean 24GB?") != std::string::npos);
  }
}

TEST_CASE("command line: a folder alone is a chat") {
  const auto run = parsed<RunOptions>({"dir"});
  CHECK_FALSE(run.prompt.has_value());
  CHECK_FALSE(run.load.context.has_value());
  CHECK_FALSE(run.sampler.temperature.has_value());
  CHECK(run.sampler.over().temperature == 0);
}

TEST_CASE("command line: drafting with the MTP module") {
  CHECK_FALSE(parsed<RunOptions>({"dir"}).load.speculation.has_value());
  CHECK_FALSE(parsed<RunOptions>({"dir", "--mtp", "off", "--dev", "mtp-hidden=pre-norm"}).load.speculation.has_value());
  const auto two = parsed<RunOptions>({"dir", "--mtp", "2"}).load.speculation;
  REQUIRE(two);
  CHECK(two->drafts == 2);
  CHECK_FALSE(two->hidden.has_value());
  const auto automatic = parsed<RunOptions>({"dir", "--mtp", "auto"}).load.speculation;
  REQUIRE(automatic);
  CHECK_FALSE(automatic->drafts.has_value());
  CHECK(parsed<RunOptions>({"dir", "--mtp", "16", "--dev", "mtp-hidden=pre-norm"}).load.speculation->hidden ==
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
  const auto logits = parsed<LogitsOptions>({"logits", "dir", "--tokens", "1,2,3", "--out", "f", "--dev", "chunk=2"});
  CHECK(logits.tokens.ids == std::vector<uint32_t>{1, 2, 3});
  CHECK(logits.out == "f");
  CHECK(logits.chunk == 2);
  const auto tokenize = parsed<TokenizeOptions>({"tokenize", "dir", "-p", "-x"});
  CHECK(tokenize.prompt == "-x");
  CHECK_FALSE(tokenize.as_json);
  CHECK_FALSE(tokenize.as_text);
  const auto chat = parsed<TokenizeOptions>({"tokenize", "dir", "--chat", "f.json", "--text", "--dev", "no-question",
                                             "--chat-template", "kimi-k2", "--thinking", "off"});
  CHECK(chat.conversation == "f.json");
  CHECK(chat.as_text);
  CHECK(chat.ends_after_message);
  CHECK(chat.chat.chat_template == "kimi-k2");
  CHECK(chat.chat.thinking == false);
}

TEST_CASE("command line: layers of both verbs that run a model") {
  const format::LayerSelection map = format::parse_layers("0-3,2-5").value();
  const format::LayerSelection ratio = format::parse_ratio_repeat("(0,.5),(.3,1)").value();
  CHECK_FALSE(parsed<RunOptions>({"dir"}).load.layers);
  CHECK(parsed<RunOptions>({"dir", "--layers", "0-3, 2-5"}).load.layers == map);
  CHECK(parsed<RunOptions>({"dir", "--layers", "(0,.5),(.3,1)"}).load.layers == ratio);
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
  const auto plan = parsed<PlanOptions>({"plan", "dir", "--ram", "50%", "--ctx", "64", "--prompt-tokens", "7", "--dev",
                                         "hit-rate=40", "--mtp", "1", "--json"});
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
  const auto record = parsed<RecordOptions>({"record", "dir", "--tokens", "1,2", "--out", "f", "--modules", "a*,b"});
  CHECK(record.tokens.ids == std::vector<uint32_t>{1, 2});
  CHECK(record.patterns == std::vector<std::string>{"a*", "b"});
  const auto asked = parsed<RecordOptions>({"record", "dir", "-p", "x", "--raw", "--out", "f"});
  CHECK(asked.tokens.prompt == "x");
  CHECK(asked.tokens.raw);
  const auto compare =
      parsed<CompareOptions>({"compare", "dir", "--reference", "f", "--tolerance", "0.5", "--dev", "inject"});
  CHECK(compare.reference == "f");
  CHECK(compare.tolerance == 0.5);
  CHECK(compare.inject);
  CHECK(compare.tokens.ids.empty());
}

TEST_CASE("command line: mistakes are one line with status 2") {
  const std::vector<std::vector<std::string>> mistakes = {
      {},
      {"dir", "question", "extra"},
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
      {"dir", "--mtp", "1", "--dev", "mtp-hidden=auto"},
      {"logits", "dir", "--out", "f"},
      {"logits", "dir", "--tokens", "1,-2", "--out", "f"},
      {"logits", "dir", "--tokens", "4294967296", "--out", "f"},
      {"dir", "--layers", ""},
      {"dir", "--layers", "3-1"},
      {"dir", "--layers", "0-65536"},
      {"dir", "--layers", "0-65535"},
      {"dir", "--layers", "all"},
      {"dir", "--layers", "("},
      {"dir", "--layers", "(0,1.5)"},
      {"dir", "--layers", "(0,1),1"},
      {"dir", "--layers", "0", "--layers", "(0,1)"},
      {"tokenize", "dir", "-p", "x", "--layers", "0"},
      {"tokenize", "dir", "-p", "x", "--absent-from", "origin"},  // text is a part's own
      {"dir", "--absent-from", ""},
      {"tokenize", "dir"},
      {"tokenize", "dir", "-p", "x", "--chat", "f.json"},
      {"dir", "-p", "x", "--chat", "f.json"},
      {"tokenize", "dir", "-p", "x", "--json", "--text"},
      {"dir", "-p", "x", "--thinking", "maybe"},
      {"tokenize", "dir", "-p", "x", "--dev", "texts=y"},
      {"tokenize", "dir", "--dev", "texts=x", "--dev", "ids=y"},
      {"logit", "dir"},
      {"eval", "dir"},
      {"eval", "dir", "--text", "t", "--stride", "0"},
      {"record", "dir", "--out", "f"},
      {"record", "dir", "--tokens", "1"},
      {"record", "dir", "--tokens", "1", "-p", "x", "--out", "f"},
      {"compare", "dir"},
      {"compare", "dir", "--reference", "f", "--tolerance", "-1"},
      {"compared", "dir"},
      {"replay", "t"},
      {"replay", "t", "--slots", "none"},
      {"replay", "t", "--slots", "4", "--dev", "policy=mru"},
  };
  for (const auto& mistake : mistakes) {
    std::string shown;
    for (const std::string& word : mistake)
      shown += word + " ";
    CAPTURE(shown);
    const format::CommandLine command = command_line(mistake);
    REQUIRE_FALSE(command.verb);
    CHECK(command.status == 2);
    CHECK(command.text.starts_with("dsrun: "));
    CHECK(command.text.find('\n') == command.text.size() - 1);
  }
  CHECK(command_line({"tokenise", "dir"}).text == "dsrun: there is no verb \"tokenise\"; did you mean tokenize?\n");
}

TEST_CASE("command line: help and version go to standard output") {
  for (const std::vector<std::string>& ask : {std::vector<std::string>{"--help"},
                                              {"logits", "--help"},
                                              {"tokenize", "-h"},
                                              {"eval", "-h"},
                                              {"record", "-h"},
                                              {"compare", "-h"},
                                              {"replay", "-h"},
                                              {"plan", "-h"}}) {
    const format::CommandLine command = command_line(ask);
    REQUIRE_FALSE(command.verb);
    CHECK(command.status == 0);
    CHECK(command.text.find("Example") != std::string::npos);
  }
  CHECK(command_line({"--version"}).text.starts_with("dsrun (dspack) "));
}

TEST_CASE("command line: recorded routes") {
  const auto replay = parsed<ReplayOptions>({"replay", "t", "--slots", "4,25%", "--dev", "policy=lru"});
  CHECK(replay.trace == "t");
  REQUIRE(replay.slots.size() == 2);
  CHECK(replay.slots[1].slots(80, 1) == 20);
  CHECK(replay.policy == "lru");
}

TEST_CASE("command line: flags of llama.cpp and vLLM are told apart from mistakes, and lead to options that exist") {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"-m", "model.gguf", "-p", "x"}, "dsrun DIR"},
      {{"d", "-c", "4096"}, "--ctx"},
      {{"serve", "d", "-c", "4096"}, "--ctx"},
      {{"d", "-t", "8"}, "--threads"},
      {{"d", "-t8"}, "--threads"},
      {{"d", "-f", "prompt.txt"}, "-p - < FILE"},
      {{"d", "-ngl", "99"}, "--device cuda"},
      {{"d", "--n-gpu-layers=99"}, "--device cuda"},
      {{"d", "-p", "x", "--max-tokens", "9"}, "here it is -n"},
      {{"-hf", "org/name"}, "hf://org/name"},
      {{"d", "-np", "4"}, "--parallel, an option of dsrun serve"},
      {{"serve", "d", "--max-model-len", "32k"}, "--ctx"},
      {{"serve", "d", "--served-model-name", "m"}, "--model-name"},
      {{"serve", "d", "--tensor-parallel-size", "2"}, "cuda:0,1"},
      {{"d", "-p", "x", "--repeat-penalty", "1.1"}, "--repetition-penalty"}};
  for (const auto& [arguments, part] : cases) {
    CAPTURE(part);
    const format::CommandLine command = command_line(arguments);
    CHECK_FALSE(command.verb);
    CHECK(command.status == 2);
    CHECK_MESSAGE(command.text.find(part) != std::string::npos, command.text);
  }
  CHECK(parsed<RunOptions>({"d", "-p", "-c"}).prompt == "-c");
  std::string help = command_line({"--help"}).text;
  for (const format::Verb& verb : dsrun_program().verbs)
    help += command_line({"help", verb.name}).text;
  for (const format::PeerOption& peer : peer_options()) {
    CAPTURE(peer.names.front());
    CHECK((peer.own.empty() ? !peer.advice.empty() : help.find(peer.own) != std::string::npos));
  }
}

}  // namespace
}  // namespace dspack::runtime::options_test
