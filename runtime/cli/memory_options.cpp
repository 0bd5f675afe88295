#include "runtime/cli/memory_options.h"

#include <map>

namespace dspack::runtime {

CLI::Option* add_amount(CLI::App& app, const std::string& name, Result<Amount> (*parser)(std::string_view),
                        std::optional<Amount>& into, const std::string& about) {
  const auto take = [name, parser, &into](const std::string& text) {
    auto parsed = parser(text);
    if (!parsed) throw CLI::ValidationError(name, parsed.error().message);
    into = *parsed;
  };
  return app.add_option_function<std::string>(name, take, about);
}

void add_memory_options(CLI::App& app, MemoryOptions& memory) {
  add_amount(app, "--ram", parse_memory_amount, memory.ram,
             "Most memory of the whole process: 24GB, 8G, 50% of the machine's (default: what is available)")
      ->type_name("BYTES|%");
  add_amount(app, "--experts", parse_expert_amount, memory.experts,
             "Most routed experts in memory at once (default: as many as fit)")
      ->type_name("N|%");
  static const std::map<std::string, Dtype> kDtypes = {
      {"f32", Dtype::f32}, {"bf16", Dtype::bf16}, {"f16", Dtype::f16}, {"fp8", Dtype::f8_e4m3}};
  app.add_option_function<std::string>(
         "--kv-dtype", [&memory](const std::string& name) { memory.kv_dtype = kDtypes.at(name); },
         "Numbers of the KV cache: f32 (exact), bf16 or f16 (half the memory), fp8 (28 %; docs/experts.md). "
         "Default: f32, or fp8 with --precision fp8")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "fp8"}).description(""))
      ->type_name("NAME");
}

}  // namespace dspack::runtime
