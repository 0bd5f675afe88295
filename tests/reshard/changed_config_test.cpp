#include <doctest/doctest.h>
#include <fmt/format.h>

#include "format/json.h"
#include "reshard/run/changed_config.h"
#include "reshard/run/source_facts.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::changed_config_test {

using namespace dspack;
using format::Json;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

/// The config.json that a recipe makes of one; "unchanged", or what is wrong.
std::string changed(const std::string& recipe, const std::string& config, const SmallCheckpoint& checkpoint = {},
                    const std::vector<std::string>& exact = {}) {
  const TempFolder folder;
  checkpoint.write(folder);
  folder.write("config.json", config);
  const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
  const auto source = format::Checkpoint::open(*repository, 1, {}).value();
  reshard::SourceFacts facts{.decoder_layers = 1, .exact_scales = {}};
  for (const std::string& name : exact)
    facts.exact_scales.insert(static_cast<uint32_t>(source.find(name) - source.tensors().data()));
  const auto parsed = reshard::parse_recipe(R"({"by":"layer",)" + recipe + "}");
  REQUIRE_MESSAGE(parsed.has_value(), parsed.error().message);
  const auto plan = reshard::make_plan(*parsed, source, facts);
  REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
  const auto text = reshard::changed_config(*plan, *repository, {});
  if (!text) return text.error().message;
  return text->value_or("unchanged");
}

Json changed_json(const std::string& recipe, const std::string& config, const SmallCheckpoint& checkpoint = {},
                  const std::vector<std::string>& exact = {}) {
  const std::string text = changed(recipe, config, checkpoint, exact);
  const auto json = format::parse_json(text, format::kManifestDocument);
  REQUIRE_MESSAGE(json.has_value(), text);
  return *json;
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

constexpr char kFp8[] =
    R"({"b":1,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]},"a":1e-06})";
constexpr char kToBf16[] = R"("transform":"fp8-to-bf16")";
constexpr char kToFp8[] = R"("transform":"bf16-to-fp8")";
constexpr char kNarrow[] = R"("transform":"scales-to-e8m0")";

SmallCheckpoint with_bf16() {
  SmallCheckpoint checkpoint;
  checkpoint.add(0, "model.layers.0.mlp.down_proj.weight", "BF16", {8, 8}, 2);
  return checkpoint;
}

std::vector<std::string> all_scales() {
  std::vector<std::string> names;
  SmallCheckpoint checkpoint;
  for (size_t shard = 0; shard < 3; ++shard) {
    for (const test::RawTensor& tensor : checkpoint.shard(shard)) {
      if (tensor.name.ends_with("_scale_inv")) names.push_back(tensor.name);
    }
  }
  return names;
}

}  // namespace

TEST_CASE("changed config: a recipe that changes no weight leaves config.json as it is") {
  CHECK(changed(R"("include":{"layers":"0"})", kFp8) == "unchanged");
  CHECK(changed(kToFp8, kFp8) == "unchanged");   // there is no BF16 matrix of that kind
  CHECK(changed(kNarrow, kFp8) == "unchanged");  // no scale is a power of two
  CHECK(changed(kToFp8, "[]") == "unchanged");   // and is not looked at
}

TEST_CASE("changed config: without FP8 nothing is said of it, and other fields keep place and text") {
  CHECK(changed(kToBf16, kFp8) == "{\n  \"b\": 1,\n  \"a\": 1e-06\n}\n");
  CHECK(changed(kToBf16, R"({"quantization_config":null})") == "{}\n");
  CHECK(changed(kToBf16, "{}") == "{}\n");
}

TEST_CASE("changed config: without the MTP module its number is 0, where loaders look") {
  const std::string drop = R"("drop_mtp":true)";
  CHECK(changed_json(drop, R"({"num_hidden_layers":1,"num_nextn_predict_layers":1})") ==
        Json{{"num_hidden_layers", 1}, {"num_nextn_predict_layers", 0}});
  CHECK(changed_json(drop, R"({"text_config":{"num_hidden_layers":1}})") ==
        Json{{"text_config", {{"num_hidden_layers", 1}, {"num_nextn_predict_layers", 0}}}});
  CHECK(changed_json(drop, kFp8)["quantization_config"]["quant_method"] == "fp8");
}

TEST_CASE("changed config: what stays or becomes FP8 is described, and what does not is named") {
  const Json made = changed_json(kToFp8, "{}", with_bf16());
  const Json wanted = {
      {"activation_scheme", "dynamic"}, {"fmt", "e4m3"}, {"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  CHECK(made["quantization_config"] == wanted);

  const auto kept = [](const std::string& recipe, const std::string& before, const SmallCheckpoint& checkpoint = {}) {
    const std::string list = before.empty() ? "" : R"(,"modules_to_not_convert":)" + before;
    const Json json = changed_json(recipe, R"({"quantization_config":{"quant_method":"fp8")" + list + "}}", checkpoint);
    return json["quantization_config"].value("modules_to_not_convert", Json()).dump();
  };
  const std::string attention = R"("transform":{"kind":"fp8-to-bf16","role":"attention"})";
  const std::string q = R"("model.layers.0.self_attn.q_a_proj","model.layers.1.self_attn.q_a_proj")";
  CHECK(kept(attention, "") == "[" + q + "]");
  CHECK(kept(attention, R"(["lm_head"])") == R"(["lm_head",)" + q + "]");
  CHECK(kept(attention, R"(["self_attn","lm_head"])") == R"(["self_attn","lm_head"])");  // already says it
  CHECK(kept(attention, "7") == "[" + q + "]");
  // The experts of a layer are one module, unless some of them are FP8.
  CHECK(kept(R"("transform":{"kind":"fp8-to-bf16","role":"routed_expert","layers":"1"})", "") ==
        R"(["model.layers.1.mlp.experts"])");
  CHECK(kept(R"("transform":{"kind":"fp8-to-bf16","layers":"1","experts":"2","name":"*up_proj*"})", "") ==
        R"(["model.layers.1.mlp.experts.2.up_proj"])");
  // An entry that is FP8 now is not to be kept from it.
  CHECK(kept(kToFp8, R"(["lm_head","model.layers.0.mlp.down_proj","down_proj","re:.*norm"])", with_bf16()) ==
        R"(["lm_head","re:.*norm"])");
  CHECK(kept(kToFp8, R"(["model.layers.0.mlp"])", with_bf16()) == "null");
}

TEST_CASE("changed config: scales are called E8M0 where all are") {
  CHECK(changed_json(kNarrow, kFp8, {}, all_scales())["quantization_config"]["scale_fmt"] == "ue8m0");
  auto but_one = all_scales();
  but_one.pop_back();
  CHECK_FALSE(changed_json(kNarrow, kFp8, {}, but_one)["quantization_config"].contains("scale_fmt"));
}

TEST_CASE("changed config: a description that the transforms do not know is refused, wherever it stands") {
  const char* other = R"({"quant_method":"compressed-tensors"})";
  for (const char* config : {R"({"quantization_config":3})", R"({"quantization_config":{}})",
                             R"({"quantization_config":[]})", R"({"quantization_config":{"quant_method":8}})"})
    CHECK(mentions(changed(kNarrow, config, {}, all_scales()),
                   R"("quantization_config" is not of "quant_method" "fp8")"));
  for (const std::string& config :
       {std::string(R"({"quantization_config":)") + other + "}",
        std::string(R"({"text_config":{"quantization_config":)") + other + "}}",
        std::string(R"({"text_config":{"quantization_config":{"quant_method":"fp8"}},"quantization_config":)") + other +
            "}"}) {
    CHECK(mentions(changed(kNarrow, config, {}, all_scales()), "that transforms know"));
    CHECK_FALSE(mentions(changed(kToBf16, config), other));       // where no codes are left, nothing describes them
    CHECK(changed(R"("drop_mtp":true)", config).front() == '{');  // that is no matter of quantisation
  }
  for (const char* block : {"[64,128]", "128", "[128]", "[128,128,1]", "\"128\"", "null", "[]"}) {
    const std::string config =
        std::string(R"({"quantization_config":{"quant_method":"fp8","weight_block_size":)") + block + "}}";
    CHECK(mentions(changed(kToBf16, config), "\"weight_block_size\" is not [128, 128]"));
    CHECK(changed(kNarrow, config, {}, all_scales()).front() == '{');
  }
  Json many = {{"quantization_config", {{"quant_method", "fp8"}, {"modules_to_not_convert", Json::array()}}}};
  for (int i = 0; i <= 10'000; ++i)
    many["quantization_config"]["modules_to_not_convert"].push_back("x");
  CHECK(mentions(changed(kToBf16, many.dump()), "has 10001 entries"));
}

TEST_CASE("changed config: what says that experts are FP4 goes when they no longer are") {
  SmallCheckpoint checkpoint;
  for (const char* expert : {"0", "1"}) {
    const std::string name = fmt::format("layers.0.ffn.experts.{}.w1.", expert);
    checkpoint.add(0, name + "weight", "I8", {2, 32}, 1);
    checkpoint.add(0, name + "scale", "F8_E8M0", {2, 2}, 1);
  }
  const char* config = R"({"expert_dtype":"fp4","quantization_config":{"quant_method":"fp8"}})";
  const auto to = [](const char* kind, const char* name) {
    return fmt::format(R"("transform":[{{"kind":"{}","name":"layers.0.ffn.experts.{}.*"}}])", kind, name);
  };
  for (const char* kind : {"experts-to-int4", "experts-to-nvfp4"}) {
    const Json made = changed_json(to(kind, "?"), config, checkpoint);
    CHECK_FALSE(made.contains("expert_dtype"));
    CHECK(made["quantization_config"]["quant_method"] == "compressed-tensors");
    const std::string refused = changed(to(kind, "0"), config, checkpoint);
    CHECK(mentions(refused, "\"layers.0.ffn.experts.1.w1.weight\", which stays FP4"));
    CHECK(mentions(refused, "convert all routed experts"));
  }
  const Json kept = changed_json(kToBf16, config, checkpoint);
  CHECK(kept["expert_dtype"] == "fp4");
  CHECK_FALSE(kept.contains("quantization_config"));
  // FP4 is no matrix that was left as values, so no list names it.
  const Json some = changed_json(R"("transform":{"kind":"fp8-to-bf16","layers":1})", config, checkpoint);
  for (const Json& module : some["quantization_config"]["modules_to_not_convert"])
    CHECK_FALSE(mentions(module.get<std::string>(), "ffn"));
}

TEST_CASE("changed config: both places are changed where both describe") {
  const char* config =
      R"({"text_config":{"quantization_config":{"quant_method":"fp8"}},"quantization_config":{"quant_method":"fp8"}})";
  CHECK(changed_json(kToBf16, config) == Json{{"text_config", Json::object()}});
}

TEST_CASE("changed config: one that is no object, no JSON or too deep is refused by name") {
  CHECK(mentions(changed(kToBf16, "[]"), "config.json: is no JSON object"));
  CHECK(mentions(changed(kToBf16, "null"), "config.json: is no JSON object"));
  CHECK(mentions(changed(kToBf16, "{\"a\":1,\"a\":2}"), "duplicate key"));
  CHECK(mentions(changed(kToBf16, "{"), "not valid JSON"));
  CHECK(mentions(changed(kToBf16, ""), "not valid JSON"));
  CHECK(mentions(changed(kToBf16, "{\"a\":\"\xff\"}"), "not valid JSON"));
  CHECK(mentions(changed(kToBf16, std::string(100'000, '[')), "nested deeper"));
  CHECK(mentions(changed(kToBf16, "{\"a\":\"" + std::string(17 << 20, 'x') + "\"}"), "config.json"));
}

TEST_CASE("changed config: the source's own gets another name, which must be free") {
  const TempFolder folder;
  const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
  std::vector<reshard::Companion> companions{{"config.json", "config.json", 2}, {"LICENSE", "LICENSE", 1}};
  REQUIRE(reshard::set_aside_config(companions, {}, *repository).has_value());
  CHECK(companions[0].path == "config.source.json");
  CHECK(companions[0].source_path == "config.json");
  CHECK(companions[1].path == "LICENSE");
  companions = {{"config.json", "config.json", 2}, {"config.source.json", "config.source.json", 2}};
  const auto taken = reshard::set_aside_config(companions, {}, *repository);
  CHECK(taken.error().kind == ErrorKind::conflict);
  CHECK(mentions(taken.error().message, "config.source.json"));
}

TEST_CASE("layers of the source: no number of layers that a model can have is refused with the file's name") {
  const auto layers = [](const std::string& config) {
    const TempFolder folder;
    SmallCheckpoint().write(folder);
    folder.write("config.json", config);
    return reshard::decoder_layers(*open_repository(folder.path().string(), {}, format::posix_file_system()).value(),
                                   {});
  };
  CHECK(layers(R"({"num_hidden_layers":1})").value() == 1);
  CHECK(layers(R"({"text_config":{"num_hidden_layers":61}})").value() == 61);
  for (const char* wrong : {"0", "4294967296", "18446744073709551615"}) {
    CAPTURE(wrong);
    const auto refused = layers(fmt::format(R"({{"num_hidden_layers":{}}})", wrong));
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().message.find("config.json") != std::string::npos);
    CHECK(refused.error().message.find("out of range") != std::string::npos);
  }
}

}  // namespace dspack::changed_config_test
