// Forms of answers: how long each takes to be prepared for a vocabulary, and what its masks take.
//
//   bench_forms TOKENIZER.json SCHEMAS.json [NAME]     SCHEMAS: a list of {"name", "schema"}
//   (tests/data/json_schema/daily.json)
//
// A line for each schema: bytes of its form, seconds until its constraint is there (with what earlier ones have left
// behind, as in a server), and the mean and the worst mask along answers drawn by chance, up to 300 tokens each. The
// limit is what nobody notices: a mask beside a token, of which a good machine makes 50 a second. Last, 1, 16 and 128
// small tools.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <iterator>
#include <numeric>
#include <random>
#include <vector>

#include "format/json.h"
#include "runtime/generate/constraint_compiler.h"
#include "runtime/text/json.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/tool_syntax.h"

using namespace dspack;
using namespace dspack::runtime;

namespace {

constexpr uint32_t kEnd = 1;
constexpr double kTokenSeconds = 0.02;

std::string read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

double seconds_of(const auto& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Bench {
 public:
  Bench(const Tokenizer& tokenizer, ConstraintCompiler& compiler) : tokenizer_(tokenizer), compiler_(compiler) {}

  void measure(const std::string& name, const Result<OrderedJson>& form) {
    if (!form) return fmt::print("{:<40} refused: {}\n", name, form.error().message);
    const std::string text = form->dump();
    std::promise<Result<std::unique_ptr<TokenConstraint>>> promise;
    const auto start = std::chrono::steady_clock::now();
    compiler_.compile(text, "", [&](auto made) { promise.set_value(std::move(made)); }, {});
    const auto made = promise.get_future().get();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!made) return fmt::print("{:<40} {:>8} {:>9.3f} {}\n", name, text.size(), seconds, made.error().message);
    std::vector<double> masks;
    for (uint32_t seed = 0; seed < 3; ++seed)
      walk(**made, seed, masks);
    const double mean = std::accumulate(masks.begin(), masks.end(), 0.0) / static_cast<double>(masks.size());
    fmt::print("{:<40} {:>8} {:>9.3f} {:>11.1f} {:>11.1f} {:>8.2f}\n", name, text.size(), seconds, mean * 1e6,
               std::ranges::max(masks) * 1e6, 100 * mean / kTokenSeconds);
  }

 private:
  void walk(TokenConstraint& constraint, uint32_t seed, std::vector<double>& masks) const {
    constexpr size_t kMax = 300;
    std::mt19937 random(seed);
    std::vector<uint32_t> answer;
    while (answer.size() < kMax) {
      std::vector<uint32_t> allowed, closing;
      Result<std::span<const uint32_t>> bits = std::span<const uint32_t>();
      masks.push_back(seconds_of([&] { bits = constraint.allowed_after(answer); }));
      if (!bits) return fmt::print("{}\n", bits.error().message);
      for (uint32_t token = 0; token < tokenizer_.vocab_size(); ++token) {
        if (!allows(*bits, token)) continue;
        allowed.push_back(token);
        const std::string_view text = tokenizer_.token_bytes(token);
        if (token == kEnd || text == "\"" || text == "}" || text == "]") closing.push_back(token);
      }
      const auto& among = !closing.empty() && random() % 4 == 0 ? closing : allowed;
      answer.push_back(among[random() % among.size()]);
      if (answer.back() == kEnd) return;
    }
  }

  const Tokenizer& tokenizer_;
  ConstraintCompiler& compiler_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: bench_forms TOKENIZER.json SCHEMAS.json [NAME]\n", stderr);
    return 2;
  }
  const auto tokenizer = Tokenizer::from_json(read(argv[1]));
  const auto schemas = parse_ordered_json(read(argv[2]), format::kConversationDocument);
  auto compiler = tokenizer ? ConstraintCompiler::make(*tokenizer, tokenizer->vocab_size(), std::vector<uint32_t>{kEnd})
                            : Result<std::unique_ptr<ConstraintCompiler>>(tokenizer.error());
  if (!schemas || !compiler) {
    fmt::print(stderr, "bench_forms: {}\n", !schemas ? schemas.error().message : compiler.error().message);
    return 1;
  }
  fmt::print("{} tokens\n{:<40} {:>8} {:>9} {:>11} {:>11} {:>8}\n", tokenizer->vocab_size(), "form", "bytes",
             "prepared s", "mask us", "worst us", "% of 20 ms");
  Bench bench(*tokenizer, **compiler);
  for (const OrderedJson& each : *schemas) {
    const auto name = each.value("name", std::string());
    if (argc < 4 || name == argv[3]) bench.measure(name, schema_form(each["schema"]));
  }
  const auto chat = ChatTemplate::named("deepseek-v3.1");
  const auto syntax = chat ? ToolSyntax::of(*chat) : Result<ToolSyntax>(chat.error());
  for (const int count : {1, 16, 128}) {
    std::vector<CallableTool> tools;
    for (int i = 0; i < count; ++i)
      tools.push_back({.name = fmt::format("tool_{}", i),
                       .parameters = OrderedJson::parse(R"({"type":"object","properties":{"path":{"type":"string"},
                           "limit":{"type":"integer","minimum":1},"flags":{"type":"array","items":{"type":"string"}}},
                           "required":["path"]})")});
    if (syntax) bench.measure(fmt::format("{} tools", count), syntax->calls(tools, true, *tokenizer));
  }
  return 0;
}
