#include <doctest/doctest.h>

#include "reshard/run/companions.h"
#include "reshard/run/model_card.h"

namespace dspack::card_fields_test {

using namespace dspack;
using Fields = std::map<std::string, std::string>;

TEST_CASE("card fields: plain values at the top, and nothing else") {
  CHECK(reshard::card_fields("---\nlicense: mit\nlibrary_name: \"transformers\"\r\ntags:\n- a\n- b: c d\n"
                             "license_link: https://host/LICENSE\nquoted: 'x.y'\n---\nlicense: gpl\n") ==
        Fields{{"library_name", "transformers"},
               {"license", "mit"},
               {"license_link", "https://host/LICENSE"},
               {"quoted", "x.y"}});
  for (const char* none : {"", "---", "---\nlicense: mit\n", "\n---\nlicense: mit\n---\n", "# A card\nlicense: mit\n",
                           "---\nlicense: a b\nlicense_name: <b>\nx: \"\ny: &a\n---\n"}) {
    CAPTURE(none);
    CHECK(reshard::card_fields(none).empty());
  }
}

TEST_CASE("card fields: what holds for the same bytes is kept, the source is the base model") {
  format::Manifest manifest;
  manifest.origin = {"hub", "deepseek-ai/DeepSeek-V3", "abc"};
  const std::string source =
      "---\nlicense: other\nlicense_name: deepseek\nlibrary_name: transformers\nbase_model: x\n---\n";
  CHECK(reshard::packed_card_fields(manifest, source) ==
        "---\nbase_model: deepseek-ai/DeepSeek-V3\nlicense: \"other\"\nlicense_name: \"deepseek\"\n"
        "library_name: \"transformers\"\ntags:\n- dspack\n- mixture-of-experts\n---\n\n");
  manifest.layer_map.emplace();
  manifest.origin = {"folder", "", ""};
  CHECK(reshard::packed_card_fields(manifest, source) ==
        "---\nlicense: \"other\"\nlicense_name: \"deepseek\"\nlibrary_name: \"dspack\"\ntags:\n- dspack\n"
        "- mixture-of-experts\n---\n\n");
}

TEST_CASE("model card: source files in a table, whose cells no name can leave; equal input gives equal bytes") {
  format::Manifest manifest;
  manifest.program = "dspack 0";
  manifest.recipe = format::Json::object();
  manifest.source = {{"a|b`c<d>.safetensors", 7, format::sha256("x")}};
  const std::string card = reshard::model_card(manifest, {}, "# theirs\n");
  CHECK(card.find("| a&#124;b&#96;c&#60;d&#62;.safetensors | 7 | " + to_hex(format::sha256("x")) + " |\n") !=
        std::string::npos);
  CHECK(card.find("[README.source.md](README.source.md)") != std::string::npos);
  CHECK(card == reshard::model_card(manifest, {}, "# theirs\n"));
  CHECK(reshard::model_card(manifest, {}, {}).find("README.source.md") == std::string::npos);
  manifest.source.resize(301);
  CHECK(reshard::model_card(manifest, {}, {}).find("lists the 301 source files") != std::string::npos);
}

namespace {

/// A file with one expert's tensor of this name, as a template.
format::Manifest manifest_with(const std::string& name) {
  format::Manifest manifest;
  manifest.recipe = format::Json::object();
  manifest.layouts = {format::Layout{{{.name = name, .dtype = Dtype::u8, .shape = {1}, .data = {0, 1}}}}};
  format::PackedFile file;
  file.layer = LayerId(3);
  file.experts = {{{LayerId(3), ExpertId(7)}, {}}};
  manifest.files = {file};
  return manifest;
}

bool says(const format::Manifest& manifest, std::string_view words) {
  return reshard::model_card(manifest, {}, {}).find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("model card: who reads the names of the tensors") {
  const auto usual = manifest_with("model.layers.{layer}.mlp.experts.{expert}.up_proj.weight");
  const auto deepseek = manifest_with("layers.{layer}.ffn.experts.{expert}.w1.weight");
  auto mistral = manifest_with("layers.{layer}.experts.{expert}.w1.weight");
  CHECK(reshard::name_author(usual) == format::NameAuthor::transformers);
  CHECK(reshard::name_author(deepseek) == format::NameAuthor::deepseek);
  CHECK(reshard::name_author(mistral) == format::NameAuthor::mistral);
  CHECK((says(usual, "dsrun . -p") && says(usual, "from_pretrained") && says(usual, "reshard link")));
  CHECK_FALSE((says(usual, "own names") || says(usual, "own code")));
  CHECK((says(deepseek, "`deepseek_v4` alone") && says(deepseek, "from_pretrained") && says(deepseek, "reshard link")));
  CHECK(says(deepseek, "dsrun . -p"));
  CHECK((says(mistral, "`mistral_large4` alone") && says(mistral, "reshard unpack . --exact --out FOLDER")));
  CHECK_FALSE((says(mistral, "reshard link") || says(mistral, "dsrun . -p")));
  const std::string source = "---\nlibrary_name: vllm\n---\n";
  CHECK(reshard::packed_card_fields(deepseek, source).find("library_name: \"vllm\"") != std::string::npos);
  CHECK(reshard::packed_card_fields(mistral, source).find("library_name: \"dspack\"") != std::string::npos);
}

TEST_CASE("model card: what other programs cannot read, and what unpack is for") {
  for (const char* feature : {format::kFusedExpertsKey, format::kZstdKey}) {
    CAPTURE(feature);
    auto manifest = manifest_with("model.layers.{layer}.mlp.experts.{expert}.up_proj");
    CHECK_FALSE(reshard::unreadable_reason(manifest));
    manifest.requirements = {feature};
    CHECK(reshard::unreadable_reason(manifest));
    CHECK((says(manifest, *reshard::unreadable_reason(manifest)) && says(manifest, "reshard unpack . --out FOLDER")));
    CHECK_FALSE((says(manifest, "from_pretrained") || says(manifest, "reshard link")));
  }
  auto once = manifest_with("model.layers.{layer}.mlp.experts.{expert}.up_proj.weight");
  CHECK_FALSE(says(once, "the index lacks"));
  once.aliases = {{"b", "a"}};
  CHECK((says(once, "the index lacks 1 of") && says(once, "from_pretrained")));
}

}  // namespace dspack::card_fields_test
