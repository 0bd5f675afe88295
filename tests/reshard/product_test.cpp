#include <doctest/doctest.h>

#include <set>

#include "reshard/plan/product.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::product_test {

using namespace dspack;
using reshard::Conversion;
using reshard::make_product;
using reshard::parse_recipe;
using reshard::Product;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

format::Checkpoint open(const SmallCheckpoint& checkpoint) {
  const TempFolder folder;
  checkpoint.write(folder);
  const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
  return format::Checkpoint::open(*repository, 1, {}).value();
}

Result<Product> made(const std::string& recipe, const format::Checkpoint& source,
                     const reshard::SourceFacts& facts = {}) {
  const auto parsed = parse_recipe(R"({"by":"layer",)" + recipe + "}");
  REQUIRE_MESSAGE(parsed.has_value(), parsed.error().message);
  return make_product(*parsed, source, facts);
}

std::string problem(const std::string& recipe, const format::Checkpoint& source,
                    const reshard::SourceFacts& facts = {}) {
  const auto product = made(recipe, source, facts);
  return product ? "none" : product.error().message;
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

constexpr char kQ[] = "model.layers.0.self_attn.q_a_proj.weight";
constexpr char kQScale[] = "model.layers.0.self_attn.q_a_proj.weight_scale_inv";

const reshard::Making& making(const Product& product, const std::string& name) {
  const format::TensorEntry* entry = product.result.find(name);
  REQUIRE(entry != nullptr);
  return product.makings[static_cast<size_t>(entry - product.result.tensors().data())];
}

/// A catalogue of headers alone: names, dtypes and shapes, of which some no file could fill.
format::Checkpoint catalogue(const std::vector<std::tuple<std::string, Dtype, std::vector<uint64_t>>>& tensors) {
  std::vector<format::TensorEntry> entries;
  for (const auto& [name, dtype, shape] : tensors) {
    format::TensorEntry entry;
    entry.name = name;
    entry.place = format::parse_tensor_name(name);
    entry.dtype = dtype;
    entry.shape = shape;
    entry.range = {0, format::tensor_bytes(dtype, shape).value()};
    entries.push_back(std::move(entry));
  }
  return format::Checkpoint::of(std::move(entries)).value();
}

}  // namespace

TEST_CASE("product: without selection and transforms it is the source, tensor by tensor") {
  const format::Checkpoint source = open(SmallCheckpoint());
  const Product product = make_product({}, source, {}).value();
  CHECK(product.complete);
  CHECK(product.warnings.empty());
  REQUIRE(product.result.tensors().size() == source.tensors().size());
  CHECK(product.used.size() == source.tensors().size());
  for (uint32_t i = 0; i < source.tensors().size(); ++i) {
    CHECK(product.result.tensors()[i].name == source.tensors()[i].name);
    CHECK(product.makings[i].source == i);
    CHECK(product.makings[i].conversion == Conversion::none);
  }
  CHECK(product.result.experts().size() == 6);
}

TEST_CASE("product: a selection takes weights with their scales, and says that there is more") {
  const format::Checkpoint source = open(SmallCheckpoint());
  const Product product = made(R"("include":[{"layers":1,"experts":"0,2"}])", source).value();
  CHECK_FALSE(product.complete);
  CHECK(product.result.tensors().size() == 12);
  CHECK(product.used.size() == 12);
  CHECK(product.result.experts().size() == 2);
  CHECK(made(R"("include":{"layers":"0-9"},"exclude":{"role":"other"})", source).value().result.tensors().size() == 43);
  CHECK(made(R"("include":[{"name":"*"}])", source).value().complete);
}

TEST_CASE("product: a recipe that would part a weight from its scale, or leave nothing, is refused") {
  const format::Checkpoint source = open(SmallCheckpoint());
  CHECK(mentions(problem(R"("exclude":{"name":"*_scale_inv"})", source), "without its scale"));
  CHECK(mentions(problem(R"("include":{"layers":"7"})", source), "leaves out every tensor"));
  CHECK(mentions(problem(R"("exclude":{"name":"*"})", source), "leaves out every tensor"));
  CHECK(problem(R"("include":{"name":"*_scale_inv"})", source) == "none");
  // A transform uses the scale up, so that it need not be taken.
  const Product product = made(R"("exclude":{"name":"*_scale_inv"},"transform":"fp8-to-bf16")", source).value();
  CHECK(product.used.size() == source.tensors().size());
  CHECK(product.result.find(kQScale) == nullptr);
}

TEST_CASE("product: parts of a recipe that concern nothing are told") {
  const format::Checkpoint source = open(SmallCheckpoint());
  const auto warnings = [&](const std::string& recipe) { return made(recipe, source).value().warnings; };
  CHECK(warnings(R"("include":[{"layers":0},{"layers":9}])") ==
        std::vector<std::string>{R"(include {"layers":"9"} matches no tensor of the source)"});
  CHECK(warnings(R"("exclude":[{"role":"router"}])").size() == 1);
  CHECK(warnings(R"("transform":"fp8-to-bf16")").empty());
  CHECK(mentions(warnings(R"("transform":"bf16-to-fp8")").at(0), "no tensor is of that kind"));
  CHECK(mentions(warnings(R"("transform":"scales-to-e8m0")").at(0), "no scale tensor has powers of two alone"));
  CHECK(warnings(R"("transform":["fp8-to-bf16","fp8-to-f32"])").size() == 1);
  std::string many = R"("include":[{"name":"*"})";
  for (int i = 0; i < 500; ++i)
    many += R"(,{"layers":9})";
  CHECK(warnings(many + "]").size() == 11);
  CHECK(warnings(many + "]").back() == "490 more parts of the recipe match nothing");
}

TEST_CASE("product: FP8 with its scales becomes one tensor of the same shape") {
  const format::Checkpoint source = open(SmallCheckpoint());
  for (const auto& [name, dtype, conversion] : {std::tuple("fp8-to-bf16", Dtype::bf16, Conversion::fp8_to_bf16),
                                                std::tuple("fp8-to-f32", Dtype::f32, Conversion::fp8_to_f32)}) {
    const Product product = made(std::string(R"("transform":")") + name + "\"", source).value();
    CHECK(product.complete);
    CHECK(product.used.size() == source.tensors().size());
    CHECK(product.result.tensors().size() == source.tensors().size() - 20);
    const format::TensorEntry& weight = *product.result.find(kQ);
    CHECK(weight.dtype == dtype);
    CHECK(weight.shape == std::vector<uint64_t>{8, 8});
    CHECK(weight.range.size() == 64 * bits_of(dtype) / 8);
    CHECK(weight.place.role == format::Role::attention);
    CHECK(making(product, kQ).conversion == conversion);
    CHECK(source.tensors()[making(product, kQ).needs.at(0)].name == kQScale);
    CHECK(product.result.find("model.norm.weight")->dtype == Dtype::bf16);
    for (const format::TensorEntry& entry : product.result.tensors())
      CHECK(entry.dtype != Dtype::f8_e4m3);
  }
}

TEST_CASE("product: of several transforms the first that fits a weight counts") {
  const format::Checkpoint source = open(SmallCheckpoint());
  const Product product = made(R"("transform":[{"kind":"fp8-to-f32","role":"attention","layers":"0"},
                                               {"kind":"fp8-to-bf16","role":"attention"}])",
                               source)
                              .value();
  CHECK(product.result.find(kQ)->dtype == Dtype::f32);
  CHECK(product.result.find("model.layers.1.self_attn.q_a_proj.weight")->dtype == Dtype::bf16);
  CHECK(product.result.find("model.layers.1.mlp.experts.0.up_proj.weight")->dtype == Dtype::f8_e4m3);
  CHECK(product.warnings.empty());
}

TEST_CASE("product: BF16 matrices of attention and MLPs become FP8 with a scale a block, others stay") {
  SmallCheckpoint checkpoint;
  checkpoint.add(0, "model.layers.0.mlp.down_proj.weight", "BF16", {130, 300}, 2);
  checkpoint.add(0, "model.layers.0.mlp.gate.weight", "BF16", {3, 300}, 2);
  checkpoint.add(0, "model.layers.0.self_attn.kv_a_layernorm.weight", "BF16", {300}, 2);
  checkpoint.add(0, "model.layers.0.self_attn.odd", "BF16", {2, 300}, 2);
  checkpoint.add(0, "model.layers.0.self_attn.none.weight", "BF16", {0, 300}, 2);
  const format::Checkpoint source = open(checkpoint);
  const Product product = made(R"("transform":"bf16-to-fp8")", source).value();
  CHECK(product.result.tensors().size() == source.tensors().size() + 1);
  CHECK(product.result.find("model.layers.0.mlp.down_proj.weight")->dtype == Dtype::f8_e4m3);
  const format::TensorEntry& scales = *product.result.find("model.layers.0.mlp.down_proj.weight_scale_inv");
  CHECK(scales.dtype == Dtype::f32);
  CHECK(scales.shape == std::vector<uint64_t>{2, 3});
  for (const char* name : {"model.layers.0.mlp.gate.weight", "model.layers.0.self_attn.kv_a_layernorm.weight",
                           "model.layers.0.self_attn.odd", "model.layers.0.self_attn.none.weight", "lm_head.weight",
                           "model.embed_tokens.weight", "model.layers.1.eh_proj.weight"})
    CHECK(product.result.find(name)->dtype == Dtype::bf16);

  checkpoint.add(1, "model.layers.0.mlp.down_proj.weight_scale_inv", "F32", {2, 3}, 4);
  CHECK(mentions(problem(R"("transform":"bf16-to-fp8")", open(checkpoint)), "would be made twice"));
}

TEST_CASE("product: only scales that are known to be powers of two become E8M0") {
  const format::Checkpoint source = open(SmallCheckpoint());
  const auto index = static_cast<uint32_t>(source.find(kQScale) - source.tensors().data());
  const Product product =
      made(R"("transform":"scales-to-e8m0")", source, {.decoder_layers = {}, .exact_scales = {index}}).value();
  CHECK(product.result.tensors().size() == source.tensors().size());
  CHECK(product.result.find(kQScale)->dtype == Dtype::f8_e8m0);
  CHECK(product.result.find(kQScale)->range.size() == 1);
  CHECK(making(product, kQScale).conversion == Conversion::f32_to_e8m0);
  CHECK(product.result.find(kQ)->dtype == Dtype::f8_e4m3);
  CHECK(product.result.find("model.layers.1.self_attn.q_a_proj.weight_scale_inv")->dtype == Dtype::f32);
}

TEST_CASE("product: the MTP module is what stands behind the decoder's layers") {
  const format::Checkpoint source = open(SmallCheckpoint());
  const reshard::SourceFacts facts{.decoder_layers = 1, .exact_scales = {}};
  const Product product = made(R"("drop_mtp":true)", source, facts).value();
  CHECK(product.complete);  // of the model without it
  CHECK(product.warnings.empty());
  CHECK(product.result.tensors().size() == 24);
  for (const format::TensorEntry& entry : product.result.tensors())
    CHECK_FALSE(mentions(entry.name, "layers.1."));
}

TEST_CASE("product: a config.json that contradicts the names keeps drop_mtp from dropping something else") {
  const format::Checkpoint source = open(SmallCheckpoint());
  const auto with = [](uint32_t layers) { return reshard::SourceFacts{.decoder_layers = layers, .exact_scales = {}}; };
  CHECK(mentions(problem(R"("drop_mtp":true)", source, with(2)), "counts 2 layers"));
  CHECK(mentions(problem(R"("drop_mtp":true)", source, with(2)), "layer 1 has tensors of an MTP module"));
  CHECK(mentions(problem(R"("drop_mtp":true)", source, with(0)), "layer 0 has no tensor that only an MTP module has"));
  SmallCheckpoint longer;
  longer.add(0, "model.layers.2.input_layernorm.weight", "BF16", {8}, 2);
  CHECK(mentions(problem(R"("drop_mtp":true)", open(longer), with(1)), "layer 2 has no tensor"));

  // DeepSeek-V4's are named, and the second of its stages has what a layer has.
  const format::Checkpoint stages = catalogue({{"layers.0.attn_norm.weight", Dtype::bf16, {8}},
                                               {"mtp.0.main_norm.weight", Dtype::bf16, {8}},
                                               {"mtp.1.attn_norm.weight", Dtype::bf16, {8}}});
  CHECK(made(R"("drop_mtp":true)", stages, with(1)).value().result.tensors().size() == 1);

  const format::Checkpoint plain = catalogue({{"model.layers.0.input_layernorm.weight", Dtype::bf16, {8}}});
  const Product product = made(R"("drop_mtp":true)", plain, with(1)).value();
  CHECK(product.warnings == std::vector<std::string>{"drop_mtp leaves out nothing: the source has no MTP module"});
}

TEST_CASE("product: FP8 that the transforms do not know is refused, unless a selector keeps it from them") {
  const std::string weight = "model.layers.0.mlp.experts.0.up_proj.weight";
  const auto refused = [&](std::vector<uint64_t> shape, Dtype scale_type, std::vector<uint64_t> scales) {
    const auto source =
        catalogue({{weight, Dtype::f8_e4m3, std::move(shape)}, {weight + "_scale_inv", scale_type, std::move(scales)}});
    return problem(R"("transform":"fp8-to-bf16")", source);
  };
  CHECK(refused({256, 129}, Dtype::f32, {2, 2}) == "none");
  CHECK(refused({256, 129}, Dtype::f8_e8m0, {2, 2}) == "none");
  CHECK(refused({0, 129}, Dtype::f32, {0, 2}) == "none");
  CHECK(refused({256, 0}, Dtype::f32, {2, 0}) == "none");
  for (const auto& grid : {std::vector<uint64_t>{2, 1}, {2, 2, 1}, {4}, {}, {1, 1}, {256, 1}, {0, 0}})
    CHECK(mentions(refused({256, 129}, Dtype::f32, grid), "scales of blocks of 128 x 128, here [2,2]"));
  CHECK(mentions(refused({256, 129}, Dtype::bf16, {2, 2}), "is BF16 of shape [2,2]"));
  CHECK(mentions(refused({2, 256, 129}, Dtype::f32, {2, 2, 2}), "is no matrix named *.weight"));
  CHECK(mentions(problem(R"("transform":"fp8-to-bf16")", catalogue({{weight, Dtype::f8_e4m3, {4, 4}}})),
                 "\"" + weight + "_scale_inv\" is missing"));

  const auto fused = catalogue({{"model.layers.0.mlp.experts.gate_up_proj", Dtype::f8_e4m3, {2, 8, 8}},
                                {weight, Dtype::f8_e4m3, {4, 4}},
                                {weight + "_scale_inv", Dtype::f32, {1, 1}}});
  CHECK(mentions(problem(R"("transform":"fp8-to-bf16")", fused), "gate_up_proj"));
  CHECK(problem(R"("transform":{"kind":"fp8-to-bf16","name":"*.weight"})", fused) == "none");
}

TEST_CASE("product: of experts in four bits those that were trained in them are converted, and no others") {
  const std::string weight = "layers.0.ffn.experts.0.w1.weight";
  const std::string scale = "layers.0.ffn.experts.0.w1.scale";
  const auto stored = [&](Dtype codes, std::vector<uint64_t> shape, Dtype scales, std::vector<uint64_t> grid) {
    return catalogue({{weight, codes, std::move(shape)}, {scale, scales, std::move(grid)}});
  };
  const auto fp4 = stored(Dtype::i8, {4, 32}, Dtype::f8_e8m0, {4, 2});
  const auto int4 = made(R"("transform":"experts-to-int4")", fp4).value();
  CHECK(int4.result.find(scale) == nullptr);
  CHECK(int4.result.find(weight + "_packed")->shape == std::vector<uint64_t>{4, 8});
  CHECK(int4.result.find(weight + "_scale")->shape == std::vector<uint64_t>{4, 2});
  const auto nvfp4 = made(R"("transform":"experts-to-nvfp4")", fp4).value();
  CHECK(nvfp4.result.find(weight + "_packed")->shape == std::vector<uint64_t>{4, 32});
  CHECK(nvfp4.result.find(weight + "_scale")->shape == std::vector<uint64_t>{4, 4});
  for (const char* transform : {R"("transform":"experts-to-int4")", R"("transform":"experts-to-nvfp4")"}) {
    const auto refused = [&](const format::Checkpoint& source) { return problem(transform, source); };
    CHECK(mentions(refused(stored(Dtype::i8, {4, 32}, Dtype::f8_e8m0, {4, 1})), "here [4,2]"));
    CHECK(mentions(refused(stored(Dtype::i8, {4, 24}, Dtype::f8_e8m0, {4, 2})), "48 columns, which groups of 32"));
    constexpr uint64_t kMax = 1ULL << 60U;
    CHECK(mentions(refused(stored(Dtype::i8, {1, kMax}, Dtype::f8_e8m0, {1, kMax / 16})), "at once"));
    // int8 with a scale for each row, and MXFP4 that somebody has made.
    for (const std::string& said : {refused(stored(Dtype::i8, {4, 32}, Dtype::f32, {4, 1})),
                                    refused(stored(Dtype::u8, {4, 32}, Dtype::f8_e8m0, {4, 2}))}) {
      CHECK(mentions(said, "quantised already"));
      CHECK(mentions(said, "Take the checkpoint that it was made from, or exempt it by a selector"));
    }
  }
  CHECK(mentions(problem(R"("exclude":{"name":"*.scale"})", fp4), "takes the FP4 tensor \"" + weight + "\" without"));
}

TEST_CASE("product: shapes that would take more memory than any model's are refused") {
  const std::string weight = "model.layers.0.mlp.up_proj.weight";
  constexpr uint64_t kHuge = 1ULL << 40;
  const auto fp8 = [&](std::vector<uint64_t> shape) {
    const std::vector<uint64_t> grid{(shape[0] + 127) / 128, (shape[1] + 127) / 128};
    return problem(R"("transform":"fp8-to-f32")",
                   catalogue({{weight, Dtype::f8_e4m3, std::move(shape)}, {weight + "_scale_inv", Dtype::f32, grid}}));
  };
  CHECK(fp8({18'432, 7168}) == "none");
  for (const auto& shape : {std::vector<uint64_t>{1, kHuge}, {kHuge, 1}, {1ULL << 30, 1ULL << 30}, {0, 1ULL << 55}})
    CHECK(mentions(fp8(shape), "at once to be converted"));
  const auto bf16 = [&](std::vector<uint64_t> shape) {
    return problem(R"("transform":"bf16-to-fp8")", catalogue({{weight, Dtype::bf16, std::move(shape)}}));
  };
  CHECK(bf16({7168, 18'432}) == "none");
  CHECK(bf16({kHuge, 7168}) == "none");  // rows are converted as they come
  for (const auto& shape : {std::vector<uint64_t>{1, kHuge}, {1, 1ULL << 55}})
    CHECK(mentions(bf16(shape), "at once to be converted"));
}

}  // namespace dspack::product_test
