#include <doctest/doctest.h>

#include "reshard/card_fields.h"
#include "reshard/companions.h"

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
